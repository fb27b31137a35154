//! Finds, by evidence, where PyTorch's allocator keeps what `record_trace` does not pass: the block's
//! rounded size and the allocator's totals.
//!
//! During the search the reporting function is probed as well and gives both. A layout is first guessed from the
//! process's memory, then written to the probe's settings, and believed only after the probe's own readings have
//! equalled the reports for a number of calls. Each later reading is checked as well: the block's address and
//! requested size must be those of the call.
//!
//! Pure: memory is read through a trait, and decisions are returned as [`CalibrationStep`]s.

use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};

/// The memory of the process in which is searched.
pub trait Places {
    /// Reads `length` bytes at each of these addresses; none where not all of them can be read.
    fn read(&self, addresses: &[u64], length: usize) -> Vec<Option<Vec<u8>>>;
}

/// Offsets and places in the allocator's objects: the result of a search, which holds for other processes with the
/// same library file too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Offset in the allocator object of the current number of allocated bytes.
    pub allocated_offset: u32,
    /// Offset in the allocator object of the current number of reserved bytes.
    pub reserved_offset: u32,
    /// Offset of the address field in a block. The rounded size lies 24 bytes before it, the requested size 16 bytes.
    pub block_ptr_offset: u16,
    /// Place (register or word of the stack) that holds the block on `alloc`.
    pub alloc_place: u8,
    /// Place that holds the block on `free_requested`.
    pub free_place: u8,
    /// Whether the block tells if its free completes at once.
    #[serde(default)]
    pub frees_at_once: bool,
}

/// What the owner of the probes has to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CalibrationStep {
    /// Nothing yet; the search goes on.
    Wait,
    /// Let the probe read with this layout, and keep both probes.
    Try(Layout),
    /// The layout is proven: the probe on the reporting function can be removed.
    Proven(Layout),
    /// The layout cannot be found, for this reason; both probes stay.
    GiveUp(String),
}

/// One call of `record_trace` during the search.
#[derive(Debug, Clone, Copy)]
pub struct TraceSeen<'a> {
    /// Time at which the probe ran, in nanoseconds.
    pub time_ns: u64,
    /// Thread that made the call.
    pub tid: u32,
    /// Address of the allocator object.
    pub allocator: u64,
    /// PyTorch's number of the action.
    pub action: i32,
    /// Address of the memory that the block stands for.
    pub addr: u64,
    /// Size that the program requested, in bytes.
    pub size: u64,
    /// Values that may be the address of the block's object, as (place, value).
    pub candidates: &'a [(u8, u64)],
    /// Rounded size in bytes, if the probe read it.
    pub block_size: Option<u64>,
    /// Allocated and reserved bytes, if the probe read them. On `alloc` the block is not counted in them yet.
    pub totals: Option<(u64, u64)>,
    /// Whether the probe expects that the free which this call requests completes at once.
    pub completes: bool,
    /// Number of events of the process that had been lost by then.
    pub lost: u64,
}

/// One call of the reporting function.
#[derive(Debug, Clone, Copy)]
pub struct ReportSeen {
    /// Thread that made the call.
    pub tid: u32,
    /// Address of the memory that the block stands for.
    pub ptr: u64,
    /// Rounded size in bytes, negative for a free.
    pub size: i64,
    /// Allocated bytes after the event.
    pub allocated: u64,
    /// Reserved bytes after the event.
    pub reserved: u64,
}

