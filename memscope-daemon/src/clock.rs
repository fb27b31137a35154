//! Readings of the system's clocks.

use rustix::time::{ClockId, clock_gettime};

fn nanoseconds(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    (t.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(t.tv_nsec as u64)
}

/// The present time of `CLOCK_BOOTTIME`, in nanoseconds.
pub fn boot_ns() -> u64 {
    nanoseconds(ClockId::Boottime)
}

/// A reading of one clock, then a reading of another clock, then a second reading of the first clock.
type Sample = (u64, u64, u64);

/// Number of samples from which a pair is chosen.
const TRIES: usize = 8;

/// The times of `CLOCK_BOOTTIME` and `CLOCK_REALTIME` at one moment, in nanoseconds. The thread may be interrupted
/// for a long time between two readings, so of several samples the one that took the shortest time is used.
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
