use super::*;
use memscope_common::{RECORD_VERSION, STACK_NONE};
use memscope_tests::limits::{Met, constant};
use proptest::prelude::*;

const PROCESS: u32 = 7;
const OTHER: u8 = 99;

/// The bytes of a trace record.
fn record(tid: u32, action: i32, addr: u64, flags: u8, sequence: u64) -> Vec<u8> {
    let mut bytes = vec![0; TRACE];
    set(&mut bytes, LEN, (TRACE as u16).to_ne_bytes());
    set(&mut bytes, KIND, KIND_TRACE.to_ne_bytes());
    set(
        &mut bytes,
        offset_of!(RecordHeader, version),
        [RECORD_VERSION],
    );
    set(&mut bytes, FLAGS, [flags]);
    set(
        &mut bytes,
        offset_of!(RecordHeader, process),
        PROCESS.to_ne_bytes(),
    );
    set(&mut bytes, TID, tid.to_ne_bytes());
    set(&mut bytes, SEQUENCE, sequence.to_ne_bytes());
    set(
        &mut bytes,
        offset_of!(RecordHeader, stack),
        STACK_NONE.to_ne_bytes(),
    );
    set(&mut bytes, ACTION, action.to_ne_bytes());
    set(&mut bytes, ADDR, addr.to_ne_bytes());
    set(&mut bytes, POOL, addr.to_ne_bytes());
    bytes
}

/// Action, address, flags and number of each record of a batch.
fn told(batch: &[u8]) -> Vec<(i32, u64, u8, u64)> {
    let records = batch.chunks_exact(TRACE);
    assert!(records.remainder().is_empty());
    records
        .map(|one| {
            (
                i32::from_ne_bytes(word(one, ACTION)),
                u64::from_ne_bytes(word(one, ADDR)),
                one[FLAGS],
                u64::from_ne_bytes(word(one, SEQUENCE)),
            )
        })
        .collect()
}

#[test]
fn a_free_that_completes_at_once_becomes_two_records() {
    let mut frees = Frees::default();
    let mut batch = Vec::new();
    let flags = TRACE_COMPLETES | TRACE_HAS_BLOCK | TRACE_HAS_TOTALS | TRACE_HAS_POOL;
    let mut request = record(1, FREE_REQUESTED, 0x1000, flags, 5);
    set(
        &mut request,
        offset_of!(TraceRecord, block_size),
        512u64.to_ne_bytes(),
    );
    frees.take(PROCESS, &request, &mut batch);
    let has = TRACE_HAS_BLOCK | TRACE_HAS_TOTALS | TRACE_HAS_POOL;
    let expected = [
        (FREE_REQUESTED, 0x1000, has, 5),
        (FREE_COMPLETED, 0x1000, TRACE_HAS_POOL, 6),
    ];
    assert_eq!(told(&batch), expected);
    let size: [u8; 8] = word(&batch[TRACE..], offset_of!(TraceRecord, block_size));
    assert_eq!(size, [0; 8], "a completion has no size of its own");
}

#[test]
fn of_a_calibration_record_the_completion_is_a_trace_record() {
    let mut request = record(1, FREE_REQUESTED, 0x1000, TRACE_COMPLETES, 5);
    request.resize(592, 0xee);
    set(&mut request, LEN, 592u16.to_ne_bytes());
    set(&mut request, KIND, KIND_CALIBRATION.to_ne_bytes());
    let mut batch = Vec::new();
    Frees::default().take(PROCESS, &request, &mut batch);
    assert_eq!(batch.len(), 592 + TRACE);
    assert_eq!(told(&batch[592..]), [(FREE_COMPLETED, 0x1000, 0, 6)]);
    assert_eq!(batch[592 + KIND..][..2], KIND_TRACE.to_ne_bytes());
    assert_eq!(batch[592 + LEN..][..2], (TRACE as u16).to_ne_bytes());
}

#[test]
fn a_free_that_waited_gets_its_pool() {
    let mut frees = Frees::default();
    let mut batch = Vec::new();
    frees.take(
        PROCESS,
        &record(1, FREE_REQUESTED, 0x1000, TRACE_HAS_POOL, 1),
        &mut batch,
    );
    let mut ended = record(2, FREE_COMPLETED, 0x1000, TRACE_ENDS_WAIT, 2);
    set(&mut ended, POOL, [0; 8]);
    frees.take(PROCESS, &ended, &mut batch);
    let expected = [
        (FREE_REQUESTED, 0x1000, TRACE_HAS_POOL, 1),
        (FREE_COMPLETED, 0x1000, TRACE_HAS_POOL, 2),
    ];
    assert_eq!(told(&batch), expected);
    assert_eq!(word(&batch[TRACE..], POOL), 0x1000u64.to_ne_bytes());
    assert!(frees.waiting.is_empty());
}

