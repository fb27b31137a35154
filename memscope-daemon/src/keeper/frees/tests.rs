use super::*;
use memscope_common::{RECORD_VERSION, STACK_NONE};
use memscope_tests::limits::{Met, constant};
use proptest::prelude::*;

const PROCESS: u32 = 7;
const OTHER: u8 = 99;
const ALLOC: i32 = 0;

/// The bytes of a trace record of an allocator.
fn record(of: u64, action: i32, addr: u64, flags: u8, sequence: u64) -> Vec<u8> {
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
    set(&mut bytes, ALLOCATOR, of.to_ne_bytes());
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

/// The probe that tells of completions is gone, and the keeper does not know it yet: what the allocator tells next, from
/// whatever thread, comes after the completion, since the thread that frees holds the allocator's lock meanwhile.
#[test]
fn a_completion_that_nobody_told_comes_before_what_the_allocator_tells_next() {
    for (next, action, addr) in [
        ("the block is allocated again", ALLOC, 0x1000),
        ("another block is allocated", ALLOC, 0x5000),
        (
            "the free of another block is requested",
            FREE_REQUESTED,
            0x5000,
        ),
        (
            "the free of another block completes",
            FREE_COMPLETED,
            0x5000,
        ),
        ("a segment is taken", 3, 0x10_0000),
    ] {
        let mut frees = Frees::default();
        let mut batch = Vec::new();
        for of in [1, 2] {
            let request = record(of, FREE_REQUESTED, of << 12, TRACE_EXPECTED, of);
            frees.take(PROCESS, &request, &mut batch);
        }
        frees.prove(PROCESS, true);
        let mut then = record(1, action, addr, 0, 3);
        set(&mut then, TIME, 77u64.to_ne_bytes());
        frees.take(PROCESS, &then, &mut batch);
        frees.settle(PROCESS, 99, &mut batch);
        let expected = [
            (FREE_REQUESTED, 0x1000, TRACE_EXPECTED, 1),
            (FREE_REQUESTED, 0x2000, TRACE_EXPECTED, 2),
            (FREE_COMPLETED, 0x1000, 0, 0),
            (action, addr, 0, 3),
            (FREE_COMPLETED, 0x2000, 0, 0),
        ];
        assert_eq!(told(&batch), expected, "{next}");
        let times = batch
            .chunks(TRACE)
            .map(|one| u64::from_ne_bytes(word(one, TIME)));
        assert_eq!(times.collect::<Vec<_>>(), [0, 0, 77, 77, 99], "{next}");
    }
}

/// While it is searched whether frees complete at once, nothing is told that would prove it.
#[test]
fn what_is_not_proven_is_not_told() {
    let mut frees = Frees::default();
    for searched_again in [false, true] {
        if searched_again {
            frees.prove(PROCESS, true);
            frees.prove(PROCESS, false);
        }
        let mut batch = Vec::new();
        for (action, addr, flags) in [
            (FREE_REQUESTED, 0x1000, TRACE_EXPECTED),
            (FREE_REQUESTED, 0x2000, TRACE_EXPECTED),
            (ALLOC, 0x3000, 0),
            (FREE_COMPLETED, 0x1000, TRACE_EXPECTED),
        ] {
            frees.take(PROCESS, &record(1, action, addr, flags, 1), &mut batch);
        }
        let actions: Vec<i32> = told(&batch).iter().map(|one| one.0).collect();
        assert_eq!(
            actions,
            [FREE_REQUESTED, FREE_REQUESTED, ALLOC, FREE_COMPLETED]
        );
    }
}

/// Whatever addresses of allocators a program tells of, they leave nothing that grows, and each completion is told.
#[test]
fn what_is_kept_of_allocators_is_bounded() {
    const ALLOCATORS: u64 = 20_000;
    for flags in [TRACE_EXPECTED, TRACE_COMPLETES] {
        let mut frees = Frees::default();
        let mut batch = Vec::new();
        frees.prove(PROCESS, true);
        for of in 1..=ALLOCATORS {
            let request = record(of, FREE_REQUESTED, of << 12, flags, 1);
            frees.take(PROCESS, &request, &mut batch);
            assert!(frees.processes[&PROCESS].last.len() <= KEPT);
        }
        frees.settle(PROCESS, 1, &mut batch);
        let mut completed: Vec<u64> = told(&batch)
            .into_iter()
            .filter(|(action, ..)| *action == FREE_COMPLETED)
            .map(|(_, addr, ..)| addr)
            .collect();
        completed.sort_unstable();
        let all: Vec<u64> = (1..=ALLOCATORS).map(|of| of << 12).collect();
        assert_eq!(completed, all);
        assert!(frees.processes[&PROCESS].last.is_empty());
        frees.forget(PROCESS);
        assert!(frees.processes.is_empty());
    }
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
    for (of, addr) in [(1, 0x1000), (2, 0x2000)] {
        let again = record(of, FREE_COMPLETED, addr, TRACE_EXPECTED, 0);
        frees.take(PROCESS, &again, &mut batch);
    }
    assert_eq!(told(&batch), told(&once));
    // Where another library's allocator is searched, the probe is there again. As long as its layout is not known, no request says so.
    frees.unsettle(PROCESS);
    for (of, flags) in [(3, 0), (1, TRACE_EXPECTED)] {
        batch.clear();
        let request = record(of, FREE_REQUESTED, 0x1000, flags, 4);
        frees.take(PROCESS, &request, &mut batch);
        let completed = record(of, FREE_COMPLETED, 0x1000, TRACE_EXPECTED, 5);
        frees.take(PROCESS, &completed, &mut batch);
        let actions: Vec<i32> = told(&batch).iter().map(|one| one.0).collect();
        assert_eq!(actions, [FREE_REQUESTED, FREE_COMPLETED]);
    }
}

/// What a thread does with an allocator between two changes of how frees are told.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Requests the free of the block with this number, which completes at once. The lock is held from here on.
    Request(u8),
    /// Completes what was requested, if it was. The lock is given back.
    Complete,
    /// Allocates the block with this number, if nobody holds the lock.
    Allocate(u8),
}