const ALLOC: i32 = 0;
const FREE_REQUESTED: i32 = 1;
const FREE_COMPLETED: i32 = 2;
/// Length in bytes of the part of a block in which its address field is searched.
const BLOCK_SPAN: usize = 192;
/// Number of bits of an address in user space. On aarch64 the addresses that the kernel chooses lie in the upper
/// half.
const ADDRESS_BITS: u32 = 47 + cfg!(target_arch = "aarch64") as u32;
/// Length in bytes of the part of the allocator object in which its statistics are searched.
const OBJECT_SPAN: usize = 4096;
/// Size in bytes of a `Stat`: current, peak, allocated and freed, 64-bit numbers each.
const STAT: usize = 32;
/// Size in bytes of a `StatArray`: three `Stat`s. The array of reserved bytes follows that of allocated bytes.
const STAT_ARRAY: usize = 3 * STAT;
/// Number of times that the block must be found at the same place and offset before these are tried.
const VOTES: u32 = 3;
/// Number of readings in a row that must equal the reports before a layout is believed, for allocations and for frees
/// each.
const PROOFS: u32 = 8;
/// Number of frees in a row that must have completed as expected before that is believed.
const FREES: u32 = 8;
/// Number of proofs of a layout after which no more frees are waited for.
const ENOUGH: u32 = 64;
/// Number of calls without a reading after which a place is rejected: some registers hold the block in some calls
/// only.
const UNREAD: u32 = 3;
/// Number of rounds with calls after which a search or a trial is given up.
const PATIENCE: u32 = 600;
/// Number of layouts that may fail their proof before the search is given up.
const ATTEMPTS: u32 = 4;
/// Number of calls per round, the last ones, for which the process's memory is read, since such reads are expensive.
const READS_PER_ROUND: usize = 64;

/// A call of `record_trace` for which the block is searched at the end of the round.
struct Unsearched {
    action: i32,
    addr: u64,
    size: u64,
    /// Places, and the addresses that they held.
    candidates: Vec<(u8, u64)>,
}

/// A call of `record_trace`, kept until the report that it is compared with comes.
struct Pending {
    time_ns: u64,
    allocator: u64,
    action: i32,
    addr: u64,
    block_size: Option<u64>,
    totals: Option<(u64, u64)>,
}

/// Places and offsets at which the block was found after the call, and those at which the probe did not find it.
#[derive(Default)]
struct Votes {
    found: HashMap<(u8, u16), u32>,
    refuted: HashSet<(u8, u16)>,
}

impl Votes {
    fn best(&self) -> Option<(u8, u16)> {
        self.found
            .iter()
            .filter(|(key, n)| **n >= VOTES && !self.refuted.contains(*key))
            .max_by_key(|((place, offset), n)| (**n, std::cmp::Reverse((*place, *offset))))
            .map(|(key, _)| *key)
    }
}

/// What is known of frees that complete at once.
#[derive(Default)]
struct AtOnce {
    /// By thread: the block that is expected to be told as completed by the thread's next record, and the losses by then.
    expected: HashMap<u32, (u64, u64)>,
    proofs: u32,
    refuted: bool,
}

impl AtOnce {
    fn see(&mut self, seen: &TraceSeen<'_>) {
        if let Some((addr, lost)) = self.expected.remove(&seen.tid) {
            if seen.action == FREE_COMPLETED && seen.addr == addr {
                self.proofs += 1;
            } else if seen.lost == lost {
                self.refuted = true;
            }
        }
        if seen.action == FREE_REQUESTED && seen.completes {
            self.expected.insert(seen.tid, (seen.addr, seen.lost));
        }
    }

    fn is_proven(&self) -> bool {
        self.proofs >= FREES && !self.refuted
    }
}

/// The search in one process.
pub struct Calibrator {
    alloc_votes: Votes,
    free_votes: Votes,
    /// Offsets that may be those of the allocated bytes. `None` until a round has found one.
    total_candidates: Option<HashSet<usize>>,
    snapshot: Option<Vec<u8>>,
    recent_allocated: HashSet<u64>,
    recent_reserved: HashSet<u64>,
    last_totals: Option<(u64, u64)>,
    allocator: Option<u64>,
    pending: HashMap<u32, Pending>,
    trying: Option<Layout>,
    proofs: (u32, u32),
    at_once: AtOnce,
    unread: (u32, u32),
    trial_from_ns: u64,
    attempts: u32,
    calls: u64,
    calls_before: u64,
    rounds: u32,
    unsearched: VecDeque<Unsearched>,
}