#[test]
fn only_so_many_pools_are_kept_and_the_rest_is_told_without() {
    let mut frees = Frees::default();
    let mut batch = Vec::new();
    for addr in 0..=MOST_WAITING as u64 {
        batch.clear();
        frees.take(
            PROCESS,
            &record(1, FREE_REQUESTED, addr, TRACE_HAS_POOL, 1),
            &mut batch,
        );
    }
    assert_eq!(frees.waiting.len(), MOST_WAITING);
    batch.clear();
    let last = record(1, FREE_COMPLETED, MOST_WAITING as u64, TRACE_ENDS_WAIT, 1);
    frees.take(PROCESS, &last, &mut batch);
    assert_eq!(told(&batch), [(FREE_COMPLETED, MOST_WAITING as u64, 0, 1)]);
    frees.forget(PROCESS);
    Met {
        what: "frees that wait for streams whose pools are kept",
        most: constant("memscope-daemon/src/keeper/frees.rs", "MOST_WAITING"),
        beyond: "the completion of further ones is told without the pool",
        told: "the trace entry has no pool",
        test: "only_so_many_pools_are_kept_and_the_rest_is_told_without",
    }
    .is_told();
    assert!(frees.waiting.is_empty() && frees.processes.is_empty());
}

#[test]
fn other_records_stay_as_they_are() {
    let mut frees = Frees::default();
    let mut batch = Vec::new();
    for record in [
        record(1, 0, 0x1000, TRACE_HAS_BLOCK, 1),
        vec![OTHER; 40],
        record(1, FREE_COMPLETED, 0x1000, TRACE_HAS_POOL, 1),
    ] {
        batch.clear();
        frees.take(PROCESS, &record, &mut batch);
        assert_eq!(batch, record);
    }
}

/// A block whose completion was lost and that was allocated again must not be told as freed.
#[test]
fn what_is_allocated_again_is_not_told_as_freed() {
    let mut frees = Frees::default();
    let mut batch = Vec::new();
    for addr in [0x1000, 0x2000] {
        let tid = addr as u32;
        let request = record(tid, FREE_REQUESTED, addr, TRACE_EXPECTED, 1);
        frees.take(PROCESS, &request, &mut batch);
    }
    frees.take(PROCESS, &record(3, ALLOC, 0x1000, 0, 2), &mut batch);
    batch.clear();
    frees.settle(PROCESS, 1, &mut batch);
    assert_eq!(told(&batch), [(FREE_COMPLETED, 0x2000, 0, 0)]);
}

/// Threads that end before their frees complete, or whose completions are lost, leave nothing that grows.
#[test]
fn what_is_kept_of_threads_is_bounded() {
    const THREADS: u32 = 200_000;
    for flags in [TRACE_EXPECTED, TRACE_COMPLETES] {
        let mut frees = Frees::default();
        let mut batch = Vec::new();
        for tid in 1..=THREADS {
            batch.clear();
            let addr = u64::from(tid) << 12;
            let request = record(tid, FREE_REQUESTED, addr, flags, 1);
            frees.take(PROCESS, &request, &mut batch);
        }
        // Another process has nothing that its allocations would have to look through.
        let allocated = record(1, ALLOC, 1 << 12, 0, 1);
        frees.take(PROCESS + 1, &allocated, &mut batch);
        assert_eq!(frees.processes.len(), 1);
        let known = &frees.processes[&PROCESS];
        let (open, told) = (&known.open.requests, &known.told);
        let of = [open.of.len(), told.of.len()];
        let order = [open.order.len(), told.order.len()];
        let expected = match flags {
            TRACE_EXPECTED => [KEPT, 0],
            _ => [0, KEPT],
        };
        assert_eq!((of, order), (expected, expected));
        assert_eq!(known.open.addresses.len(), open.of.len());
        // What came last is kept. An allocation finds it by its address.
        if flags == TRACE_EXPECTED {
            let addr = u64::from(THREADS) << 12;
            frees.take(PROCESS, &record(1, ALLOC, addr, 0, 2), &mut batch);
            batch.clear();
            frees.settle(PROCESS, 1, &mut batch);
            let mut completed: Vec<u64> = told_addresses(&batch);
            completed.sort_unstable();
            let newest = THREADS + 1 - KEPT as u32..THREADS;
            let newest: Vec<u64> = newest.map(|tid| u64::from(tid) << 12).collect();
            assert_eq!(completed, newest);
        }
        frees.forget(PROCESS);
        assert!(frees.processes.is_empty());
    }
}

fn told_addresses(batch: &[u8]) -> Vec<u64> {
    told(batch)
        .into_iter()
        .map(|(_, addr, _, _)| addr)
        .collect()
}

/// A thread that frees again, also the same block, has one request, which an allocation of its block takes away.
#[test]
fn a_thread_has_one_request() {
    let mut frees = Frees::default();
    let mut batch = Vec::new();
    for addr in [0x1000, 0x2000, 0x2000] {
        let request = record(1, FREE_REQUESTED, addr, TRACE_EXPECTED, 1);
        frees.take(PROCESS, &request, &mut batch);
    }
    let kept = |frees: &Frees| {
        let open = &frees.processes[&PROCESS].open;
        (open.requests.of.len(), open.addresses.len())
    };
    frees.take(PROCESS, &record(2, ALLOC, 0x1000, 0, 2), &mut batch);
    assert_eq!(kept(&frees), (1, 1));
    frees.take(PROCESS, &record(2, ALLOC, 0x2000, 0, 2), &mut batch);
    assert_eq!(kept(&frees), (0, 0));
}

