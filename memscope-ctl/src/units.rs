//! Bytes, durations and moments, for people.

use std::time::Duration;

/// Longest duration that is taken: a hundred years fit into nanoseconds.
const LONGEST: f64 = 100.0 * 366.0 * 86_400.0;

/// `1.23 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // What would be shown as 1024.00 belongs to the next unit.
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

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

/// A change in bytes, with its sign.
pub(crate) fn signed_bytes(change: i64) -> String {
    let sign = if change < 0 { "-" } else { "+" };
    format!("{sign}{}", bytes(change.unsigned_abs()))
}

/// `+1.00 MiB/s`.
pub(crate) fn rate(per_second: f64) -> String {
    let sign = if per_second < 0.0 { '-' } else { '+' };
    // Saturates, and turns what is not a number into 0.
    format!("{sign}{}/s", bytes(per_second.abs().round() as u64))
}

/// What stands for a number that is not known.
pub(crate) fn unknown() -> String {
    "unknown".to_owned()
}

/// `1,320,702,444`.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1.5 s`, `2 m 3 s`, `4 h 5 m`, `6 d 7 h`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = |big: u64, big_unit, small: u64, small_unit| {
        if small == 0 {
            format!("{big} {big_unit}")
        } else {
            format!("{big} {big_unit} {small} {small_unit}")
        }
    };
    match seconds {
        0 if duration < Duration::from_millis(1) => format!("{} µs", duration.as_micros()),
        0 => format!("{} ms", duration.as_millis()),
        1..60 => {
            let text = format!("{:.1}", duration.as_secs_f64());
            format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
        }
        60..3600 => parts(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => parts(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => parts(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

pub(crate) fn nanoseconds(ns: u64) -> String {
    duration(Duration::from_nanos(ns))
}

/// `2025-06-15 15:06:40 UTC`.
pub(crate) fn moment(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (year, month, day) = civil(seconds / 86_400);
    let rest = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest % 3600 / 60,
        rest % 60
    )
}

/// `06-15 15:06:40`: a moment of the last months, where there is little room. UTC, as all moments are.
pub(crate) fn short_moment(unix_ns: u64) -> String {
    let whole = moment(unix_ns);
    whole
        .get("2025-".len()..whole.len() - " UTC".len())
        .unwrap_or(&whole)
        .to_owned()
}

/// Days since 1970 as a date. Years begin in March here, so that the leap day is the last one.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// `500ms`, `5s`, `2m`, `1h`, `1d`; a bare number means seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        unit => return Err(format!("{unit:?} is no unit: use ms, s, m, h or d")),
    };
    let number = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let value = number.then(|| digits.parse::<f64>().ok()).flatten();
    let seconds = value.ok_or("write it as 500ms, 5s, 2m or 1h")? * scale;
    if seconds > LONGEST {
        return Err("that is more than a hundred years".into());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// `4096`, `64KiB`, `1MiB`, `2GiB`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => return Err(format!("{unit:?} is no unit: use KiB, MiB or GiB")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "write it as 4096, 64KiB or 1MiB".to_owned())?;
    number
        .checked_mul(1 << scale)
        .ok_or_else(|| "that is more than there are bytes".to_owned())
}

/// A duration that is not zero.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("it must be more than zero".into()),
        duration => Ok(duration),
    }
}

/// Text from a process, safe for a terminal: no control characters, nothing that turns the
/// direction of writing.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_short_moment_is_a_part_of_the_moment() {
        assert_eq!(moment(1_750_000_000_000_000_000), "2025-06-15 15:06:40 UTC");
        assert_eq!(short_moment(1_750_000_000_000_000_000), "06-15 15:06:40");
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.00 KiB");
        assert_eq!(bytes(1024 * 1024 - 1), "1.00 MiB");
        assert_eq!(bytes(1_320_702_444), "1.23 GiB");
        assert_eq!(bytes(u64::MAX), "16.00 EiB");
        assert_eq!(exact_bytes(Some(1_320_702_444)), "1.23 GiB (1,320,702,444)");
        assert_eq!(exact_bytes(None), "unknown");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
        assert_eq!(rate(-1_048_576.0), "-1.00 MiB/s");
        assert_eq!(rate(f64::NAN), "+0 B/s");
    }

    #[test]
    fn durations_both_ways() {
        for (text, ms) in [
            ("500ms", 500),
            ("5s", 5000),
            ("5", 5000),
            ("0.5", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "-5s",
            "5 parsecs",
            "5x",
            "1e9s",
            "nan",
            "inf",
            "1.2.3s",
            "99999999d",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_timeout("0s").is_err());
        assert_eq!(duration(Duration::from_millis(1500)), "1.5 s");
        assert_eq!(duration(Duration::from_millis(200)), "200 ms");
        assert_eq!(duration(Duration::from_secs(30)), "30 s");
        assert_eq!(duration(Duration::from_secs(123)), "2 m 3 s");
        assert_eq!(duration(Duration::from_secs(7200)), "2 h");
        assert_eq!(duration(Duration::from_secs(200_000)), "2 d 7 h");
    }

    #[test]
    fn moments() {
        assert_eq!(moment(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(moment(951_782_400_000_000_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(moment(1_750_000_000_000_000_000), "2025-06-15 15:06:40 UTC");
        assert_eq!(moment(u64::MAX), "2554-07-21 23:34:33 UTC");
    }

    #[test]
    fn hostile_names_do_not_reach_the_terminal() {
        assert_eq!(plain("py\x1b[2Jthon\n"), "py\\u{1b}[2Jthon\\u{a}");
        assert_eq!(plain("häuser"), "häuser");
    }
}
