//! Makes records of a free's completion out of what the probes tell once for both: two records where one tells of two events, and
//! none where a record tells what was told already. What comes out is as if each event had a record of its own, so the
//! journal and all that reads it know nothing of this.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::offset_of;

use memscope_common::{
    KIND_CALIBRATION, KIND_TRACE, RecordHeader, TRACE_COMPLETES, TRACE_ENDS_WAIT, TRACE_EXPECTED,
    TRACE_HAS_BLOCK, TRACE_HAS_POOL, TRACE_HAS_TOTALS, TRACE_ON_TRIAL, TraceRecord,
};

const KIND: usize = offset_of!(RecordHeader, kind);
const FLAGS: usize = offset_of!(RecordHeader, flags);
const LEN: usize = offset_of!(RecordHeader, len);
const TIME: usize = offset_of!(RecordHeader, time_ns);
const TID: usize = offset_of!(RecordHeader, tid);
const SEQUENCE: usize = offset_of!(RecordHeader, sequence);
const ACTION: usize = offset_of!(TraceRecord, action);
const ADDR: usize = offset_of!(TraceRecord, addr);
const POOL: usize = offset_of!(TraceRecord, pool);
/// Length of a trace record.
const TRACE: usize = size_of::<TraceRecord>();

const ALLOC: i32 = 0;
const FREE_REQUESTED: i32 = 1;
const FREE_COMPLETED: i32 = 2;
/// Most frees that wait for streams whose pools are kept. Their completion is told in any case; of those beyond this number it is
/// told without the pool.
pub(super) const MOST_WAITING: usize = 1 << 16;

/// Threads of a process of which it is kept what they did last. Hardly ever more than one frees at a time; what a thread did before so
/// many others were told of will not be completed any more, because the record of that was lost.
const KEPT: usize = 1 << 12;

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
    /// The block whose completion was told last for a thread.
    told: Latest<u64>,
    /// Before that: the requests that are the last record of a thread, if the free is expected to complete at once.
    open: Open,
}

/// Something about each thread, but only of the [`KEPT`] threads that came last.
struct Latest<V> {
    /// By tid, each with its number in the order in which they came.
    of: HashMap<u32, (u64, V)>,
    /// The tids in this order.
    order: BTreeMap<u64, u32>,
    next: u64,
}

