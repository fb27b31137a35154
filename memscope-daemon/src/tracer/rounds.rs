//! Time between two rounds of checks. When nothing happens, they are made less often.
//!
//! What must not wait comes as an order: a question, a process that maps code, forks, executes an image or ends.

use std::time::{Duration, Instant};

use super::calm::{CALM_TICK, TICK};
use super::{Order, RESCAN, RULE_SEARCH, Tracer};

impl Order {
    /// Whether more may follow from it soon. A question changes nothing; a reading that it begins is waited for.
    pub(super) fn stirs(&self) -> bool {
        match self {
            Order::Attach { .. }
            | Order::Detach { .. }
            | Order::Policy(_)
            | Order::Read { .. }
            | Order::Keeper(_)
            | Order::Stop { .. } => true,
            Order::Refresh { .. } | Order::GoRound | Order::Status(_) => false,
        }
    }
}

impl Tracer {
    /// Notices whether processes have sent records since the last round.
    pub(super) fn notice_activity(&mut self) {
        let slots = self.traced.values().map(|traced| traced.slot.sequence());
        self.calm
            .saw(slots.fold(0, u64::wrapping_add), Instant::now());
    }

    /// Whether nothing has happened for some time, and nothing is waited for.
    pub(super) fn is_calm(&self) -> bool {
        let waits = !self.attaching.is_empty()
            || !self.refreshing.is_empty()
            || !self.waiting.is_empty()
            || self.keeping.failed
            || self.traced.values().any(|one| one.reading || one.mapped);
        self.calm.is_long(Instant::now()) && !waits
    }

    /// Time until the next round if no order comes.
    pub(super) fn pause(&self) -> Duration {
        if !self.waiting.is_empty() {
            return Duration::ZERO;
        }
        if self.traced.is_empty() && !self.looks_for_processes() {
            return Duration::from_secs(60);
        }
        if !self.is_calm() {
            return TICK;
        }
        let now = Instant::now();
        let readings = self.traced.values();
        let readings = readings.filter(|one| one.reads_every().is_some());
        let mut due: Vec<Instant> = readings.map(|one| one.next_read).collect();
        due.push(self.last_rescan + RESCAN);
        if !self.rules.is_empty() {
            due.push(self.last_rule_search + RULE_SEARCH);
        }
        if !self.ruling.is_empty() {
            due.push(self.ruling.next_search);
        }
        let due = due.into_iter().map(|at| at.saturating_duration_since(now));
        // A thread that wakes at the very moment finds that it is not over.
        let soon = due.min().unwrap_or(CALM_TICK) + Duration::from_millis(1);
        soon.min(CALM_TICK)
    }
}
