//! Bytes, durations, moments, patterns and names of functions as people write and read them.
//!
//! Owns: the only formatter, the only parser, the only calendar and the only demangler of the project. Refuses: what the numbers mean.

mod demangle;
mod moment;
mod own;
mod parse;
mod pattern;

pub use demangle::demangle;
pub use moment::{in_utc, moment, moment_ms, short_moment};
pub use own::{is_compiled, is_own};
pub use parse::{UnitError, byte_unit, parse_bytes, parse_duration, scaled, time_unit_ns};
pub use pattern::fits;

use std::time::Duration;

/// A size with two digits after the decimal point: `1.23 GiB`; below 1 KiB without them: `512 B`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    // A value that would be shown as 1024.00 is shown in the next unit.
    while value >= 1023.995
        && let Some(next) = units.next()
    {
        value /= 1024.0;
        unit = Some(next);
    }
    format!("{value:.2} {}", unit.unwrap_or(&"B"))
}

/// A change in bytes with its sign: `+1.00 MiB`, `-1.00 MiB`.
pub fn signed_bytes(change: i64) -> String {
    let sign = if change < 0 { "-" } else { "+" };
    format!("{sign}{}", bytes(change.unsigned_abs()))
}

/// A number with commas between its thousands: `1,320,702,444`.
pub fn grouped(value: u64) -> String {
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

/// A duration in its two largest units: `200 ms`, `1.5 s`, `2 m 3 s`, `4 h 5 m`, `6 d 7 h`.
pub fn duration(duration: Duration) -> String {
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

/// A duration that is given in nanoseconds, as [`duration`] writes it.
pub fn nanoseconds(ns: u64) -> String {
    duration(Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_two_digits() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1024 * 1024 - 1, "1.00 MiB"),
            (1_320_702_444, "1.23 GiB"),
            (u64::MAX, "16.00 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(signed_bytes(-(1 << 20)), "-1.00 MiB");
        assert_eq!(signed_bytes(2048), "+2.00 KiB");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        for (ms, text) in [
            (200, "200 ms"),
            (1500, "1.5 s"),
            (30_000, "30 s"),
            (123_000, "2 m 3 s"),
            (7_200_000, "2 h"),
            (200_000_000, "2 d 7 h"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
        assert_eq!(nanoseconds(1500), "1 µs");
    }
}