impl<V> Default for Latest<V> {
    fn default() -> Latest<V> {
        Latest {
            of: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<V> Latest<V> {
    fn get(&self, tid: u32) -> Option<&V> {
        self.of.get(&tid).map(|(_, value)| value)
    }

    fn remove(&mut self, tid: u32) -> Option<V> {
        let (number, value) = self.of.remove(&tid)?;
        self.order.remove(&number);
        Some(value)
    }

    /// Returns what gives way: what was known of the same thread, or of the one that came first.
    fn insert(&mut self, tid: u32, value: V) -> Option<(u32, V)> {
        let mut gone = self.remove(tid).map(|value| (tid, value));
        if self.of.len() >= KEPT
            && let Some((_, first)) = self.order.pop_first()
        {
            gone = self.of.remove(&first).map(|(_, value)| (first, value));
        }
        self.of.insert(tid, (self.next, value));
        self.order.insert(self.next, tid);
        self.next += 1;
        gone
    }
}

/// Requests of frees whose completion is yet to be told, at most one of each thread.
#[derive(Default)]
struct Open {
    requests: Latest<[u8; TRACE]>,
    /// Their addresses, each with the thread.
    addresses: BTreeSet<(u64, u32)>,
}

impl Open {
    fn insert(&mut self, tid: u32, request: [u8; TRACE]) {
        let here = (address(&request), tid);
        if let Some((tid, gone)) = self.requests.insert(tid, request) {
            self.addresses.remove(&(address(&gone), tid));
        }
        self.addresses.insert(here);
    }

    fn remove(&mut self, tid: u32) {
        if let Some(gone) = self.requests.remove(tid) {
            self.addresses.remove(&(address(&gone), tid));
        }
    }

    /// Forgets the requests of frees of this address.
    fn remove_address(&mut self, addr: u64) {
        let here = (addr, 0)..=(addr, u32::MAX);
        while let Some(&one) = self.addresses.range(here.clone()).next() {
            self.addresses.remove(&one);
            self.requests.remove(one.1);
        }
    }
}

impl Frees {
    /// The probe was removed that told of each completion, and what it had told by then was taken in. A thread may have requested a
    /// free before its request told of both, and complete it only now: this appends what nobody else will tell. On older kernels
    /// the probe goes on for a moment; what it still tells is dropped.
    pub fn settle(&mut self, process: u32, now_ns: u64, batch: &mut Vec<u8>) {
        let known = self.processes.entry(process).or_default();
        known.settled = true;
        let open = std::mem::take(&mut known.open);
        for (_, request) in open.requests.of.values() {
            let first = batch.len();
            append_completion(request, batch);
            set(batch, first + TIME, now_ns.to_ne_bytes());
            // It is not one of those that the programs have counted.
            set(batch, first + SEQUENCE, [0; 8]);
        }
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
        match i32::from_ne_bytes(word(record, ACTION)) {
            FREE_REQUESTED => self.requested(process, record, flags, batch),
            FREE_COMPLETED => self.completed(process, record, flags, batch),
            ALLOC => {
                self.allocated(process, record);
                batch.extend_from_slice(record);
            }
            _ => batch.extend_from_slice(record),
        }
    }

    /// What is allocated again was freed completely before, whether or not the record of that was lost.
    fn allocated(&mut self, process: u32, record: &[u8]) {
        if let Some(known) = self.processes.get_mut(&process) {
            known.open.remove_address(address(record));
        }
    }

    fn requested(&mut self, process: u32, record: &[u8], flags: u8, batch: &mut Vec<u8>) {
        let known = self.processes.entry(process).or_default();
        let tid = u32::from_ne_bytes(word(record, TID));
        let addr = address(record);
        let first = batch.len();
        batch.extend_from_slice(record);
        if flags & TRACE_COMPLETES != 0 {
            set(batch, first + FLAGS, [flags & !TRACE_COMPLETES]);
            append_completion(record, batch);
            known.told.insert(tid, addr);
            return;
        }
        known.told.remove(tid);
        if flags & TRACE_EXPECTED != 0 {
            // The programs rely on that probe, as when the allocator of another library came.
            known.settled = false;
            known.open.insert(tid, word(record, 0));
            return;
        }
        // An earlier free of the address may have left its pool, if the record of its completion was lost.
        self.waiting.remove(&(process, addr));
        if flags & TRACE_HAS_POOL != 0 && self.waiting.len() < MOST_WAITING {
            self.waiting.insert((process, addr), word(record, POOL));
        }
    }

    fn completed(&mut self, process: u32, record: &[u8], flags: u8, batch: &mut Vec<u8>) {
        let known = self.processes.entry(process).or_default();
        let tid = u32::from_ne_bytes(word(record, TID));
        let addr = address(record);
        let first = batch.len();
        if flags & TRACE_EXPECTED != 0 && (known.settled || known.told.get(tid) == Some(&addr)) {
            known.told.remove(tid);
            return;
        }
        batch.extend_from_slice(record);
        known.open.remove(tid);
        let mut now = flags & !(TRACE_EXPECTED | TRACE_ENDS_WAIT);
        let pool = self.waiting.remove(&(process, addr));
        if flags & TRACE_ENDS_WAIT != 0 {
            if let Some(pool) = pool {
                set(batch, first + POOL, pool);
                now |= TRACE_HAS_POOL;
            }
            known.told.insert(tid, addr);
        }
        set(batch, first + FLAGS, [now]);
    }
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
