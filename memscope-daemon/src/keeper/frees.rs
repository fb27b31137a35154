//! Makes records of a free's completion out of what the probes tell once for both: two records where one tells of two events, and
//! none where a record tells what was told already. What comes out is as if each event had a record of its own, so the
//! journal and all that reads it know nothing of this.

use std::collections::{HashMap, HashSet};
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

/// What is known of the frees of all processes.
#[derive(Default)]
pub(super) struct Frees {
    /// Processes in which the call of `record_trace` in `free_block` has no probe any more.
    settled: HashSet<u32>,
    /// In other processes: the block whose completion was told last for a thread (by process and tid).
    told: HashMap<(u32, u32), u64>,
    /// In these processes: the request that is the last record of a thread, if the free is expected to complete at once.
    open: HashMap<(u32, u32), [u8; TRACE]>,
    /// Pools of the blocks whose frees wait, by process and address.
    waiting: HashMap<(u32, u64), [u8; 16]>,
}

impl Frees {
    /// The probe is gone that told of each completion, and all that it has told was taken in. A thread may have requested a free
    /// before its request told of both, and complete it only now: this appends what nobody else will tell.
    pub fn settle(&mut self, process: u32, now_ns: u64, batch: &mut Vec<u8>) {
        self.settled.insert(process);
        self.told.retain(|(of, _), _| *of != process);
        for (_, request) in self.open.extract_if(|(of, _), _| *of == process) {
            let first = batch.len();
            append_completion(&request, batch);
            set(batch, first + TIME, now_ns.to_ne_bytes());
            // It is not one of those that the programs have counted.
            set(batch, first + SEQUENCE, [0; 8]);
        }
    }

    /// Forgets a process that is not traced any more.
    pub fn forget(&mut self, process: u32) {
        self.settled.remove(&process);
        self.told.retain(|(of, _), _| *of != process);
        self.open.retain(|(of, _), _| *of != process);
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
        let addr: [u8; 8] = word(record, ADDR);
        // Hardly ever more than one free is open at a time.
        self.open
            .retain(|(of, _), request| *of != process || word(request, ADDR) != addr);
    }

    fn requested(&mut self, process: u32, record: &[u8], flags: u8, batch: &mut Vec<u8>) {
        let settled = self.settled.contains(&process);
        let thread = (process, u32::from_ne_bytes(word(record, TID)));
        let addr = u64::from_ne_bytes(word(record, ADDR));
        let first = batch.len();
        batch.extend_from_slice(record);
        if flags & TRACE_COMPLETES != 0 {
            set(batch, first + FLAGS, [flags & !TRACE_COMPLETES]);
            append_completion(record, batch);
            if !settled {
                self.told.insert(thread, addr);
            }
            return;
        }
        if !settled {
            self.told.remove(&thread);
        }
        if flags & TRACE_EXPECTED != 0 {
            self.open.insert(thread, word(record, 0));
            return;
        }
        // An earlier free of the address may have left its pool, if the record of its completion was lost.
        self.waiting.remove(&(process, addr));
        if flags & TRACE_HAS_POOL != 0 && self.waiting.len() < MOST_WAITING {
            self.waiting.insert((process, addr), word(record, POOL));
        }
    }

    fn completed(&mut self, process: u32, record: &[u8], flags: u8, batch: &mut Vec<u8>) {
        let thread = (process, u32::from_ne_bytes(word(record, TID)));
        let addr = u64::from_ne_bytes(word(record, ADDR));
        let first = batch.len();
        if flags & TRACE_EXPECTED != 0 && self.told.get(&thread) == Some(&addr) {
            self.told.remove(&thread);
            return;
        }
        batch.extend_from_slice(record);
        self.open.remove(&thread);
        let mut now = flags & !(TRACE_EXPECTED | TRACE_ENDS_WAIT);
        let pool = self.waiting.remove(&(process, addr));
        if flags & TRACE_ENDS_WAIT != 0 {
            if let Some(pool) = pool {
                set(batch, first + POOL, pool);
                now |= TRACE_HAS_POOL;
            }
            if !self.settled.contains(&process) {
                self.told.insert(thread, addr);
            }
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
