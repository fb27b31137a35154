//! Waiting for conditions, never for time.

use std::time::{Duration, Instant};

/// For what should be quick.
pub const SHORT: Duration = Duration::from_secs(20);
/// For what may have to load PyTorch on a busy machine.
pub const LONG: Duration = Duration::from_secs(120);

const PAUSE: Duration = Duration::from_millis(15);

/// Tries until it gives something; panics with what `wanted` says after `limit`.
#[track_caller]
pub fn until<T>(limit: Duration, wanted: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {wanted}");
        std::thread::sleep(PAUSE);
    }
}

/// Tries until it is true, for [`SHORT`].
#[track_caller]
pub fn eventually(wanted: &str, mut attempt: impl FnMut() -> bool) {
    until(SHORT, wanted, || attempt().then_some(()));
}
