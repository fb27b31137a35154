//! Answers of HTTP: their headers, which a browser takes as orders, and errors.

use crate::failure::{Exit, Failure};
use crate::output::error_document;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use std::io;
use tonic::codegen::{Bytes, http};

/// What an answer consists of. One that fails in the middle ends the connection, so that nobody takes it for a whole one.
pub(crate) type Content = UnsyncBoxBody<Bytes, io::Error>;
/// The answer to one HTTP request of the browser.
pub(crate) type Reply = Response<Content>;

/// What pages of this program may do: load their own files and ask this server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers that every answer has.
const ALWAYS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// An answer with all headers that every answer has. It is kept nowhere.
pub(crate) fn reply(status: StatusCode, kind: &'static str, content: Content) -> Reply {
    let mut reply = Response::new(content);
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}

/// The bytes as what an answer consists of.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Content {
    let never = |never: std::convert::Infallible| match never {};
    Full::new(bytes.into()).map_err(never).boxed_unsync()
}

/// An answer in JSON.
pub(crate) fn json(document: Vec<u8>) -> Reply {
    reply(StatusCode::OK, "application/json", whole(document))
}

/// A sentence for a person.
pub(crate) fn sentence(status: StatusCode, text: &str) -> Reply {
    reply(
        status,
        "text/plain; charset=utf-8",
        whole(format!("{text}\n")),
    )
}

/// An error in JSON, as `--json` prints it.
pub(crate) fn failed(failure: &Failure) -> Reply {
    let document = error_document(failure)
        .ok()
        .and_then(|document| serde_json::to_vec(&document).ok());
    reply(
        status_of(failure),
        "application/json",
        whole(document.unwrap_or_default()),
    )
}

/// An error of the request itself, with this status.
pub(crate) fn refused(status: StatusCode, code: &str, what: &str, hint: &str) -> Reply {
    let failure = Failure::Refused {
        exit: Exit::Usage,
        code: code.to_owned(),
        what: what.to_owned(),
        hint: Some(hint.to_owned()),
    };
    let mut reply = failed(&failure);
    *reply.status_mut() = status;
    reply
}

/// The status of HTTP that fits a failure.
fn status_of(failure: &Failure) -> StatusCode {
    match failure.exit() {
        Exit::Usage => StatusCode::BAD_REQUEST,
        Exit::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
        Exit::NoProcess => StatusCode::NOT_FOUND,
        Exit::NotPermitted => StatusCode::FORBIDDEN,
        Exit::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Exit::CannotTell => StatusCode::CONFLICT,
        Exit::Done | Exit::Failed | Exit::Partly | Exit::Growing => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_the_strict_headers() {
        let usage = Failure::Usage {
            what: "no".to_owned(),
            hint: "yes".to_owned(),
        };
        let all = [
            json(b"{}".to_vec()),
            sentence(StatusCode::FORBIDDEN, "No."),
            failed(&usage),
            refused(StatusCode::NOT_FOUND, "not_found", "no", "yes"),
        ];
        for reply in all {
            for (name, value) in ALWAYS {
                assert_eq!(reply.headers()[&name], value);
            }
            assert_eq!(reply.headers()[CACHE_CONTROL], "no-store");
        }
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "form-action 'none'",
            "base-uri 'none'",
        ] {
            assert!(POLICY.contains(part), "{POLICY}");
        }
        assert!(!POLICY.contains("unsafe"));
    }
}
