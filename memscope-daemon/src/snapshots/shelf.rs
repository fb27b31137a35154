//! What has become of each firing: the counts of each trigger's snapshots, and those that wait to be written.
//!
//! Both change together, so that whoever writes them down finds each firing once: it waits, or it is counted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memscope_rpc::TriggerStatus;
use serde::{Deserialize, Serialize};

use super::store::Store;
use super::waiting::Waiting;

/// Why there is no snapshot of a firing: the daemon was killed before it was written, and it could not be taken again.
pub(super) const KILLED: &str = "killed";

/// Counts of a trigger's snapshots: how many were written, and how many were skipped for each cause.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    written: u64,
    last_unix_ns: Option<u64>,
    skipped: BTreeMap<String, u64>,
}

impl Tally {
    fn wrote(&mut self, unix_ns: u64) {
        self.written += 1;
        self.last_unix_ns = Some(unix_ns);
    }

    fn skip(&mut self, cause: &str) {
        *self.skipped.entry(cause.to_owned()).or_default() += 1;
    }
}

/// The counts of all triggers, by their numbers.
pub type Tallies = BTreeMap<u64, Tally>;

/// What has become of the firings of all triggers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// The counts of each trigger's snapshots.
    pub tallies: Tallies,
    /// Those that are not written yet, in the order in which they will be.
    pub waiting: VecDeque<Waiting>,
}

impl Counts {
    fn of(&mut self, trigger: u64) -> &mut Tally {
        self.tallies.entry(trigger).or_default()
    }

    /// What has become of the firing that waits longest. If none waits, it was given up, and is counted.
    fn done(&mut self, note: impl FnOnce(&mut Tally)) {
        if let Some(one) = self.waiting.pop_front() {
            note(self.of(one.firing.trigger));
        }
    }
}

/// The kept snapshots and each trigger's counts, shared by the writer, the keeper and the server.
#[derive(Clone)]
pub struct Shelf {
    store: Arc<Mutex<Store>>,
    counts: Arc<Mutex<Counts>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shelf {
    /// With what an earlier daemon has left. What waited then waits again, unless it is in the store. The first that is not, and that was
    /// taken again before, is given up and counted: they are taken in this order, so it is the one over which that daemon ended.
    /// No snapshot can end one daemon after the other.
    pub(super) fn new(store: Store, left: Counts) -> (Shelf, Vec<Waiting>) {
        let mut counts = Counts {
            tallies: left.tallies,
            waiting: VecDeque::new(),
        };
        let mut given_up = Vec::new();
        for one in left.waiting {
            if store.has(&one) {
                counts.of(one.firing.trigger).wrote(one.as_of.unix_ns);
            } else if one.again && given_up.is_empty() && counts.waiting.is_empty() {
                counts.of(one.firing.trigger).skip(KILLED);
                given_up.push(one);
            } else {
                counts.waiting.push_back(Waiting { again: true, ..one });
            }
        }
        let shelf = Shelf {
            store: Arc::new(Mutex::new(store)),
            counts: Arc::new(Mutex::new(counts)),
        };
        (shelf, given_up)
    }

    /// Locks the kept snapshots. The lock is held while names of files change, but not while a snapshot is written.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// Adds the counts of a trigger's snapshots to its status.
    pub fn complete(&self, status: &mut TriggerStatus) {
        if let Some(tally) = lock(&self.counts).tallies.get(&status.trigger) {
            status.written = tally.written;
            status.last_unix_ns = tally.last_unix_ns;
            let skipped = tally.skipped.iter();
            status
                .skipped
                .extend(skipped.map(|(cause, count)| (cause.clone(), *count)));
        }
    }

    /// Forgets the counts of a trigger that was removed.
    pub fn forget(&self, trigger: u64) {
        lock(&self.counts).tallies.remove(&trigger);
    }

    /// The counts of the triggers that are there, and all that waits. The counts of other triggers, which have ended, are forgotten.
    pub fn counts(&self, is_there: impl Fn(u64) -> bool) -> Counts {
        let mut counts = lock(&self.counts);
        counts.tallies.retain(|trigger, _| is_there(*trigger));
        counts.clone()
    }

    /// How many wait.
    pub(super) fn waits(&self) -> usize {
        lock(&self.counts).waiting.len()
    }

    /// All that wait.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        lock(&self.counts).waiting.iter().cloned().collect()
    }

    /// One more waits.
    pub(super) fn waits_for(&self, one: Waiting) {
        lock(&self.counts).waiting.push_back(one);
    }

    /// Counts a firing for which nothing waits.
    pub(super) fn skip(&self, trigger: u64, cause: &'static str) {
        lock(&self.counts).of(trigger).skip(cause);
    }

    /// The one that waits longest is written.
    pub(super) fn wrote(&self, unix_ns: u64) {
        lock(&self.counts).done(|tally| tally.wrote(unix_ns));
    }

    /// The one that waits longest will not be written.
    pub(super) fn skipped(&self, cause: &'static str) {
        lock(&self.counts).done(|tally| tally.skip(cause));
    }

    /// Counts all that wait as failed, and gives how many they are.
    pub(super) fn give_up(&self) -> usize {
        let mut counts = lock(&self.counts);
        let count = counts.waiting.len();
        while !counts.waiting.is_empty() {
            counts.done(|tally| tally.skip("failed"));
        }
        count
    }
}
