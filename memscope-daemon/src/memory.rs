//! The daemon's memory: how much it may take, how much it takes, and which process has to give way.
//!
//! Owns: the budget (`--memory`), the measurement, the choice of what goes first, and the room for questions about
//! earlier moments. Refuses: to change anything that is kept; the keeper writes into the log what goes.
//!
//! Of what the daemon may take beyond what it took at its start, the ledger of the traced processes gets three tenths. A
//! checkpoint copies the ledger while it is written, and a question about an earlier moment builds another one: each of
//! them takes as much again. The last tenth is for answers, for tables of symbols, and for what the C library's allocator
//! cannot use again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memscope_ledger::KeptBytes;
use memscope_ledger::event::{ProcessHandle, ShedPart};

/// Part of the budget from which on processes give way although their own limit is not reached, and which questions about
/// earlier moments do not exceed.
const FULL: (u64, u64) = (19, 20);
/// What all processes together may take in any case, in bytes.
const LEAST: u64 = 8 << 20;
/// A part of a process is worth giving up if it takes one in so many bytes of what all processes may take.
const WORTH: u64 = 64;

/// Anonymous memory of this process in bytes, as the kernel counts it; 0 if it cannot be read.
pub fn anonymous() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = statm
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse::<u64>().unwrap_or(0));
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * rustix::param::page_size() as u64
}

/// Gives memory that is free in the C library's allocator back to the kernel, which it does not do by itself.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes the allocator's own locks, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Something that is only kept so that it need not be computed again.
pub trait Spare: Send + Sync {
    /// Gives its memory back.
    fn give_back(&self);
}

/// All that is only kept so that it need not be computed again.
#[derive(Clone, Default)]
struct Spares(Arc<Mutex<Vec<Weak<dyn Spare>>>>);

impl std::fmt::Debug for Spares {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Spares")
    }
}

impl Spares {
    fn give_back(&self) {
        let all = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        all.iter()
            .filter_map(Weak::upgrade)
            .for_each(|spare| spare.give_back());
        trim();
    }
}

/// The budget. Clones share one.
#[derive(Clone, Debug)]
pub struct Memory {
    limit: u64,
    base: u64,
    /// Bytes that questions about earlier moments are expected to take.
    folds: Arc<AtomicU64>,
    /// Bytes that the next checkpoint's copy of the ledger is expected to take.
    next_copy: Arc<AtomicU64>,
    spares: Spares,
}

impl Memory {
    /// A budget for all of the daemon. What it takes already is not the processes'.
    pub fn new(limit: u64) -> Memory {
        Memory {
            limit,
            base: anonymous(),
            folds: Arc::default(),
            next_copy: Arc::default(),
            spares: Spares::default(),
        }
    }

    /// Has something give its memory back before a process has to give way, and before a question is refused.
    pub fn spare(&self, spare: Weak<dyn Spare>) {
        let mut all = self.spares.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(spare);
    }

    /// What the daemon may take in all, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What all processes together may take, in bytes.
    pub fn of_processes(&self) -> u64 {
        (self.limit.saturating_sub(self.base) / 10 * 3).max(LEAST)
    }

    /// Whether so much is taken that processes have to give way whatever they take themselves. What the C library's allocator
    /// only keeps for later use is given back first, and then what can be computed again.
    pub fn is_full(&self) -> bool {
        let is_full = || anonymous() > self.usable();
        is_full()
            && {
                trim();
                is_full()
            }
            && {
                self.spares.give_back();
                is_full()
            }
    }

    /// Notes what a checkpoint that begins from now on will copy: questions about earlier moments leave it that room.
    pub fn expect_copy(&self, bytes: u64) {
        self.next_copy.store(bytes, Ordering::Relaxed);
    }

    /// Takes room for a question about an earlier moment, which is expected to need so many bytes.
    ///
    /// # Errors
    /// Says how much is taken already if there is no room.
    pub fn fold(&self, bytes: u64) -> Result<FoldRoom, NoRoom> {
        let fold = || self.fold_beside(anonymous(), bytes);
        fold()
            .or_else(|_| {
                trim();
                fold()
            })
            .or_else(|_| {
                self.spares.give_back();
                fold()
            })
    }

