//! How long the keeper may sleep.
//!
//! Owns: since when nothing has come, and whether the programs were asked to wake the keeper with the next record. While records
//! come it looks at the ring at a short interval, since waking it would cost the traced program far more than a record. When nothing
//! has come for a while it has the next record of each process wake it, and sleeps longer. Free memory is given back once when
//! nobody has asked anything either for ten seconds. Refuses: to sleep, which the keeper's thread does.

use std::time::Duration;

/// How long records may stay in the ring while nobody asks.
pub(super) const TICK: Duration = Duration::from_millis(40);
/// How long nothing must have come, in nanoseconds, before the keeper sleeps longer.
const QUIET_NS: u64 = 1_000_000_000;
/// The longest sleep. It is woken by whatever comes; what it looks at by time while nothing comes may wait as long.
const NAP: Duration = Duration::from_secs(5);
/// The same beside programs that an earlier daemon has left: those of an earlier build do not wake it.
const NAP_BESIDE_LEFT: Duration = Duration::from_secs(1);
/// How long nothing must have been done, in nanoseconds, before free memory is given back.
const TRIM_NS: u64 = 10_000_000_000;

/// What the keeper knows about its rest.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Position up to which the ring was read when it was last looked.
    position: u64,
    /// When something came last.
    stirred_ns: u64,
    /// The programs were loaded by an earlier daemon.
    pub(super) programs_were_left: bool,
    /// The programs were asked to wake the keeper.
    pub(super) asked_to_wake: bool,
    /// What was done when it was last looked, and since when no more was.
    done: (u64, u64),
    /// Free memory was given back since then.
    trimmed: bool,
}

impl Rest {
    /// Something came that may be followed by records.
    pub(super) fn stir(&mut self, now_ns: u64) {
        self.stirred_ns = now_ns;
    }

    /// Whether nothing has come for so long that the keeper may sleep longer. `position`: up to where the ring was read.
    pub(super) fn is_quiet(&mut self, now_ns: u64, position: u64) -> bool {
        if position != self.position {
            self.position = position;
            self.stir(now_ns);
        }
        now_ns.saturating_sub(self.stirred_ns) >= QUIET_NS
    }

    /// Whether free memory is to be given back now: nothing was done for a while, and it was not given back yet. `done`: bytes of the ring
    /// and commands so far.
    pub(super) fn may_trim(&mut self, now_ns: u64, done: u64) -> bool {
        if self.done.0 != done {
            self.done = (done, now_ns);
            self.trimmed = false;
        }
        let is_due = now_ns.saturating_sub(self.done.1) >= TRIM_NS;
        is_due && !std::mem::replace(&mut self.trimmed, true)
    }

    /// How long the keeper may sleep now. `is_empty`: nothing is in the ring that was not read.
    pub(super) fn pause(&self, is_empty: bool) -> Duration {
        match (self.asked_to_wake && is_empty, self.programs_were_left) {
            (false, _) => TICK,
            (true, false) => NAP,
            (true, true) => NAP_BESIDE_LEFT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sleeps_longer_only_after_a_quiet_second_and_when_it_will_be_woken() {
        let mut rest = Rest::default();
        let second = 1_000_000_000;
        assert!(!rest.is_quiet(5 * second, 100), "records came");
        assert!(!rest.is_quiet(6 * second - 1, 100));
        assert!(rest.is_quiet(6 * second, 100));
        assert_eq!(rest.pause(true), TICK, "nobody would wake it");
        rest.asked_to_wake = true;
        assert_eq!(rest.pause(true), NAP);
        rest.programs_were_left = true;
        assert_eq!(rest.pause(true), NAP_BESIDE_LEFT);
        assert_eq!(rest.pause(false), TICK, "a record came meanwhile");
        assert!(!rest.is_quiet(7 * second, 164), "records came");
        assert!(rest.is_quiet(8 * second, 164));
        rest.stir(8 * second);
        assert!(
            !rest.is_quiet(8 * second + 1, 164),
            "a process was attached"
        );
    }

    #[test]
    fn memory_is_given_back_once_ten_seconds_after_the_work() {
        let mut rest = Rest::default();
        let looks = [
            (12, 5, false),
            (21, 5, false),
            (22, 5, true),
            (23, 5, false),
            (40, 5, false),
            (41, 9, false),
            (46, 12, false),
            (52, 12, false),
            (56, 12, true),
            (90, 12, false),
        ];
        for (second, done, expected) in looks {
            let given_back = rest.may_trim(second * 1_000_000_000, done);
            assert_eq!(given_back, expected, "at second {second}");
        }
    }
}
