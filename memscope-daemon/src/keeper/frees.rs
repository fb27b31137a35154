//! Makes records of a free's completion out of what the probes tell once for both: two records where one tells of two events, and
//! none where a record tells what was told already. What comes out is as if each event had a record of its own, so the
//! journal and all that reads it know nothing of this.

use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;

use memscope_common::{
    KIND_CALIBRATION, KIND_TRACE, RecordHeader, TRACE_COMPLETES, TRACE_ENDS_WAIT, TRACE_EXPECTED,
    TRACE_HAS_BLOCK, TRACE_HAS_POOL, TRACE_HAS_TOTALS, TRACE_ON_TRIAL, TraceRecord,
};

const KIND: usize = offset_of!(RecordHeader, kind);
const FLAGS: usize = offset_of!(RecordHeader, flags);
const LEN: usize = offset_of!(RecordHeader, len);
const TIME: usize = offset_of!(RecordHeader, time_ns);
const SEQUENCE: usize = offset_of!(RecordHeader, sequence);
const ALLOCATOR: usize = offset_of!(TraceRecord, allocator);
const ACTION: usize = offset_of!(TraceRecord, action);
const ADDR: usize = offset_of!(TraceRecord, addr);
const POOL: usize = offset_of!(TraceRecord, pool);
/// Length of a trace record.
const TRACE: usize = size_of::<TraceRecord>();

const FREE_REQUESTED: i32 = 1;
const FREE_COMPLETED: i32 = 2;
/// Most frees that wait for streams whose pools are kept. Their completion is told in any case; of those beyond this number it is
/// told without the pool.
pub(super) const MOST_WAITING: usize = 1 << 16;

/// Allocators of a process of which it is kept what they told last. There is one for each device.
const KEPT: usize = 1 << 10;

/// What is known of the frees of all processes.
#[derive(Default)]
pub(super) struct Frees {
    processes: HashMap<u32, Known>,
    /// Pools of the blocks whose frees wait, by process and address.
    waiting: HashMap<(u32, u64), [u8; 16]>,
}

/// What is known of the frees of one process.
#[derive(Default)]
struct Known {
    /// Whether the probe on the call of `record_trace` in `free_block` was removed: what it still tells is told by others.
    settled: bool,
    /// Whether it is proven that frees which should complete at once do so. As long as that is searched, nothing may be told that the
    /// programs have not told: it would prove itself.
    proven: bool,
    /// By address of the allocator: what its last record left open. While a free completes at once, its thread holds the lock of the
    /// allocator, so no record of the same allocator lies between that of the request and that of the completion.
    last: BTreeMap<u64, Last>,
}

/// What the last record of an allocator left open.
enum Last {
    /// The free that this record requests completes at once, and its completion is yet to be told.
    Open(Box<[u8; TRACE]>),
    /// The completion of the free of this address was told, and may be told again.
    Told(u64),
}

impl Frees {
    /// The probe was removed that told of each completion, and what it had told by then was taken in. A thread may have requested a
    /// free before its request told of both, and complete it only now: this appends what nobody else will tell. On older kernels
    /// the probe goes on for a moment; what it still tells is dropped.
    pub fn settle(&mut self, process: u32, now_ns: u64, batch: &mut Vec<u8>) {
        let known = self.processes.entry(process).or_default();
        known.settled = true;
        known.proven = true;
        for last in std::mem::take(&mut known.last).into_values() {
            if let Last::Open(request) = last {
                append_untold(&request[..], now_ns, batch);
            }
        }
    }

    /// It is searched, or it was proven, that frees which should complete at once do so.
    pub fn prove(&mut self, process: u32, proven: bool) {
        self.processes.entry(process).or_default().proven = proven;
    }

    /// Another library has the allocator: the probe that tells of each completion is there again.
    pub fn unsettle(&mut self, process: u32) {
        if let Some(known) = self.processes.get_mut(&process) {
            known.settled = false;
        }
    }

    /// Forgets a process that is not traced any more.
    pub fn forget(&mut self, process: u32) {
        self.processes.remove(&process);
        self.waiting.retain(|(of, _), _| *of != process);
    }

    /// Appends a record of a process to a batch, or the records that it stands for.
    pub fn take(&mut self, process: u32, record: &[u8], batch: &mut Vec<u8>) {
        let is_trace = [KIND_TRACE, KIND_CALIBRATION].map(u16::to_ne_bytes);
        let (true, Some(flags)) = (
            record.len() >= TRACE
                && is_trace
                    .iter()
                    .any(|kind| record.get(KIND..KIND + 2) == Some(kind)),
            record.get(FLAGS).copied(),
        ) else {
            batch.extend_from_slice(record);
            return;
        };
        let action = i32::from_ne_bytes(word(record, ACTION));
        if self.was_told(process, record, action, flags, batch) {
            return;
        }
        match action {
            FREE_REQUESTED => self.requested(process, record, flags, batch),
            FREE_COMPLETED => self.completed(process, record, flags, batch),
            _ => batch.extend_from_slice(record),
        }
    }

