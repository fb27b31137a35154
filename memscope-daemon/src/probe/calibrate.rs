//! Finds, by evidence, where PyTorch's allocator keeps what `record_trace` does not pass: the block's
//! rounded size and the allocator's totals.
//!
//! While it looks, the reporting function is probed as well and gives both. A finding is first
//! guessed from the process's memory, then written to the probe's settings, and believed only after
//! the probe's own readings have equalled the reports for a run of calls. What the probe reads later
//! still proves itself: the block's address and requested size must be those of the call.
//!
//! Pure: memory is read through a trait, decisions come back as [`CalibrationStep`]s.

use memscope_memory::Memory;
use std::collections::{HashMap, HashSet};

/// Offsets and registers, once found: what is worth remembering per library file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the allocated bytes' current value in the allocator object.
    pub allocated_offset: u32,
    /// Offset of the reserved bytes' current value.
    pub reserved_offset: u32,
    /// Offset of the address in a block; sizes lie 24 and 16 bytes before it.
    pub block_ptr_offset: u16,
    /// Place (register or stack word) that holds the block on `alloc`.
    pub alloc_place: u8,
    /// … on `free_requested`.
    pub free_place: u8,
}

/// What the owner of the probes is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CalibrationStep {
    /// Nothing yet.
    Wait,
    /// Let the probe read there, and keep both probes.
    Try(Layout),
    /// The layout is proven: the reporting probe can go.
    Proven(Layout),
    /// It cannot be found; both probes stay.
    GiveUp(String),
}

/// One call of `record_trace` while calibrating.
#[derive(Debug, Clone, Copy)]
pub struct TraceSeen<'a> {
    /// When the probe ran, nanoseconds.
    pub time_ns: u64,
    /// Thread.
    pub tid: u32,
    /// The allocator object.
    pub allocator: u64,
    /// PyTorch's action number.
    pub action: i32,
    /// Block address.
    pub addr: u64,
    /// Requested bytes.
    pub size: u64,
    /// Candidates for the block: (place, value).
    pub candidates: &'a [(u8, u64)],
    /// Rounded size as the probe read it.
    pub block_size: Option<u64>,
    /// Allocated and reserved bytes as the probe read them (before the block counts, for `alloc`).
    pub totals: Option<(u64, u64)>,
}

/// One call of the reporting function.
#[derive(Debug, Clone, Copy)]
pub struct ReportSeen {
    /// Thread.
    pub tid: u32,
    /// Block address.
    pub ptr: u64,
    /// Signed rounded size.
    pub size: i64,
    /// Allocated bytes after it.
    pub allocated: u64,
    /// Reserved bytes after it.
    pub reserved: u64,
}

const ALLOC: i32 = 0;
const FREE_REQUESTED: i32 = 1;
/// How far into a block the address field is looked for.
const BLOCK_SPAN: usize = 192;
/// Bits of an address of user space. On aarch64 what the kernel chooses lies in the upper half of them.
const ADDRESS_BITS: u32 = 47 + cfg!(target_arch = "aarch64") as u32;
/// How far into the allocator object its statistics are looked for.
const OBJECT_SPAN: usize = 4096;
/// A `Stat`: current, peak, allocated and freed, 64-bit numbers each.
const STAT: usize = 32;
/// `StatArray`: three `Stat`s; the reserved bytes follow the allocated ones.
const STAT_ARRAY: usize = 3 * STAT;
/// Equal findings needed before a register and offset are tried.
const VOTES: u32 = 3;
/// Equal readings in a row needed before a layout is believed, for allocations and for frees.
const PROOFS: u32 = 8;
/// Calls without a reading after which a place is taken back: some registers hold the block in some calls only.
const UNREAD: u32 = 3;
/// Batches with calls after which a search, or a trial, is given up.
const PATIENCE: u32 = 600;
/// Layouts that failed their proof before the search is given up.
const ATTEMPTS: u32 = 4;
/// Blocks read per round: reading another process's memory is not free.
const READS_PER_ROUND: u32 = 64;

/// What a report is compared with.
struct Pending {
    time_ns: u64,
    allocator: u64,
    action: i32,
    addr: u64,
    block_size: Option<u64>,
    totals: Option<(u64, u64)>,
}

/// Places at which the block was found after the call, and those that the probe did not find it at.
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