    fn fold_beside(&self, taken: u64, bytes: u64) -> Result<FoldRoom, NoRoom> {
        let before = self.folds.fetch_add(bytes, Ordering::Relaxed);
        let room = FoldRoom {
            memory: self.clone(),
            bytes,
        };
        let used = taken + before + self.next_copy.load(Ordering::Relaxed);
        if used.saturating_add(bytes) > self.usable() {
            return Err(self.no_room(bytes, used));
        }
        Ok(room)
    }

    fn usable(&self) -> u64 {
        self.limit / FULL.1 * FULL.0
    }

    fn no_room(&self, wanted: u64, used: u64) -> NoRoom {
        NoRoom {
            wanted,
            used,
            limit: self.limit,
        }
    }
}

/// Room for the ledger of a question about an earlier moment. It is free again when this is dropped.
#[derive(Debug)]
pub struct FoldRoom {
    memory: Memory,
    bytes: u64,
}

impl FoldRoom {
    /// Whether a ledger that has grown to so many bytes still has room.
    pub fn holds(&self, bytes: u64) -> bool {
        bytes <= self.bytes
            || anonymous() + self.memory.next_copy.load(Ordering::Relaxed) <= self.memory.usable()
    }

    /// The refusal of a ledger that has grown to so many bytes.
    pub fn refused(&self, bytes: u64) -> NoRoom {
        self.memory.no_room(bytes, anonymous())
    }
}

impl Drop for FoldRoom {
    fn drop(&mut self) {
        self.memory.folds.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// There is no room for the ledger of a question about an earlier moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the answer needs {} of memory, and memscoped takes {} of the {} that it may take (--memory)",
    memscope_units::bytes(*wanted), memscope_units::bytes(*used), memscope_units::bytes(*limit)
)]
pub struct NoRoom {
    /// Bytes that the answer needs.
    wanted: u64,
    /// Bytes that are taken.
    used: u64,
    /// Bytes that may be taken.
    limit: u64,
}

/// What one process takes.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The process.
    pub process: ProcessHandle,
    /// Whether it is no longer traced.
    pub ended: bool,
    /// Its parts in bytes.
    pub kept: KeptBytes,
    /// Parts that were given up before.
    pub gone: Vec<ShedPart>,
}

impl Holder {
    fn is_worth(&self, part: ShedPart, limit: u64) -> bool {
        let again = part == ShedPart::Stacks;
        (again || !self.gone.contains(&part)) && self.kept.of(part) >= limit / WORTH
    }
}

