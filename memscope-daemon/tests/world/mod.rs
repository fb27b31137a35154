//! The ledger and the triggers over a small simulated allocator, which is that of the ledger's tests.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

#[path = "../../../crates/ledger/tests/ledger/common/mod.rs"]
pub mod common;

use common::*;
use memscope_daemon::triggers::{Firing, Triggers};
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_rpc::{Caller, TriggerStatus};

pub const ROOT: Caller = caller(0);

pub const fn caller(uid: u32) -> Caller {
    Caller::local(uid, uid, None)
}

/// The ledger and the triggers, fed as the keeper feeds them.
pub struct World {
    pub ledger: Ledger,
    pub triggers: Triggers,
}

impl World {
    pub fn new(conditions: &[&str], pause_ns: u64) -> World {
        let conditions: Vec<_> = conditions.iter().map(|c| c.parse().unwrap()).collect();
        World {
            ledger: Ledger::new(LedgerConfig::default()),
            triggers: Triggers::new(&conditions, pause_ns),
        }
    }

    /// A world with the process of the simulated allocator, watched from its start on.
    pub fn with(conditions: &[&str]) -> World {
        let mut world = World::new(conditions, 0);
        world.attach(P, 4242, 1, 0, true);
        world
    }

    pub fn attach(&mut self, p: ProcessHandle, pid: u32, start: u64, uid: u32, from_start: bool) {
        let mut facts = facts(pid, Level::Trace, from_start);
        facts.start_ticks = start;
        facts.uids = [uid; 3];
        let placed = Placement {
            pool_seen: true,
            ..Placement::default()
        };
        for body in [
            Body::Attached(facts),
            Body::Backend(Backend::Native),
            Body::Placed(Box::new(placed)),
        ] {
            self.after(&event(p, SECOND, body));
        }
    }

    pub fn after(&mut self, event: &Event) -> Vec<Firing> {
        let mut due = Vec::new();
        self.ledger.apply(event);
        self.triggers.after(event, &self.ledger, &mut due);
        due
    }

    pub fn tick(&mut self, now_ns: u64) -> Vec<Firing> {
        let mut due = Vec::new();
        self.triggers.tick(now_ns, &self.ledger, &mut due);
        due
    }

    /// What fires in everything that the simulated process did since the last call.
    pub fn feed(&mut self, sim: &mut Sim) -> Vec<Firing> {
        let events = std::mem::take(&mut sim.out);
        events.iter().flat_map(|event| self.after(event)).collect()
    }

    /// The same for one call of the allocator. When something fires, the picture must have the blocks as after the
    /// call.
    #[track_caller]
    pub fn feed_call(&mut self, sim: &mut Sim) -> Vec<Firing> {
        let mut fired = Vec::new();
        for event in std::mem::take(&mut sim.out) {
            let due = self.after(&event);
            if !due.is_empty() {
                let snapshot = self.ledger.snapshot(P, as_of(event.time_ns)).unwrap();
                for device in 0..2 {
                    let segments = snapshot.segments.iter().filter(|s| s.device == device);
                    let blocks = segments.flat_map(|s| &s.blocks);
                    let active = blocks.filter(|b| b.state == BlockState::Active);
                    let sum: u64 = active.map(|b| b.size).sum();
                    assert_eq!(sum, sim.allocated(device), "{due:?}");
                }
            }
            fired.extend(due);
        }
        fired
    }

    pub fn status(&self, number: u64) -> TriggerStatus {
        let all = self.triggers.list();
        all.into_iter().find(|t| t.trigger == number).unwrap()
    }
}