/// The search for one process.
pub struct Calibrator {
    alloc_votes: Votes,
    free_votes: Votes,
    /// Candidates for the allocated bytes' offset: `None` before the first round.
    total_candidates: Option<HashSet<usize>>,
    snapshot: Option<Vec<u8>>,
    recent_allocated: HashSet<u64>,
    recent_reserved: HashSet<u64>,
    last_totals: Option<(u64, u64)>,
    allocator: Option<u64>,
    pending: HashMap<u32, Pending>,
    trying: Option<Layout>,
    proofs: (u32, u32),
    unread: (u32, u32),
    trial_from_ns: u64,
    attempts: u32,
    calls: u64,
    calls_before: u64,
    rounds: u32,
    reads_left: u32,
}

impl Default for Calibrator {
    fn default() -> Self {
        Calibrator::new(None)
    }
}

impl Calibrator {
    /// A new search; `known` is what was proven for the same file before, and goes straight to proof.
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
            unread: (0, 0),
            trial_from_ns: 0,
            attempts: 0,
            calls: 0,
            calls_before: 0,
            rounds: 0,
            reads_left: READS_PER_ROUND,
        }
    }

    /// A call of `record_trace` was seen.
    pub fn trace(&mut self, seen: &TraceSeen<'_>, memory: &dyn Memory) {
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
        if self.trying.is_some() || self.reads_left == 0 {
            return;
        }
        self.reads_left -= 1;
        let votes = if seen.action == ALLOC {
            &mut self.alloc_votes
        } else {
            &mut self.free_votes
        };
        let mut bytes = [0u8; BLOCK_SPAN];
        for (place, value) in seen.candidates {
            if *value < 0x1_0000 || *value >> ADDRESS_BITS != 0 || *value & 7 != 0 {
                continue;
            }
            if memory.read(*value, &mut bytes).is_err() {
                continue;
            }
            for offset in (24..BLOCK_SPAN - 8).step_by(8) {
                if word(&bytes, offset) == seen.addr && word(&bytes, offset - 16) == seen.size {
                    *votes.found.entry((*place, offset as u16)).or_default() += 1;
                }
            }
        }
    }

    /// The reporting function was called; when a layout is on trial, this is its proof.
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
        // Calls made before the settings reached the probe carry no reading.
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
        if self.proofs.0 >= PROOFS && self.proofs.1 >= PROOFS {
            CalibrationStep::Proven(layout)
        } else {
            CalibrationStep::Wait
        }
    }

    /// The probe has had the layout on trial since then.
    pub fn trial_began(&mut self, now_ns: u64) {
        self.trial_from_ns = now_ns;
    }

    /// A call on trial came without a reading: the block is not at that place when the probe looks. A
    /// place at which it is now and then only is taken back.
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

    /// Whether the probe must send the caller's registers and stack with each entry.
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

    /// Called after each batch of records: looks for the totals, and puts a layout on trial.
    pub fn round(&mut self, memory: &dyn Memory) -> CalibrationStep {
        self.reads_left = READS_PER_ROUND;
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
        // The picture of the last round against the totals that were reported around it.
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
        let mut picture = vec![0u8; OBJECT_SPAN];
        if memory.read(allocator, &mut picture).is_ok() {
            self.snapshot = Some(picture);
        }
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
        };
        self.trying = Some(layout);
        self.proofs = (0, 0);
        self.unread = (0, 0);
        CalibrationStep::Try(layout)
    }

    /// What was not found, in words.
    fn missing(&self) -> &'static str {
        if self.trying.is_some() {
            "the readings could not be compared with enough reports"
        } else if self.alloc_votes.best().is_none() || self.free_votes.best().is_none() {
            "the block was not found in the caller's registers and frame"
        } else {
            "no single place holds the allocator's totals"
        }
    }

    /// What is missing so far, in words, for `status`.
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

/// Whether the allocated bytes' `StatArray` lies there, and the reserved bytes' behind it.
fn are_totals(bytes: &[u8], at: usize, allocated: &HashSet<u64>, reserved: &HashSet<u64>) -> bool {
    // Where nothing is left of what was there, the words one further on look like totals as well: the peak, what was ever allocated
    // and what was freed are the same, and the next current value is zero. A trial would take the peak for the total.
    let may_be_one_too_far = |at: usize| {
        let [current, peak, ever, freed] = [at - 8, at, at + 8, at + 16].map(|at| word(bytes, at));
        current == 0 && peak > 0 && ever == freed
    };
    is_total(bytes, at, allocated)
        && is_total(bytes, at + STAT_ARRAY, reserved)
        && !(may_be_one_too_far(at) && may_be_one_too_far(at + STAT_ARRAY))
}

/// Whether a `StatArray` lies there whose total was reported lately. Three facts tell it from everything
/// else: what was ever allocated less what was freed is the current value, the peak is not below it,
/// and the first `Stat` (all pools) is the sum of the second (small) and third (large).
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
