//! Moments as text, always in UTC.

/// A moment, given in nanoseconds since 1970, in a format of `strftime`.
pub fn in_utc(unix_ns: u64, format: &str) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(unix_ns)).map_or_else(
        |_| format!("{unix_ns} ns after 1970"),
        |time| time.strftime(format).to_string(),
    )
}

/// A moment, given in nanoseconds since 1970: `2025-06-15 15:06:40 UTC`.
pub fn moment(unix_ns: u64) -> String {
    in_utc(unix_ns, "%Y-%m-%d %H:%M:%S UTC")
}

/// A moment, given in nanoseconds since 1970, without the year, for places with little room: `06-15 15:06:40`.
pub fn short_moment(unix_ns: u64) -> String {
    in_utc(unix_ns, "%m-%d %H:%M:%S")
}

/// A moment, given in nanoseconds since 1970, to the millisecond and as `--at` takes it: `2026-11-22T08:12:31.250Z`.
pub fn moment_ms(unix_ns: u64) -> String {
    in_utc(unix_ns, "%Y-%m-%dT%H:%M:%S%.3fZ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_in_utc() {
        assert_eq!(moment(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(moment(951_782_400_000_000_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(moment(1_750_000_000_000_000_000), "2025-06-15 15:06:40 UTC");
        assert_eq!(moment(u64::MAX), "2554-07-21 23:34:33 UTC");
        assert_eq!(short_moment(1_750_000_000_000_000_000), "06-15 15:06:40");
        assert_eq!(
            moment_ms(1_750_000_000_250_000_000),
            "2025-06-15T15:06:40.250Z"
        );
    }
}
