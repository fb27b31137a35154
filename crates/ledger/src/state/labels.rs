//! The labels that a program gives its blocks: by ranges of a thread, in which all blocks that it allocates have the
//! label, or by the address of a block.
//!
//! Owns: which ranges are open in which thread, and the sets of labels that blocks have. Refuses: blocks themselves,
//! which only keep the number of their set.
//!
//! Labels come as marks of memscope's own library whose names begin with [`PREFIX`]: `memscope:owner=NAME` begins a
//! range, and `memscope:owner=NAME@ADDRESS` labels the block at an address (hexadecimal). msMemScope's rule holds: a block
//! has three labels at most, the outermost first.

use crate::event::{Mark, MarkKind, MarkSource};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How the names of marks begin that label blocks.
const PREFIX: &str = "memscope:owner=";
/// Maximum number of labels of a block.
const OF_A_BLOCK: usize = 3;
/// Maximum number of different sets of labels of a process.
const SETS: usize = 1000;
/// Maximum number of threads with open ranges.
const THREADS: usize = 4096;
/// Maximum number of open ranges of a thread.
const RANGES: usize = 64;

/// The number of a set of labels; 0 is the empty one.
pub(crate) type LabelSet = u16;

/// The labels of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Labels {
    /// Sets by number, from 1.
    sets: Vec<Vec<Arc<str>>>,
    /// Open ranges by thread, the innermost last.
    threads: BTreeMap<u32, Vec<Open>>,
    /// Labels for which there was no room.
    refused: u64,
}

/// A range that is open.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    range: u64,
    /// Which blocks come to have inside of it.
    set: LabelSet,
}

impl Labels {
    /// Whether a mark labels blocks. Such a mark names no moment.
    pub(crate) fn is_one(mark: &Mark) -> bool {
        mark.source == MarkSource::Memscope && mark.name.starts_with(PREFIX)
    }

    /// Takes a mark of a thread; returns the address of a block that is to have a label, and the label.
    pub(crate) fn take(&mut self, mark: &Mark, tid: u32) -> Option<(u64, Arc<str>)> {
        if mark.kind == MarkKind::End && mark.source == MarkSource::Memscope {
            self.end(mark.range, tid);
            return None;
        }
        if !Labels::is_one(mark) {
            return None;
        }
        let said = mark.name.strip_prefix(PREFIX).unwrap_or_default();
        match mark.kind {
            MarkKind::Begin => self.begin(mark.range, tid, said),
            MarkKind::Instant => {
                let (label, address) = said.rsplit_once('@')?;
                let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).ok()?;
                return Some((address, label.into()));
            }
            MarkKind::Step | MarkKind::End => {}
        }
        None
    }

    /// The labels of a block that this thread allocates now.
    pub(crate) fn of(&self, tid: u32) -> LabelSet {
        if self.threads.is_empty() {
            return 0;
        }
        let open = self.threads.get(&tid).and_then(|open| open.last());
        open.map_or(0, |open| open.set)
    }

    /// The set of these labels and one more.
    pub(crate) fn with(&mut self, set: LabelSet, label: &str) -> LabelSet {
        let mut labels = self.words(set).to_vec();
        if labels.len() >= OF_A_BLOCK || labels.iter().any(|own| **own == *label) {
            return set;
        }
        labels.push(label.into());
        if let Some(at) = self.sets.iter().position(|known| *known == labels) {
            return at as LabelSet + 1;
        }
        if self.sets.len() >= SETS {
            self.refused += 1;
            return set;
        }
        self.sets.push(labels);
        self.sets.len() as LabelSet
    }

    /// The labels of a set, the outermost first.
    pub(crate) fn words(&self, set: LabelSet) -> &[Arc<str>] {
        let at = usize::from(set).checked_sub(1);
        at.and_then(|at| self.sets.get(at))
            .map_or(&[], Vec::as_slice)
    }

    /// All sets by number, the empty one first.
    pub(crate) fn all(&self) -> Vec<Vec<Arc<str>>> {
        let mut all = vec![Vec::new()];
        all.extend(self.sets.iter().cloned());
        all
    }

    /// Records were lost, and the ends of ranges may be among them. The ranges that were open label nothing any more: one whose end was
    /// lost would label all that its thread allocates, for good.
    pub(crate) fn records_lost(&mut self) {
        self.threads.clear();
    }

    /// Whether any label was ever told of.
    pub(crate) fn any(&self) -> bool {
        !self.sets.is_empty()
    }

    /// How many labels found no room.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    fn begin(&mut self, range: u64, tid: u32, label: &str) {
        let set = self.with(self.of(tid), label);
        if self.threads.len() >= THREADS && !self.threads.contains_key(&tid) {
            self.refused += 1;
            return;
        }
        let open = self.threads.entry(tid).or_default();
        if open.len() >= RANGES {
            self.refused += 1;
            return;
        }
        open.push(Open { range, set });
    }

    /// Ends a range, which may have begun in another thread. What lies inside of it keeps its label until it ends, too.
    fn end(&mut self, range: u64, tid: u32) {
        // 0 is the innermost range of the thread, of whatever kind; a range with a label ends by its own number.
        if range == 0 || self.threads.is_empty() {
            return;
        }
        let has_it = |open: &[Open]| open.iter().any(|open| open.range == range);
        let thread = match self.threads.get(&tid) {
            Some(open) if has_it(open) => Some(tid),
            _ => {
                let mut others = self.threads.iter();
                others.find(|(_, open)| has_it(open)).map(|(tid, _)| *tid)
            }
        };
        let Some(open) = thread.and_then(|tid| self.threads.get_mut(&tid)) else {
            return;
        };
        open.retain(|open| open.range != range);
        if let (true, Some(tid)) = (open.is_empty(), thread) {
            self.threads.remove(&tid);
        }
    }
}
