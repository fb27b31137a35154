//! Clock readings.

use rustix::time::{ClockId, clock_gettime};

fn nanoseconds(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    (t.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(t.tv_nsec as u64)
}

/// `CLOCK_BOOTTIME`, nanoseconds.
pub fn boot_ns() -> u64 {
    nanoseconds(ClockId::Boottime)
}

/// Between two readings of one clock, one of another.
type Sample = (u64, u64, u64);

/// How often a pair is tried for.
const TRIES: usize = 8;

/// (`CLOCK_BOOTTIME`, `CLOCK_REALTIME`), nanoseconds, of one moment: whoever is interrupted between reading
/// the one and the other may come back much later, so the closest of some readings is taken.
pub fn pair() -> (u64, u64) {
    let sample = || (boot_ns(), nanoseconds(ClockId::Realtime), boot_ns());
    closest((0..TRIES).map(|_| sample()))
}

fn closest(samples: impl Iterator<Item = Sample>) -> (u64, u64) {
    let closest = samples.min_by_key(|(before, _, after)| after.saturating_sub(*before));
    closest.map_or((0, 0), |(before, other, after)| {
        (before + after.saturating_sub(before) / 2, other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_reading_is_not_taken() {
        let samples = [
            (1_000, 500_100, 41_000_000),
            (41_000_100, 541_000_150, 41_000_200),
            (41_000_300, 541_090_000, 41_100_000),
        ];
        assert_eq!(closest(samples.into_iter()), (41_000_150, 541_000_150));
        assert_eq!(closest(std::iter::empty()), (0, 0));
    }
}
