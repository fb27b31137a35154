//! Conversion of boot time to real time.
//!
//! Owns: the pairs of clock readings that came as events. Refuses: to read a clock.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of pairs kept. The daemon reads a pair every ten seconds or so; old pairs date old entries of the trace.
const KEPT: usize = 1024;

/// Pairs of clock readings, (boot, real) in nanoseconds, in the order in which they came.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Clock {
    pairs: VecDeque<(u64, u64)>,
}

impl Clock {
    pub(crate) fn note(&mut self, boot_ns: u64, unix_ns: u64) {
        if let Some(last) = self.pairs.back_mut()
            && boot_ns <= last.0
        {
            // Pairs out of order would break the binary search. The last pair takes over the newest real time instead.
            *last = (last.0, unix_ns.saturating_add(last.0 - boot_ns));
            return;
        }
        if self.pairs.len() == KEPT {
            self.pairs.pop_front();
        }
        self.pairs.push_back((boot_ns, unix_ns));
    }

    /// Nanoseconds since 1970 at `boot_ns`, by the last pair read before it; 0 without any pair.
    pub(crate) fn unix_ns(&self, boot_ns: u64) -> u64 {
        let after = self.pairs.partition_point(|pair| pair.0 <= boot_ns);
        let Some(&(boot, unix)) = self.pairs.get(after.saturating_sub(1)) else {
            return 0;
        };
        let moved = i128::from(unix) + i128::from(boot_ns) - i128::from(boot);
        u64::try_from(moved).unwrap_or(0)
    }

    /// Boot time at a real time, by the last pair from before it; `None` without any pair.
    pub(crate) fn boot_ns(&self, unix_ns: u64) -> Option<u64> {
        self.known_boot_ns(unix_ns).or_else(|| {
            let (boot, unix) = self.pairs.front()?;
            Some(boot.saturating_sub(unix.saturating_sub(unix_ns)))
        })
    }

    /// The same; `None` also if all pairs are from after it.
    pub(crate) fn known_boot_ns(&self, unix_ns: u64) -> Option<u64> {
        let at = self.pairs.iter().rposition(|pair| pair.1 <= unix_ns)?;
        let (boot, unix) = self.pairs.get(at)?;
        let moved = boot.saturating_add(unix_ns - unix);
        // Where the clock was set forward, the times that it left out are the moment at which it was.
        let next = self.pairs.get(at + 1);
        Some(next.map_or(moved, |next| moved.min(next.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_earlier_pair() {
        let mut clock = Clock::default();
        assert_eq!(clock.unix_ns(5), 0);
        clock.note(100, 10_100);
        clock.note(200, 90_200); // the real-time clock was stepped
        assert_eq!(clock.unix_ns(50), 10_050);
        assert_eq!(clock.unix_ns(150), 10_150);
        assert_eq!(clock.unix_ns(250), 90_250);
        assert_eq!(Clock::default().boot_ns(7), None);
        for boot in [50, 150, 250] {
            assert_eq!(clock.boot_ns(clock.unix_ns(boot)), Some(boot));
        }
        assert_eq!(clock.known_boot_ns(10_099), None);
        assert_eq!(clock.known_boot_ns(10_150), Some(150));
        // These times never were.
        assert_eq!(clock.boot_ns(50_000), Some(200));
    }
}
