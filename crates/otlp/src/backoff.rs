//! How long to wait before a request is sent again.

use std::time::Duration;

/// First wait.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait that is chosen here.
const LONGEST: Duration = Duration::from_secs(60);
/// Longest wait that a collector may ask for. A longer one is cut to this.
pub const LONGEST_ASKED: Duration = Duration::from_secs(3600);

/// Waits that double each time until something succeeds, each by chance between a half and one and a half of itself, so that many
/// daemons do not come back at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Something succeeded.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Something failed: the wait until it is tried again. `asked` is what the collector wants; what it asks for is kept, with up to a
    /// tenth more. `chance` is a number by chance.
    pub fn next(&mut self, asked: Option<Duration>, chance: u64) -> Duration {
        let part = (chance % 1000) as u32;
        if let Some(asked) = asked {
            let asked = asked.min(LONGEST_ASKED);
            self.failures = self.failures.saturating_add(1);
            return asked + asked / 10 * part / 1000;
        }
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let middle = doubled.min(LONGEST);
        middle / 2 + middle * part / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_again() {
        let mut backoff = Backoff::default();
        let middles: Vec<u64> = (0..9).map(|_| backoff.next(None, 500).as_secs()).collect();
        assert_eq!(middles, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        backoff.reset();
        assert_eq!(backoff.next(None, 0), FIRST / 2);
        assert!(Backoff::default().next(None, 999) < FIRST * 3 / 2);
    }

    #[test]
    fn what_the_collector_asks_for_is_kept() {
        let asked = Some(Duration::from_secs(7));
        for chance in [0, 500, 999, u64::MAX] {
            let wait = Backoff::default().next(asked, chance);
            assert!(wait >= Duration::from_secs(7) && wait < Duration::from_secs(8));
        }
        let forever = Some(Duration::from_secs(u64::MAX));
        assert_eq!(Backoff::default().next(forever, 0), LONGEST_ASKED);
    }
}