/// The probes as they are during a search (0), from the change on, when both tell of a completion (1), when the other probe was
/// removed but the kernel still lets it run (2), and when it is gone (3).
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Phase(u8);

proptest! {
    /// Whatever the threads do while the probes change, and however late the keeper hears of it, each free is told once as requested
    /// and once as completed, and all that an allocator does in the order in which it did it.
    #[test]
    fn each_completion_is_told_once(
        steps in prop::collection::vec((0u64..3, prop_oneof![
            (0u8..3).prop_map(Step::Request),
            Just(Step::Complete),
            (0u8..3).prop_map(Step::Allocate),
        ]), 0..60),
        both_from in 0usize..60,
        for_so_many in 0usize..30,
        lives_on in 0usize..30,
        heard_after in 0usize..40,
    ) {
        let mut frees = Frees::default();
        let mut batch = Vec::new();
        let mut open: HashMap<u64, u64> = HashMap::new();
        let mut expected: HashMap<u64, Vec<(i32, u64)>> = HashMap::new();
        let removed = both_from + for_so_many;
        let begins = [both_from, removed, removed + lives_on];
        let phase_at = |at: usize| Phase(begins.iter().map(|first| u8::from(at >= *first)).sum());
        let mut phase = Phase(0);
        let mut heard = false;
        for (at, (of, step)) in steps.iter().enumerate() {
            if at >= both_from {
                frees.prove(PROCESS, true);
            }
            if at >= removed + heard_after && !heard {
                frees.settle(PROCESS, 1, &mut batch);
                heard = true;
            }
            phase = phase_at(at);
            let (of, block) = (*of, |n: u8| 0x1000 * (u64::from(n) + 1) + (*of << 32));
            let all = expected.entry(of).or_default();
            match step {
                Step::Request(n) if !open.contains_key(&of) => {
                    let addr = block(*n);
                    let flags = if phase == Phase(0) { TRACE_EXPECTED } else { TRACE_COMPLETES };
                    frees.take(PROCESS, &record(of, FREE_REQUESTED, addr, flags, 1), &mut batch);
                    open.insert(of, addr);
                    all.extend([(FREE_REQUESTED, addr), (FREE_COMPLETED, addr)]);
                }
                Step::Allocate(n) if !open.contains_key(&of) => {
                    frees.take(PROCESS, &record(of, ALLOC, block(*n), 0, 1), &mut batch);
                    all.push((ALLOC, block(*n)));
                }
                Step::Request(_) | Step::Allocate(_) => {}
                Step::Complete => {
                    let Some(addr) = open.remove(&of) else { continue };
                    if phase < Phase(3) {
                        frees.take(PROCESS, &record(of, FREE_COMPLETED, addr, TRACE_EXPECTED, 1), &mut batch);
                    }
                }
            }
        }
        // In the end nobody is between the two.
        for (of, addr) in open {
            if phase < Phase(3) {
                frees.take(PROCESS, &record(of, FREE_COMPLETED, addr, TRACE_EXPECTED, 1), &mut batch);
            }
        }
        frees.settle(PROCESS, 1, &mut batch);
        let mut found: HashMap<u64, Vec<(i32, u64)>> = HashMap::new();
        for ((action, addr, _, _), one) in told(&batch).into_iter().zip(batch.chunks(TRACE)) {
            found.entry(allocator(one)).or_default().push((action, addr));
        }
        expected.retain(|_, all| !all.is_empty());
        prop_assert_eq!(found, expected);
    }
}
