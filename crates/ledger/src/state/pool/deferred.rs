//! Trace entries whose device is not known yet.
//!
//! Owns: the entries of allocator objects whose device PyTorch 2.1 does not name, until a report on the same thread for
//! the same block names it. Refuses: to hold many.

use crate::event::{PoolReport, PoolTrace, TraceAction};
use crate::fast_hash::FastMap;
use crate::state::labels::LabelSet;
use crate::state::stacks::StackIndex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of entries held for one allocator object.
const HELD: usize = 4096;
/// Maximum number of entries held for one allocator object that only say that a snapshot was taken.
const ASKED: usize = 64;
/// Maximum number of allocator objects; there is one per device.
const OBJECTS: usize = 256;

/// One entry with its header.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) time_ns: u64,
    pub(crate) tid: u32,
    pub(crate) stack: StackIndex,
    /// The labels of what the thread allocated then.
    #[serde(default)]
    pub(crate) labels: LabelSet,
    pub(crate) trace: PoolTrace,
}

impl Held {
    /// It only says that a snapshot was taken, and nothing of memory.
    fn only_asks(&self) -> bool {
        self.trace.action == TraceAction::Snapshot
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Deferred {
    devices: FastMap<u64, i32>,
    held: FastMap<u64, VecDeque<Held>>,
    dropped: u64,
    /// Number of entries that only said that a snapshot was taken, and were dropped.
    #[serde(default)]
    asked_before: u64,
}

impl Deferred {
    /// The device of an allocator object, where it is known.
    pub(crate) fn device(&self, allocator: u64) -> Option<i32> {
        self.devices.get(&allocator).copied()
    }

    /// Learns the device of an allocator object; returns the entries that waited for it.
    pub(crate) fn learn(&mut self, allocator: u64, device: i32) -> VecDeque<Held> {
        if self.devices.len() < OBJECTS {
            self.devices.insert(allocator, device);
        }
        self.held.remove(&allocator).unwrap_or_default()
    }

    /// Holds an entry. One that only says that a snapshot was taken never counts as dropped: a program may take any number of them.
    pub(crate) fn hold(&mut self, held: Held) {
        if self.held.len() >= OBJECTS && !self.held.contains_key(&held.trace.allocator) {
            self.drop_one(&held);
            return;
        }
        let queue = self.held.entry(held.trace.allocator).or_default();
        let is_full = queue.len() >= HELD + ASKED;
        let gone = if held.only_asks() {
            let mut asked = (0..queue.len()).filter(|at| queue[*at].only_asks());
            let oldest = asked.next();
            if is_full && oldest.is_none() {
                // It takes no place of an entry of memory.
                self.asked_before += 1;
                return;
            }
            oldest.filter(|_| is_full || 1 + asked.count() >= ASKED)
        } else {
            is_full.then_some(0)
        };
        let gone = gone.and_then(|at| queue.remove(at));
        queue.push_back(held);
        if let Some(gone) = gone {
            self.drop_one(&gone);
        }
    }

    fn drop_one(&mut self, held: &Held) {
        let count = match held.only_asks() {
            true => &mut self.asked_before,
            false => &mut self.dropped,
        };
        *count += 1;
    }

    /// The allocator object whose device a report names: the last entry that is held for the thread is about the same
    /// block.
    pub(crate) fn told_by(&self, tid: u32, report: &PoolReport) -> Option<u64> {
        if self.held.is_empty() {
            return None;
        }
        self.held.iter().find_map(|(&allocator, queue)| {
            let last = queue.iter().rev().find(|held| {
                held.tid == tid
                    && matches!(
                        held.trace.action,
                        TraceAction::Alloc | TraceAction::FreeRequested
                    )
            })?;
            let is_alloc = last.trace.action == TraceAction::Alloc;
            (last.trace.addr == report.ptr && is_alloc == (report.size > 0)).then_some(allocator)
        })
    }

    /// The entries that wait for the device of an allocator object; `None` if any entries were dropped.
    pub(crate) fn waiting(&self, allocator: u64) -> Option<impl Iterator<Item = &Held>> {
        let waiting = self.held.get(&allocator).into_iter().flatten();
        (self.dropped == 0).then_some(waiting)
    }

    /// Number of entries that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.held.values().map(VecDeque::len).sum()
    }

    /// Number of entries that wait or were dropped, without those that only say that a snapshot was taken.
    pub(crate) fn unplaced(&self) -> u64 {
        let all = self.held.values().flatten();
        self.dropped + all.filter(|held| !held.only_asks()).count() as u64
    }

    /// Number of entries that wait or were dropped, and only say that a snapshot was taken.
    pub(crate) fn asked(&self) -> u64 {
        let all = self.held.values().flatten();
        self.asked_before + all.filter(|held| held.only_asks()).count() as u64
    }
}