impl Default for Calibrator {
    fn default() -> Self {
        Calibrator::new(None)
    }
}

impl Calibrator {
    /// Begins a search. `known` is a layout that was proven for the same file before; it goes on trial at once.
    pub fn new(known: Option<Layout>) -> Calibrator {
        Calibrator {
            alloc_votes: Votes::default(),
            free_votes: Votes::default(),
            total_candidates: None,
            snapshot: None,
            recent_allocated: HashSet::new(),
            recent_reserved: HashSet::new(),
            last_totals: None,
            allocator: None,
            pending: HashMap::new(),
            trying: known,
            proofs: (0, 0),
            at_once: AtOnce::default(),
            unread: (0, 0),
            trial_from_ns: 0,
            attempts: 0,
            calls: 0,
            calls_before: 0,
            rounds: 0,
            unsearched: VecDeque::new(),
        }
    }

    /// Takes in a call of `record_trace`.
    pub fn trace(&mut self, seen: &TraceSeen<'_>) {
        self.at_once.see(seen);
        if seen.action == FREE_COMPLETED {
            return;
        }
        self.calls += 1;
        if seen.action != ALLOC && seen.action != FREE_REQUESTED {
            return;
        }
        self.pending.insert(
            seen.tid,
            Pending {
                time_ns: seen.time_ns,
                allocator: seen.allocator,
                action: seen.action,
                addr: seen.addr,
                block_size: seen.block_size,
                totals: seen.totals,
            },
        );
        if self.pending.len() > 4096 {
            self.pending.clear();
        }
        if self.trying.is_some() {
            return;
        }
        let is_address =
            |value: u64| value >= 0x1_0000 && value >> ADDRESS_BITS == 0 && value & 7 == 0;
        let candidates = seen.candidates.iter().copied();
        self.unsearched.push_back(Unsearched {
            action: seen.action,
            addr: seen.addr,
            size: seen.size,
            candidates: candidates.filter(|(_, value)| is_address(*value)).collect(),
        });
        if self.unsearched.len() > READS_PER_ROUND {
            self.unsearched.pop_front();
        }
    }

    /// Searches for the blocks of the last calls, all at once.
    fn search_blocks(&mut self, memory: &dyn Places) {
        let calls = std::mem::take(&mut self.unsearched);
        let all = calls.iter().flat_map(|call| &call.candidates);
        let addresses: Vec<u64> = all.map(|(_, address)| *address).collect();
        if addresses.is_empty() {
            return;
        }
        let mut read = memory.read(&addresses, BLOCK_SPAN).into_iter();
        for call in &calls {
            let votes = if call.action == ALLOC {
                &mut self.alloc_votes
            } else {
                &mut self.free_votes
            };
            for (place, _) in &call.candidates {
                let Some(bytes) = read.next().flatten() else {
                    continue;
                };
                for offset in (24..BLOCK_SPAN - 8).step_by(8) {
                    if word(&bytes, offset) == call.addr && word(&bytes, offset - 16) == call.size {
                        *votes.found.entry((*place, offset as u16)).or_default() += 1;
                    }
                }
            }
        }
    }

