//! Since when nothing has happened, and how long that has to be until rounds of checks are made less often.

use std::time::{Duration, Instant};

/// Time between two rounds of checks (ended processes, rules, allocators) when no order comes.
pub(super) const TICK: Duration = Duration::from_millis(200);
/// The same when nothing has happened for some time.
pub(super) const CALM_TICK: Duration = Duration::from_secs(1);
/// How long nothing must have happened for that. It is longer than a process takes to end once it has reported that it
/// does, and than a change may wait to be written down.
const LIVELY: Duration = Duration::from_secs(2);

/// Since when nothing has happened.
#[derive(Debug)]
pub(super) struct Calm {
    stirred: Instant,
    /// Number of records that all processes had tried to send at the last round.
    sent: u64,
}

impl Calm {
    pub(super) fn new(now: Instant) -> Calm {
        Calm {
            stirred: now,
            sent: 0,
        }
    }

    /// Something has happened.
    pub(super) fn stir(&mut self, now: Instant) {
        self.stirred = now;
    }

    /// `sent`: number of records that all processes have tried to send so far.
    pub(super) fn saw(&mut self, sent: u64, now: Instant) {
        if std::mem::replace(&mut self.sent, sent) != sent {
            self.stir(now);
        }
    }

    pub(super) fn is_long(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.stirred) > LIVELY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_calm_when_nobody_sends_and_nobody_asks() {
        let began = Instant::now();
        let mut calm = Calm::new(began);
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert!(!calm.is_long(at(2)));
        assert!(calm.is_long(at(3)));
        calm.saw(7, at(3));
        assert!(!calm.is_long(at(5)), "a record was sent");
        calm.saw(7, at(5));
        assert!(calm.is_long(at(6)));
        calm.stir(at(6));
        assert!(!calm.is_long(at(8)));
    }
}
