//! How much of the tracer's time one user's processes may take by mapping code, by forks and by executing programs.
//!
//! A process decides how often it maps code or has children, and each time the tracer looks for functions to probe. Without a limit, one
//! process that does so in a loop would keep the tracer from everybody else.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A user's processes may take one part in `PART` of the tracer's time.
const PART: u32 = 2;
/// Time that a user who took none before may take at once. Loading PyTorch takes a tenth of it.
const BURST: Duration = Duration::from_secs(2);

/// The time that is left to each user.
#[derive(Debug)]
pub(super) struct Shares {
    /// See [`BURST`].
    burst: Duration,
    left: HashMap<u32, Left>,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares {
            burst: wanted_by_a_test().unwrap_or(BURST),
            left: HashMap::new(),
        }
    }
}

/// For tests: in a build with debug assertions, the variable `MEMSCOPE_TEST_BURST_MS` is the burst in milliseconds. With a short one, a few
/// children wait as otherwise only hundreds do.
fn wanted_by_a_test() -> Option<Duration> {
    let asked = cfg!(debug_assertions).then(|| std::env::var("MEMSCOPE_TEST_BURST_MS").ok());
    asked.flatten()?.parse().ok().map(Duration::from_millis)
}

#[derive(Debug)]
struct Left {
    /// Time that was taken and has not been given back yet.
    owed: Duration,
    at: Instant,
}

impl Left {
    fn owed(&self, now: Instant) -> Duration {
        let back = now.saturating_duration_since(self.at) / PART;
        self.owed.saturating_sub(back)
    }
}

impl Shares {
    /// Whether the user has time left now.
    pub(super) fn has_time(&self, uid: u32, now: Instant) -> bool {
        let left = self.left.get(&uid);
        left.is_none_or(|left| left.owed(now) < self.burst)
    }

    /// Counts time that was taken for a process of the user until `now`.
    pub(super) fn took(&mut self, uid: u32, time: Duration, now: Instant) {
        // Users who owe nothing need no entry.
        self.left.retain(|_, left| !left.owed(now).is_zero());
        let left = self.left.entry(uid).or_insert(Left {
            owed: Duration::ZERO,
            at: now,
        });
        left.owed = left.owed(now) + time;
        left.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_all_waits_and_others_do_not() {
        let mut shares = Shares::default();
        let second = Duration::from_secs(1);
        let began = Instant::now();
        let mut now = began;
        let mut took = Duration::ZERO;
        // A user who has always something to be done.
        for _ in 0..10_000 {
            now += Duration::from_millis(10);
            if shares.has_time(7, now) {
                let time = Duration::from_millis(10);
                now += time;
                took += time;
                shares.took(7, time, now);
            }
            assert!(shares.has_time(8, now));
        }
        let most = now.duration_since(began) / PART + BURST;
        assert!(took <= most + second / 100 && took > most / 2, "{took:?}");
        // A single piece of work may take longer than what is left.
        shares.took(9, 10 * second, now);
        assert!(!shares.has_time(9, now + 15 * second));
        assert!(shares.has_time(9, now + 17 * second));
        // Who has owed nothing for long is forgotten.
        shares.took(10, second, now + 1000 * second);
        assert_eq!(shares.left.len(), 1);
    }
}