/// On older kernels a probe runs for a moment after it was removed. What it tells then was told already.
#[test]
fn what_a_removed_probe_still_tells_is_told_already() {
    let mut frees = Frees::default();
    let mut batch = Vec::new();
    frees.settle(PROCESS, 1, &mut batch);
    let at_once = record(1, FREE_REQUESTED, 0x1000, TRACE_COMPLETES, 1);
    frees.take(PROCESS, &at_once, &mut batch);
    let waited = record(2, FREE_COMPLETED, 0x2000, TRACE_ENDS_WAIT, 3);
    frees.take(PROCESS, &waited, &mut batch);
    let once = batch.clone();
    for (tid, addr) in [(1, 0x1000), (2, 0x2000)] {
        let again = record(tid, FREE_COMPLETED, addr, TRACE_EXPECTED, 0);
        frees.take(PROCESS, &again, &mut batch);
    }
    assert_eq!(told(&batch), told(&once));
    // Where another library's allocator is searched, the probe is there again. As long as its layout is not known, no request says so.
    frees.unsettle(PROCESS);
    for (tid, flags) in [(3, 0), (1, TRACE_EXPECTED)] {
        batch.clear();
        let request = record(tid, FREE_REQUESTED, 0x1000, flags, 4);
        frees.take(PROCESS, &request, &mut batch);
        let completed = record(tid, FREE_COMPLETED, 0x1000, TRACE_EXPECTED, 5);
        frees.take(PROCESS, &completed, &mut batch);
        let actions: Vec<i32> = told(&batch).iter().map(|one| one.0).collect();
        assert_eq!(actions, [FREE_REQUESTED, FREE_COMPLETED]);
    }
}

/// What a thread does between two changes of how frees are told.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Requests the free of the block with this number, which completes at once.
    Request(u8),
    /// Completes what it has requested, if it has.
    Complete,
}

/// The probes as they are during a search (0), from the change on, when both tell of a completion (1), when the other probe was
/// removed but the kernel still lets it run (2), and when it is gone (3).
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Phase(u8);

proptest! {
    /// Whatever the threads do while the probes change, each free is told once as requested and once as completed, in this
    /// order, and nothing else is.
    #[test]
    fn each_completion_is_told_once(
        steps in prop::collection::vec((0u32..3, prop_oneof![
            (0u8..3).prop_map(Step::Request),
            Just(Step::Complete),
        ]), 0..60),
        both_from in 0usize..60,
        for_so_many in 0usize..30,
        lives_on in 0usize..30,
    ) {
        let mut frees = Frees::default();
        let mut batch = Vec::new();
        let mut open: HashMap<u32, u64> = HashMap::new();
        let mut expected: HashMap<u32, Vec<(i32, u64)>> = HashMap::new();
        let removed = both_from + for_so_many;
        let begins = [both_from, removed, removed + lives_on];
        let phase_at = |at: usize| Phase(begins.iter().map(|first| u8::from(at >= *first)).sum());
        let mut phase = Phase(0);
        for (at, (tid, step)) in steps.iter().enumerate() {
            if phase_at(at) >= Phase(2) && phase < Phase(2) {
                frees.settle(PROCESS, 1, &mut batch);
            }
            phase = phase_at(at);
            let (tid, block) = (*tid, |n: u8| 0x1000 * (u64::from(n) + 1) + (u64::from(*tid) << 32));
            match step {
                Step::Request(n) if !open.contains_key(&tid) => {
                    let addr = block(*n);
                    let flags = if phase == Phase(0) { TRACE_EXPECTED } else { TRACE_COMPLETES };
                    frees.take(PROCESS, &record(tid, FREE_REQUESTED, addr, flags, 1), &mut batch);
                    open.insert(tid, addr);
                    let all = expected.entry(tid).or_default();
                    all.extend([(FREE_REQUESTED, addr), (FREE_COMPLETED, addr)]);
                }
                Step::Request(_) => {}
                Step::Complete => {
                    let Some(addr) = open.remove(&tid) else { continue };
                    if phase < Phase(3) {
                        frees.take(PROCESS, &record(tid, FREE_COMPLETED, addr, TRACE_EXPECTED, 1), &mut batch);
                    }
                }
            }
        }
        // In the end nobody is between the two.
        if phase < Phase(3) {
            for (tid, addr) in open {
                frees.take(PROCESS, &record(tid, FREE_COMPLETED, addr, TRACE_EXPECTED, 1), &mut batch);
            }
        }
        let mut found: HashMap<u32, Vec<(i32, u64)>> = HashMap::new();
        for ((action, addr, _, _), one) in told(&batch).into_iter().zip(batch.chunks(TRACE)) {
            found.entry(u32::from_ne_bytes(word(one, TID))).or_default().push((action, addr));
        }
        prop_assert_eq!(found, expected);
    }
}
