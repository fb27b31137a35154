//! Formats numbers and names in answers for people.

pub(crate) use memscope_units::{
    bytes, duration, grouped, moment, nanoseconds, parse_bytes, parse_duration, short_moment,
    signed_bytes,
};
use std::time::Duration;

/// `1.23 GiB`, or `unknown`.
pub(crate) fn maybe_bytes(value: Option<u64>) -> String {
    value.map_or_else(unknown, bytes)
}

/// `1.23 GiB (1,320,702,444)`.
pub(crate) fn exact_bytes(value: Option<u64>) -> String {
    match value {
        None => unknown(),
        Some(value) if value < 1024 => bytes(value),
        Some(value) => format!("{} ({})", bytes(value), grouped(value)),
    }
}

/// `+1.00 MiB/s`.
pub(crate) fn rate(per_second: f64) -> String {
    let sign = if per_second < 0.0 { '-' } else { '+' };
    // The conversion saturates, and turns NaN into 0.
    format!("{sign}{}/s", bytes(per_second.abs().round() as u64))
}

/// A duration in nanoseconds, as requests carry it. A duration that is too long for that becomes `u64::MAX`.
pub(crate) fn in_nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The word that stands for a number that is not known.
pub(crate) fn unknown() -> String {
    "unknown".to_owned()
}

/// Parses a duration and refuses zero.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text).map_err(|error| error.to_string())? {
        Duration::ZERO => Err("it must be more than zero".into()),
        duration => Ok(duration),
    }
}

/// Makes text from a process safe for a terminal: control characters, and characters that change the direction of
/// writing, are escaped.
pub(crate) fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Who made something: the name in a certificate, or else the id of a user of the daemon's machine.
pub(crate) fn maker(uid: u32, certificate: Option<&str>) -> String {
    match certificate {
        Some(name) => format!("{} (certificate)", plain(name)),
        None => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_made_something_has_a_name() {
        assert_eq!(maker(1000, None), "1000");
        assert_eq!(
            maker(u32::MAX, Some("ops\u{1b}")),
            "ops\\u{1b} (certificate)"
        );
    }

    #[test]
    fn what_is_not_known_is_said_to_be_that() {
        assert_eq!(exact_bytes(Some(1_320_702_444)), "1.23 GiB (1,320,702,444)");
        assert_eq!(exact_bytes(None), "unknown");
        assert_eq!(maybe_bytes(None), "unknown");
        assert_eq!(rate(-1_048_576.0), "-1.00 MiB/s");
        assert_eq!(rate(f64::NAN), "+0 B/s");
    }

    #[test]
    fn a_time_to_wait_is_not_zero() {
        assert!(parse_timeout("0s").is_err());
        assert_eq!(parse_timeout("2s"), Ok(Duration::from_secs(2)));
    }

    #[test]
    fn hostile_names_do_not_reach_the_terminal() {
        assert_eq!(plain("py\x1b[2Jthon\n"), "py\\u{1b}[2Jthon\\u{a}");
        assert_eq!(plain("häuser"), "häuser");
    }
}
