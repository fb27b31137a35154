//! What a collector's answer means: accepted, try again, or never.
//!
//! Which answers are worth another try is OTLP's specification's choice, for gRPC and for HTTP.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message;
use std::time::{Duration, SystemTime};

/// Most characters of a collector's words that are told.
const WORDS: usize = 300;

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has arrived.
    Accepted {
        /// So many of its points or records were refused all the same.
        rejected: u64,
        /// What the collector has to say; empty: nothing.
        words: String,
    },
    /// It did not arrive, and may the next time.
    Again {
        /// Not before this time has passed.
        after: Option<Duration>,
        /// What was wrong.
        why: String,
    },
    /// It will never be accepted.
    Refused {
        /// What was wrong.
        why: String,
    },
}

/// Codes of gRPC that are worth another try. RESOURCE_EXHAUSTED (8) is so only with a RetryInfo.
const RETRIED: &[(i32, &str)] = &[
    (1, "CANCELLED"),
    (4, "DEADLINE_EXCEEDED"),
    (10, "ABORTED"),
    (11, "OUT_OF_RANGE"),
    (14, "UNAVAILABLE"),
    (15, "DATA_LOSS"),
];
const RESOURCE_EXHAUSTED: i32 = 8;
/// Statuses of HTTP that are worth another try.
const RETRIED_STATUSES: &[u16] = &[429, 502, 503, 504];
/// Ends the type of the detail that says when to come again.
const RETRY_INFO: &str = "google.rpc.RetryInfo";

/// `google.rpc.Status`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl RpcStatus {
    fn read(bytes: &[u8]) -> RpcStatus {
        RpcStatus::decode(bytes).unwrap_or_default()
    }

    /// When to come again, if it says so.
    fn retry_after(&self) -> Option<Duration> {
        let mut details = self.details.iter();
        let found = details.find(|detail| detail.type_url.ends_with(RETRY_INFO))?;
        let delay = RetryInfo::decode(&*found.value).ok()?.retry_delay?;
        let seconds = u64::try_from(delay.seconds).unwrap_or_default();
        let nanoseconds = u32::try_from(delay.nanos).unwrap_or_default();
        Some(Duration::new(seconds, nanoseconds.min(999_999_999)))
    }
}

/// Words of a collector as they are told: in one line, and not too long.
fn told(words: &str) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(WORDS).collect()
}

/// What a status of gRPC other than OK means. `details` are the bytes of its `google.rpc.Status`.
#[must_use]
pub fn of_grpc(code: i32, message: &str, details: &[u8]) -> Answer {
    let after = RpcStatus::read(details).retry_after();
    let retried = RETRIED.iter().find(|(known, _)| *known == code);
    let name = match (retried, code) {
        (Some((_, name)), _) => (*name).to_owned(),
        (None, RESOURCE_EXHAUSTED) => "RESOURCE_EXHAUSTED".to_owned(),
        (None, code) => format!("gRPC status {code}"),
    };
    let why = format!("{name}: {}", told(message));
    if retried.is_some() || (code == RESOURCE_EXHAUSTED && after.is_some()) {
        return Answer::Again { after, why };
    }
    Answer::Refused { why }
}

/// What a status of HTTP other than 2xx means. `retry_after` is the header of that name, `body` a `google.rpc.Status` or anything else.
#[must_use]
pub fn of_http(status: u16, retry_after: Option<&str>, body: &[u8], now: SystemTime) -> Answer {
    let message = RpcStatus::read(body).message;
    let words = match message.is_empty() {
        true => told(&String::from_utf8_lossy(body)),
        false => told(&message),
    };
    let why = format!("HTTP status {status}: {words}");
    if !RETRIED_STATUSES.contains(&status) {
        return Answer::Refused { why };
    }
    let after = retry_after.and_then(|text| wait_of(text.trim(), now));
    Answer::Again { after, why }
}

/// What `Retry-After` says: seconds, or a moment.
fn wait_of(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(now).unwrap_or_default())
}

/// What is in a message of success about metrics.
#[must_use]
pub fn partial_metrics(response: &ExportMetricsServiceResponse) -> Answer {
    let partial = response.partial_success.clone().unwrap_or_default();
    accepted(partial.rejected_data_points, &partial.error_message)
}

/// What is in a message of success about logs.
#[must_use]
pub fn partial_logs(response: &ExportLogsServiceResponse) -> Answer {
    let partial = response.partial_success.clone().unwrap_or_default();
    accepted(partial.rejected_log_records, &partial.error_message)
}

fn accepted(rejected: i64, words: &str) -> Answer {
    Answer::Accepted {
        rejected: u64::try_from(rejected).unwrap_or_default(),
        words: told(words),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn retry_info(seconds: i64) -> Vec<u8> {
        let info = RetryInfo {
            retry_delay: Some(Delay { seconds, nanos: 5 }),
        };
        let detail = Detail {
            type_url: format!("type.googleapis.com/{RETRY_INFO}"),
            value: info.encode_to_vec(),
        };
        let status = RpcStatus {
            message: String::new(),
            details: vec![detail],
        };
        status.encode_to_vec()
    }

    #[test]
    fn codes_of_grpc() {
        // The table of OTLP's specification: 0 to 16 without OK, and a code that nobody knows.
        let retried = [1, 4, 10, 11, 14, 15];
        for code in (1..=16).chain([99]) {
            let again = matches!(of_grpc(code, "x", &[]), Answer::Again { after: None, .. });
            assert_eq!(again, retried.contains(&code), "{code}");
        }
        let exhausted = of_grpc(8, "slowly", &retry_info(7));
        let after = Some(Duration::new(7, 5));
        let why = "RESOURCE_EXHAUSTED: slowly".to_owned();
        assert_eq!(exhausted, Answer::Again { after, why });
        assert!(matches!(of_grpc(8, "x", b"\xff"), Answer::Refused { .. }));
        let negative = of_grpc(14, "", &retry_info(-7));
        assert!(matches!(negative, Answer::Again { after: Some(wait), .. } if wait.as_secs() == 0));
    }

    #[test]
    fn statuses_of_http() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let of = |status, after| of_http(status, after, b"no\n room", now);
        for status in [301, 400, 401, 404, 413, 500, 501] {
            assert!(matches!(of(status, Some("1")), Answer::Refused { .. }));
        }
        for status in [429, 502, 503, 504] {
            let why = format!("HTTP status {status}: no room");
            assert_eq!(of(status, None), Answer::Again { after: None, why });
        }
        let wait = |text| match of(503, Some(text)) {
            Answer::Again { after, .. } => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(wait(" 7 "), Some(Duration::from_secs(7)));
        let minute = wait("Sun, 06 Nov 1994 08:50:37 GMT");
        assert_eq!(minute, Some(Duration::from_secs(60)));
        let past = wait("Sun, 06 Nov 1994 08:49:00 GMT");
        assert_eq!(past, Some(Duration::ZERO));
        assert_eq!((wait("soon"), wait("-1")), (None, None));
    }

    #[test]
    fn words_are_short_and_in_one_line() {
        let Answer::Refused { why } = of_http(400, None, &[b'x'; 10_000], SystemTime::now()) else {
            panic!("not refused")
        };
        assert!(why.len() < WORDS + 50, "{}", why.len());
        assert_eq!(told("a\n b\r\n"), "a b");
    }
}