    /// Returns whether this record tells of a completion that was told already. If the free that the allocator's record before it
    /// requested must be complete by now, and nobody told of that, it is told here: the probe was just removed, or the record was lost.
    fn was_told(
        &mut self,
        process: u32,
        record: &[u8],
        action: i32,
        flags: u8,
        batch: &mut Vec<u8>,
    ) -> bool {
        let Some(known) = self.processes.get_mut(&process) else {
            return false;
        };
        let completes = action == FREE_COMPLETED;
        let addr = address(record);
        let again = completes && flags & TRACE_EXPECTED != 0;
        match known.last.remove(&allocator(record)) {
            Some(Last::Open(request)) if !completes || address(&request[..]) != addr => {
                if known.proven {
                    append_untold(&request[..], u64::from_ne_bytes(word(record, TIME)), batch);
                }
                false
            }
            Some(Last::Told(told)) if again && told == addr => true,
            _ => again && known.settled,
        }
    }

    fn requested(&mut self, process: u32, record: &[u8], flags: u8, batch: &mut Vec<u8>) {
        let known = self.processes.entry(process).or_default();
        let addr = address(record);
        let first = batch.len();
        batch.extend_from_slice(record);
        if flags & TRACE_COMPLETES != 0 {
            set(batch, first + FLAGS, [flags & !TRACE_COMPLETES]);
            append_completion(record, batch);
            known.leave(record, Last::Told(addr), batch);
            return;
        }
        if flags & TRACE_EXPECTED != 0 {
            // The programs rely on that probe, as when the allocator of another library came.
            known.settled = false;
            known.leave(record, Last::Open(Box::new(word(record, 0))), batch);
            return;
        }
        // An earlier free of the address may have left its pool, if the record of its completion was lost.
        self.waiting.remove(&(process, addr));
        if flags & TRACE_HAS_POOL != 0 && self.waiting.len() < MOST_WAITING {
            self.waiting.insert((process, addr), word(record, POOL));
        }
    }

    fn completed(&mut self, process: u32, record: &[u8], flags: u8, batch: &mut Vec<u8>) {
        let addr = address(record);
        let first = batch.len();
        batch.extend_from_slice(record);
        let mut now = flags & !(TRACE_EXPECTED | TRACE_ENDS_WAIT);
        let pool = self.waiting.remove(&(process, addr));
        if flags & TRACE_ENDS_WAIT != 0 {
            if let Some(pool) = pool {
                set(batch, first + POOL, pool);
                now |= TRACE_HAS_POOL;
            }
            let known = self.processes.entry(process).or_default();
            known.leave(record, Last::Told(addr), batch);
        }
        set(batch, first + FLAGS, [now]);
    }
}

impl Known {
    /// Keeps what the record of an allocator leaves open. Once the probe is gone, nothing that was told is told again by it.
    fn leave(&mut self, record: &[u8], last: Last, batch: &mut Vec<u8>) {
        if self.settled && matches!(last, Last::Told(_)) {
            return;
        }
        if self.last.len() >= KEPT
            && let Some((_, Last::Open(request))) = self.last.pop_first()
            && self.proven
        {
            append_untold(&request[..], u64::from_ne_bytes(word(record, TIME)), batch);
        }
        self.last.insert(allocator(record), last);
    }
}

/// Appends the record of a completion that the programs have not told, and therefore not counted.
fn append_untold(request: &[u8], time_ns: u64, batch: &mut Vec<u8>) {
    let first = batch.len();
    append_completion(request, batch);
    set(batch, first + TIME, time_ns.to_ne_bytes());
    set(batch, first + SEQUENCE, [0; 8]);
}

/// Appends the record of the completion of a free, given that of its request.
fn append_completion(request: &[u8], batch: &mut Vec<u8>) {
    let first = batch.len();
    // Of a calibration record the first part is the trace record, but for the kind and the length.
    batch.extend_from_slice(request.get(..TRACE).unwrap_or_default());
    set(batch, first + LEN, (TRACE as u16).to_ne_bytes());
    set(batch, first + KIND, KIND_TRACE.to_ne_bytes());
    let flags = request.get(FLAGS).copied().unwrap_or_default();
    // The block and the totals are not read when a free completes.
    let unread = TRACE_HAS_BLOCK | TRACE_HAS_TOTALS | TRACE_ON_TRIAL;
    let now = flags & !(unread | TRACE_COMPLETES | TRACE_EXPECTED);
    set(batch, first + FLAGS, [now]);
    for place in [
        offset_of!(TraceRecord, block_size),
        offset_of!(TraceRecord, total_allocated),
        offset_of!(TraceRecord, total_reserved),
    ] {
        set(batch, first + place, [0; 8]);
    }
    let number = u64::from_ne_bytes(word(request, SEQUENCE));
    set(batch, first + SEQUENCE, (number + 1).to_ne_bytes());
    set(batch, first + ACTION, FREE_COMPLETED.to_ne_bytes());
}

/// Address of the block that a trace record is about.
fn address(record: &[u8]) -> u64 {
    u64::from_ne_bytes(word(record, ADDR))
}

/// Address of the allocator that a trace record is about.
fn allocator(record: &[u8]) -> u64 {
    u64::from_ne_bytes(word(record, ALLOCATOR))
}

/// Bytes at an offset of a record that has them.
fn word<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    let bytes = record.get(at..).and_then(<[u8]>::first_chunk);
    bytes.copied().unwrap_or([0; N])
}

fn set<const N: usize>(batch: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(place) = batch.get_mut(at..at + N) {
        place.copy_from_slice(&bytes);
    }
}

#[cfg(test)]
mod tests;