    /// Takes in a call of the reporting function. If a layout is on trial, its reading is compared with this report.
    pub fn report(&mut self, seen: &ReportSeen) -> CalibrationStep {
        let Some(trace) = self.pending.remove(&seen.tid) else {
            return CalibrationStep::Wait;
        };
        if trace.addr != seen.ptr {
            return CalibrationStep::Wait;
        }
        // Each device has an allocator object of its own; one of them is enough to learn from.
        if *self.allocator.get_or_insert(trace.allocator) == trace.allocator {
            self.recent_allocated.insert(seen.allocated);
            self.recent_reserved.insert(seen.reserved);
            self.last_totals = Some((seen.allocated, seen.reserved));
        }
        let Some(layout) = self.trying else {
            return CalibrationStep::Wait;
        };
        // Calls that were made before the settings reached the probe have no reading.
        let (Some(block), Some((allocated, reserved))) = (trace.block_size, trace.totals) else {
            if trace.time_ns <= self.trial_from_ns {
                return CalibrationStep::Wait;
            }
            return self.unread(layout, trace.action);
        };
        let rounded = seen.size.unsigned_abs();
        let after = if trace.action == ALLOC {
            allocated.wrapping_add(block)
        } else {
            allocated
        };
        if block != rounded || after != seen.allocated || reserved != seen.reserved {
            return self.refuted();
        }
        if trace.action == ALLOC {
            self.proofs.0 += 1;
        } else {
            self.proofs.1 += 1;
        }
        if self.proofs.0 < PROOFS || self.proofs.1 < PROOFS {
            return CalibrationStep::Wait;
        }
        let frees_at_once = self.at_once.is_proven();
        if !frees_at_once && !self.at_once.refuted && self.proofs.1 < ENOUGH {
            return CalibrationStep::Wait;
        }
        CalibrationStep::Proven(Layout {
            frees_at_once,
            ..layout
        })
    }

    /// Sets the time at which the probe began to use the layout on trial.
    pub fn trial_began(&mut self, now_ns: u64) {
        self.trial_from_ns = now_ns;
    }

    /// Counts a call on trial that came without a reading, because the block was not at that place when the probe
    /// ran. A place that holds the block only now and then is rejected.
    fn unread(&mut self, layout: Layout, action: i32) -> CalibrationStep {
        let (unread, proofs) = if action == ALLOC {
            (&mut self.unread.0, &mut self.proofs.0)
        } else {
            (&mut self.unread.1, &mut self.proofs.1)
        };
        *unread += 1;
        *proofs = 0;
        if *unread >= UNREAD {
            let (votes, place) = if action == ALLOC {
                (&mut self.alloc_votes, layout.alloc_place)
            } else {
                (&mut self.free_votes, layout.free_place)
            };
            votes.refuted.insert((place, layout.block_ptr_offset));
            self.trying = None;
            self.unread = (0, 0);
            self.proofs = (0, 0);
        }
        CalibrationStep::Wait
    }

    /// Whether the probe must send the caller's registers and stack with each call.
    pub fn wants_registers(&self) -> bool {
        self.trying.is_none()
            && (self.alloc_votes.best().is_none() || self.free_votes.best().is_none())
    }

    fn refuted(&mut self) -> CalibrationStep {
        self.attempts += 1;
        *self = Calibrator {
            attempts: self.attempts,
            calls: self.calls,
            rounds: self.rounds,
            ..Calibrator::new(None)
        };
        if self.attempts >= ATTEMPTS {
            return CalibrationStep::GiveUp(
                "readings differed from the allocator's reports".to_owned(),
            );
        }
        CalibrationStep::Wait
    }

