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

/// (`CLOCK_BOOTTIME`, `CLOCK_REALTIME`), nanoseconds, read one right after the other.
pub fn pair() -> (u64, u64) {
    (boot_ns(), nanoseconds(ClockId::Realtime))
}
