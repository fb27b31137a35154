//! Sizes and durations as people write them.

use std::time::Duration;

/// Longest duration that is accepted, a hundred years, which fits into 64 bits of nanoseconds.
const LONGEST_NS: u64 = 100 * 366 * 86_400 * 1_000_000_000;
/// Most digits after the decimal point.
const FRACTION: usize = 9;

/// Why a text is not a size or not a duration. The messages are for users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The letters after the number are not a unit of bytes.
    #[error("{0:?} is no unit of bytes: B, KiB, MiB, GiB, TiB, KB, MB, GB and TB are")]
    NoByteUnit(String),
    /// The letters after the number are not a unit of time.
    #[error("{0:?} is no unit of time: ns, us, ms, s, m, h and d are")]
    NoTimeUnit(String),
    /// The text before the unit is not a number (of a size).
    #[error("write it as 4096, 64KiB or 1.5GiB")]
    NoSize,
    /// The text before the unit is not a number (of a duration).
    #[error("write it as 500ms, 5s, 2m or 1h")]
    NoDuration,
    /// The size does not fit into 64 bits.
    #[error("that is more than there are bytes")]
    TooManyBytes,
    /// The duration is longer than a hundred years.
    #[error("that is more than a hundred years")]
    TooLong,
}

/// Bytes in a unit: `KiB` is 1024, `KB` 1000. Case does not matter. `None` if the word is not a unit of bytes.
pub fn byte_unit(word: &str) -> Option<u64> {
    Some(match word.to_ascii_lowercase().as_str() {
        "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

/// Nanoseconds in a unit. Case does not matter. `None` if the word is not a unit of time.
pub fn time_unit_ns(word: &str) -> Option<u64> {
    Some(match word.to_ascii_lowercase().as_str() {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    })
}

/// A decimal number such as `1.5` times a unit, rounded down. `None` if the text is not a number, has more than nine
/// digits after the decimal point, or if the product does not fit into 64 bits.
pub fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| {
        let is_number = !text.is_empty() && text.len() <= 20;
        (is_number && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse::<u128>().ok())
            .flatten()
    };
    if fraction.len() > FRACTION {
        return None;
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let value = digits(whole)?
        .checked_mul(scale)?
        .checked_add(digits(fraction)?)?
        .checked_mul(u128::from(unit))?
        / scale;
    u64::try_from(value).ok()
}

/// Splits a text into a number and the letters after it.
fn split(text: &str) -> (&str, &str) {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    (number, text.get(number.len()..).unwrap_or_default())
}

fn is_number(text: &str) -> bool {
    scaled(text, 0).is_some()
}

/// A size such as `4096`, `64KiB`, `1.5GiB` or `80GB`, in bytes. A bare number means bytes.
///
/// # Errors
/// The text is not a size, or the size does not fit into 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text);
    let unit = match unit {
        "" => 1,
        unit => byte_unit(unit).ok_or_else(|| UnitError::NoByteUnit(unit.to_owned()))?,
    };
    match scaled(number, unit) {
        Some(bytes) => Ok(bytes),
        None if is_number(number) => Err(UnitError::TooManyBytes),
        None => Err(UnitError::NoSize),
    }
}

/// A duration such as `500ms`, `5s`, `2m`, `1.5h` or `1d`. A bare number means seconds.
///
/// # Errors
/// The text is not a duration, or the duration is longer than a hundred years.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split(text);
    let unit = match unit {
        "" => 1_000_000_000,
        unit => time_unit_ns(unit).ok_or_else(|| UnitError::NoTimeUnit(unit.to_owned()))?,
    };
    match scaled(number, unit) {
        Some(ns) if ns <= LONGEST_NS => Ok(Duration::from_nanos(ns)),
        None if !is_number(number) => Err(UnitError::NoDuration),
        _ => Err(UnitError::TooLong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("64KiB", 64 << 10),
            ("1.5gib", 3 << 29),
            ("80GB", 80_000_000_000),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for (text, why) in [
            ("", UnitError::NoSize),
            ("MiB", UnitError::NoSize),
            ("-1MiB", UnitError::NoSize),
            ("1.2.3", UnitError::NoSize),
            ("1 MiB", UnitError::NoSize),
            ("1M", UnitError::NoByteUnit("M".into())),
            ("18446744073709551616", UnitError::TooManyBytes),
            ("99999999999TiB", UnitError::TooManyBytes),
        ] {
            assert_eq!(parse_bytes(text), Err(why), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in [
            ("500ms", 500),
            ("5s", 5000),
            ("5", 5000),
            ("0.5", 500),
            ("2m", 120_000),
            ("2min", 120_000),
            ("1h", 3_600_000),
            ("1.5d", 129_600_000),
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
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(parse_duration("99999999d"), Err(UnitError::TooLong));
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_no_panic(text in "\\PC{0,12}") {
            let _ = parse_bytes(&text);
            let _ = parse_duration(&text);
        }

        #[test]
        fn whole_numbers_of_a_unit_are_exact(number in 0u64..1 << 23, unit in 0usize..9) {
            let unit = ["B", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB"][unit];
            let text = format!("{number}{unit}");
            prop_assert_eq!(parse_bytes(&text), Ok(number * byte_unit(unit).unwrap_or(0)));
        }
    }
}