/// Chooses what goes first, when all processes together may take `limit` bytes: traces of ended processes, then ended processes,
/// those first that take the most; then of the process that takes the most beyond an equal share its trace, its history, its
/// stacks, and at last the process itself. `None` if nobody takes more than an equal share.
pub fn choose(holders: &[Holder], limit: u64) -> Option<(ProcessHandle, ShedPart)> {
    let left = || {
        let all = holders.iter();
        all.filter(|one| !one.gone.contains(&ShedPart::Process))
    };
    let traces = left().filter(|one| one.ended && one.is_worth(ShedPart::Trace, limit));
    if let Some(ended) = traces.max_by_key(|one| (one.kept.trace, one.process)) {
        return Some((ended.process, ShedPart::Trace));
    }
    // Nobody who is traced loses anything as long as there is one who is not.
    let ended = left().filter(|one| one.ended && one.kept.all() > 0);
    if let Some(ended) = ended.max_by_key(|one| (one.kept.all(), one.process)) {
        return Some((ended.process, ShedPart::Process));
    }
    let share = limit / left().count().max(1) as u64;
    let most = left()
        .filter(|one| one.kept.all() > share)
        .max_by_key(|one| (one.kept.all(), one.process))?;
    let mut parts = ShedPart::ALL.into_iter();
    let part = parts.find(|part| *part == ShedPart::Process || most.is_worth(*part, limit))?;
    Some((most.process, part))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LIMIT: u64 = 64 << 20;

    fn holder(process: u32, ended: bool, trace: u64, stacks: u64, rest: u64) -> Holder {
        Holder {
            process: ProcessHandle(process),
            ended,
            kept: KeptBytes {
                trace: trace << 20,
                stacks: stacks << 20,
                rest: rest << 20,
                ..KeptBytes::default()
            },
            gone: Vec::new(),
        }
    }

    #[test]
    fn the_loudest_gives_part_by_part_and_the_quiet_one_keeps_all() {
        let mut loud = holder(1, false, 10, 5, 60);
        let quiet = holder(2, false, 20, 0, 5);
        let mut ended = holder(3, true, 4, 0, 0);
        let ask = |all: &[&Holder]| {
            let all: Vec<Holder> = all.iter().map(|one| (*one).clone()).collect();
            choose(&all, LIMIT).map(|(process, part)| (process.0, part))
        };
        assert_eq!(ask(&[&loud, &quiet, &ended]), Some((3, ShedPart::Trace)));
        ended.gone.push(ShedPart::Trace);
        assert_eq!(ask(&[&loud, &quiet, &ended]), Some((3, ShedPart::Process)));
        ended.gone.push(ShedPart::Process);
        assert_eq!(ask(&[&loud, &quiet, &ended]), Some((1, ShedPart::Trace)));
        loud.gone.push(ShedPart::Trace);
        // It has no history that would be worth it.
        assert_eq!(ask(&[&loud, &quiet, &ended]), Some((1, ShedPart::Stacks)));
        loud.kept.stacks = 0;
        assert_eq!(ask(&[&loud, &quiet, &ended]), Some((1, ShedPart::Process)));
        loud.gone.push(ShedPart::Process);
        // Nobody else takes more than a share.
        assert_eq!(ask(&[&loud, &quiet, &ended]), None);
    }

    #[test]
    fn processes_that_have_ended_go_before_one_that_is_traced() {
        // Each of those that have ended takes less than an equal share, and the one that is traced takes more.
        let mut all: Vec<Holder> = (1..=30).map(|one| holder(one, true, 0, 0, 3)).collect();
        all.push(holder(31, false, 0, 0, 5));
        for ended in (1..=30).rev() {
            let gone = (ProcessHandle(ended), ShedPart::Process);
            assert_eq!(choose(&all, LIMIT), Some(gone));
            let its = all.iter_mut().find(|one| one.process == gone.0).unwrap();
            its.gone.push(ShedPart::Process);
            // What is left of it does not count.
            its.kept.rest = 1 << 20;
        }
        assert_eq!(choose(&all, LIMIT), None);
    }

    #[test]
    fn what_is_over_the_limit_always_has_somebody_to_give_way() {
        let all: Vec<Holder> = (1..=9).map(|one| holder(one, false, 0, 0, 8)).collect();
        assert_eq!(
            choose(&all, LIMIT),
            Some((ProcessHandle(9), ShedPart::Process))
        );
    }

    #[test]
    fn questions_about_earlier_moments_share_what_is_left() {
        let memory = Memory::new(200 << 20);
        let ask = || memory.fold_beside(20 << 20, 100 << 20);
        let first = ask().unwrap();
        let refused = ask().unwrap_err().to_string();
        assert_eq!(
            refused,
            "the answer needs 100.00 MiB of memory, and memscoped takes 120.00 MiB of the 200.00 MiB that it may take (--memory)"
        );
        drop(first);
        drop(ask().unwrap());
    }

    #[test]
    fn a_question_leaves_the_next_checkpoint_its_room() {
        let memory = Memory::new(200 << 20);
        memory.expect_copy(80 << 20);
        assert!(memory.fold_beside(20 << 20, 100 << 20).is_err());
        drop(memory.fold_beside(20 << 20, 80 << 20).unwrap());
        // The copy is there, and is measured with the rest.
        memory.expect_copy(0);
        assert!(memory.fold_beside(100 << 20, 100 << 20).is_err());
        memory.fold_beside(100 << 20, 80 << 20).unwrap();
    }

    #[test]
    fn processes_a_checkpoint_and_a_question_have_room_beside_one_another() {
        for limit in [128 << 20, 512 << 20, 4 << 30] {
            let memory = Memory {
                base: 24 << 20,
                ..Memory::new(limit)
            };
            let each = memory.of_processes();
            memory.expect_copy(each);
            memory.fold_beside(memory.base + each, each).unwrap();
        }
    }

    #[test]
    fn what_this_process_takes_is_measured() {
        // Other tests take memory and give it back at the same time.
        let taken = vec![1u8; 256 << 20];
        let measured = anonymous();
        assert!((256 << 20..16 << 30).contains(&measured), "{measured}");
        drop(taken);
    }
}