    /// Called after each batch of records: searches for the totals, and puts a layout on trial.
    pub fn round(&mut self, memory: &dyn Places) -> CalibrationStep {
        self.search_blocks(memory);
        if self.calls == self.calls_before {
            return CalibrationStep::Wait;
        }
        self.calls_before = self.calls;
        self.rounds += 1;
        if self.rounds > PATIENCE {
            return CalibrationStep::GiveUp(self.missing().to_owned());
        }
        if self.trying.is_some() {
            return CalibrationStep::Wait;
        }
        let Some(allocator) = self.allocator else {
            return CalibrationStep::Wait;
        };
        // Compare the copy that the last round made of the object with the totals that were reported around that
        // time.
        if let Some(picture) = self.snapshot.take() {
            let found: HashSet<usize> = (8..OBJECT_SPAN - 2 * STAT_ARRAY)
                .step_by(8)
                .filter(|at| {
                    are_totals(&picture, *at, &self.recent_allocated, &self.recent_reserved)
                })
                .collect();
            if !found.is_empty() {
                self.total_candidates = Some(match &self.total_candidates {
                    Some(before) => {
                        let both: HashSet<usize> = before.intersection(&found).copied().collect();
                        if both.is_empty() { found } else { both }
                    }
                    None => found,
                });
            }
            self.recent_allocated.clear();
            self.recent_reserved.clear();
        }
        if let Some((allocated, reserved)) = self.last_totals {
            self.recent_allocated.insert(allocated);
            self.recent_reserved.insert(reserved);
        }
        self.snapshot = memory
            .read(&[allocator], OBJECT_SPAN)
            .pop()
            .flatten()
            .or(self.snapshot.take());
        let (Some((alloc_place, on_alloc)), Some((free_place, on_free)), Some(totals)) = (
            self.alloc_votes.best(),
            self.free_votes.best(),
            &self.total_candidates,
        ) else {
            return CalibrationStep::Wait;
        };
        if totals.len() != 1 || on_alloc != on_free {
            return CalibrationStep::Wait;
        }
        let Some(allocated) = totals.iter().next().copied() else {
            return CalibrationStep::Wait;
        };
        let layout = Layout {
            allocated_offset: allocated as u32,
            reserved_offset: (allocated + STAT_ARRAY) as u32,
            block_ptr_offset: on_alloc,
            alloc_place,
            free_place,
            frees_at_once: false,
        };
        self.trying = Some(layout);
        self.proofs = (0, 0);
        self.unread = (0, 0);
        CalibrationStep::Try(layout)
    }

    /// What could not be found, in words.
    fn missing(&self) -> &'static str {
        if self.trying.is_some() {
            "the readings could not be compared with enough reports"
        } else if self.alloc_votes.best().is_none() || self.free_votes.best().is_none() {
            "the block was not found in the caller's registers and frame"
        } else {
            "no single place holds the allocator's totals"
        }
    }

    /// The state of the search, in words for `status`.
    pub fn progress(&self) -> String {
        format!(
            "block on alloc {:?}, on free {:?}, totals {}, proofs {:?}",
            self.alloc_votes.best(),
            self.free_votes.best(),
            self.total_candidates.as_ref().map_or(0, HashSet::len),
            self.proofs
        )
    }
}

/// Whether the `StatArray` of the allocated bytes lies at `at`, and that of the reserved bytes behind it.
fn are_totals(bytes: &[u8], at: usize, allocated: &HashSet<u64>, reserved: &HashSet<u64>) -> bool {
    // When all that was allocated has been freed, the words from the second one on look like totals as well: the
    // peak, the bytes ever allocated and the bytes freed are equal, and the word behind them, the current value of
    // the next `Stat`, is zero. A trial would take the peak for the total.
    let may_be_one_too_far = |at: usize| {
        let [current, peak, ever, freed] = [at - 8, at, at + 8, at + 16].map(|at| word(bytes, at));
        current == 0 && peak > 0 && ever == freed
    };
    is_total(bytes, at, allocated)
        && is_total(bytes, at + STAT_ARRAY, reserved)
        && !(may_be_one_too_far(at) && may_be_one_too_far(at + STAT_ARRAY))
}

/// Whether a `StatArray` lies at `at` whose current total was reported lately. Three facts distinguish it from
/// everything else: the bytes ever allocated less the bytes freed are the current value, the peak is not below the
/// current value, and the first `Stat` (all pools) is the sum of the second (small pool) and the third (large pool).
fn is_total(bytes: &[u8], at: usize, recent: &HashSet<u64>) -> bool {
    let current = word(bytes, at);
    let ever = word(bytes, at + 16);
    let parts = |offset: usize| {
        word(bytes, at + STAT + offset).checked_add(word(bytes, at + 2 * STAT + offset))
    };
    ever != 0
        && ever.checked_sub(word(bytes, at + 24)) == Some(current)
        && word(bytes, at + 8) >= current
        && parts(0) == Some(current)
        && parts(16) == Some(ever)
        && recent.contains(&current)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests;
