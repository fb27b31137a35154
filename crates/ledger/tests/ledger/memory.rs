//! What is given up when memory is short, and the estimate of what the ledger takes.

use crate::common::calls::plain;
use crate::common::*;
use memscope_ledger::event::*;
use memscope_ledger::report::{ProcessState, SnapshotReport};
use memscope_ledger::{Answer, Ledger, LedgerConfig, RestoredPart, inexact};
use memscope_proto::v1;
use memscope_tests::limits::{Met, constant};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

/// Counts what each thread has allocated and not freed, as the C library's allocator rounds it.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

fn rounded(layout: Layout) -> i64 {
    (layout.size() + 8).max(32).next_multiple_of(16) as i64
}

// SAFETY: everything is passed on to the system's allocator; the count is of this thread alone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = HELD.try_with(|held| held.set(held.get() + rounded(layout)));
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let _ = HELD.try_with(|held| held.set(held.get() - rounded(layout)));
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The neighbour of the process [`P`].
const Q: ProcessHandle = ProcessHandle(2);

fn shed(part: ShedPart) -> Body {
    Body::Shed(Shed {
        part,
        held_bytes: 3 << 20,
        limit_bytes: 2 << 20,
    })
}

fn stack(id: u64) -> Body {
    Body::Stack(Box::new(StackSeen {
        id,
        frames: (0..20).map(|frame| (id * 7 + frame, frame)).collect(),
        natives: (0..10).map(|frame| 0x7000_0000 + id * 10 + frame).collect(),
        ..StackSeen::default()
    }))
}

fn name(code: u64) -> Body {
    Body::Code(Box::new(CodeName {
        code,
        name: format!("function_{code}").into(),
        file: format!("/usr/lib/python3/dist-packages/module_{code}.py").into(),
        lines: (0..40).map(|line| (line * 4, line)).collect(),
        unit: 1,
        ..CodeName::default()
    }))
}

/// What the estimate says for what is filled by `fill`, and what was really allocated for it.
fn estimated(level: Level, fill: impl FnOnce(&mut Ledger)) -> (f64, f64) {
    let mut ledger = match level {
        Level::Segments => plain().ledger,
        level => attached(level, true, SECOND),
    };
    let before = HELD.with(Cell::get);
    let estimate = ledger.bytes() as f64;
    fill(&mut ledger);
    let held = HELD.with(Cell::get) - before;
    (ledger.bytes() as f64 - estimate, held as f64)
}

#[track_caller]
fn close((estimate, held): (f64, f64)) {
    let ratio = estimate / held;
    assert!(
        (0.7..1.35).contains(&ratio),
        "estimated {estimate} of {held} bytes: {ratio:.2}"
    );
}

#[test]
fn allocations_of_the_driver_are_estimated() {
    close(estimated(Level::Segments, |ledger| {
        for number in 1..150_000u64 {
            let Body::Call(mut one) = call("cudaMalloc", CallOp::Alloc, number * 512, 512) else {
                unreachable!()
            };
            one.device = Some(0);
            ledger.apply(&event(P, SECOND + number * 1000, Body::Call(one)));
        }
    }));
}

#[test]
fn blocks_of_a_pool_and_its_trace_are_estimated() {
    let mut sim = Sim::new(Mode::Calibrated);
    for _ in 0..60_000 {
        sim.alloc(0, 0, 512);
        sim.time += 1000;
    }
    let events = std::mem::take(&mut sim.out);
    close(estimated(Level::Trace, |ledger| {
        events.iter().for_each(|event| ledger.apply(event));
    }));
}

/// A program without marks, whose allocations come in no order: all of them are counted in the search for a pattern.
#[test]
fn the_search_for_a_pattern_is_estimated() {
    let mut dice = Dice(7);
    let mut sim = Sim::new(Mode::Calibrated);
    for _ in 0..80_000 {
        let addr = sim.alloc(0, 0, 512 * (1 + dice.below(50)));
        sim.free(addr, false);
        sim.time += 1000;
    }
    let events = std::mem::take(&mut sim.out);
    close(estimated(Level::Trace, |ledger| {
        events.iter().for_each(|event| ledger.apply(event));
        ledger.apply(&event(P, sim.time, shed(ShedPart::Trace)));
    }));
}

#[test]
fn groups_are_estimated() {
    close(estimated(Level::Segments, |ledger| {
        for number in 1..40_000u64 {
            let size = 512 * number;
            for op in [CallOp::Alloc, CallOp::Free] {
                let Body::Call(mut one) = call("cudaMalloc", op, 1 << 40, size) else {
                    unreachable!()
                };
                one.device = Some(0);
                ledger.apply(&event(P, SECOND + number * 1000, Body::Call(one)));
            }
        }
    }));
}

/// Of most sizes there is a block now and then only, so that their rows of windows are short or empty, however long the process runs.
#[test]
fn groups_that_are_used_now_and_then_are_estimated() {
    for lives in [1, 60] {
        close(estimated(Level::Segments, |ledger| {
            let mut live = Vec::new();
            for number in 1..40_000u64 {
                let size = 512 * (number % 20_000 + 1);
                let time = SECOND + number * 1_000_000;
                let one = |op, addr, size| {
                    let Body::Call(mut one) = call("cudaMalloc", op, addr, size) else {
                        unreachable!()
                    };
                    one.device = Some(0);
                    Body::Call(one)
                };
                let addr = (number << 30) + (1 << 40);
                ledger.apply(&event(P, time, one(CallOp::Alloc, addr, size)));
                live.push((addr, size));
                if live.len() > lives {
                    let (addr, size) = live.remove(0);
                    ledger.apply(&event(P, time, one(CallOp::Free, addr, size)));
                }
            }
        }));
    }
}

#[test]
fn stacks_and_names_are_estimated() {
    close(estimated(Level::Segments, |ledger| {
        for id in 1..20_000 {
            ledger.apply(&event(P, SECOND + id, stack(id)));
            ledger.apply(&event(P, SECOND + id, name(id * 7)));
            let native = NativeName {
                address: 0x7000_0000 + id * 10,
                module: "/usr/lib/x86_64-linux-gnu/libexample.so.1".into(),
                functions: vec![NativeFunction {
                    name: format!("example::function::number_{id}(unsigned long)").into(),
                    ..NativeFunction::default()
                }],
                ..NativeName::default()
            };
            ledger.apply(&event(P, SECOND + id, Body::Native(Box::new(native))));
        }
    }));
}

/// Whatever was there is really free again, and the estimate says so.
#[test]
fn what_was_given_up_is_free() {
    let mut ledger = plain().ledger;
    let empty = HELD.with(Cell::get);
    for number in 1..100_000u64 {
        let Body::Call(mut one) = call("cudaMalloc", CallOp::Alloc, number * 512, 512) else {
            unreachable!()
        };
        one.device = Some(0);
        ledger.apply(&event(P, SECOND + number, Body::Call(one)));
    }
    for id in 1..5_000 {
        ledger.apply(&event(P, SECOND + id, stack(id)));
    }
    let kept = ledger.kept_bytes(P).unwrap();
    let full = HELD.with(Cell::get);
    ledger.apply(&event(P, 2 * SECOND, shed(ShedPart::Stacks)));
    let freed = (full - HELD.with(Cell::get)) as f64;
    assert!(freed > kept.stacks as f64 * 0.7, "{freed} of {kept:?}");
    assert!(ledger.kept_bytes(P).unwrap().stacks < 1000);
    ledger.apply(&event(P, 2 * SECOND, shed(ShedPart::Process)));
    let left = HELD.with(Cell::get) - empty;
    assert!(left < 200_000, "{left} bytes are left");
    assert!(ledger.bytes() < 200_000);
}

/// Many processes may end one after the other, and none of them takes room from those that run once it was given up.
#[test]
fn what_is_left_of_many_that_were_given_up_is_little() {
    let empty = HELD.with(Cell::get);
    let mut ledger = Ledger::new(LedgerConfig::default());
    for number in 1..=1_000 {
        let process = ProcessHandle(number);
        let time = SECOND + u64::from(number) * MS;
        let facts = ProcessFacts {
            cmdline: ["python", "train.py", "--steps", "1000"]
                .map(Into::into)
                .into(),
            environment: vec![("RANK".to_owned(), number.to_string())],
            ..*facts(number, Level::Segments, false)
        };
        ledger.apply(&event(process, time, Body::Attached(Box::new(facts))));
        let allocated = call("cudaMalloc", CallOp::Alloc, 4096, 512);
        ledger.apply(&event(process, time, allocated));
        ledger.apply(&event(process, time, Body::Exited));
        ledger.apply(&event(process, time, shed(ShedPart::Process)));
    }
    assert_eq!(ledger.processes().len(), 1_000);
    let (estimate, held) = (ledger.bytes(), HELD.with(Cell::get) - empty);
    assert!(estimate < 8 << 20, "{estimate}");
    close((estimate as f64, held as f64));
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { of_q: bool, size: u16, stack: u8 },
    Free { of_q: bool, pick: u16 },
    Stack(u8),
    Shed { of_q: bool, part: ShedPart },
    End,
}

fn step() -> impl Strategy<Value = Step> {
    let part = prop::sample::select(vec![
        ShedPart::Trace,
        ShedPart::History,
        ShedPart::Stacks,
        ShedPart::Process,
    ]);
    prop_oneof![
        20 => (any::<bool>(), 1..2000u16, 0..6u8)
            .prop_map(|(of_q, size, stack)| Step::Alloc { of_q, size, stack }),
        10 => (any::<bool>(), any::<u16>()).prop_map(|(of_q, pick)| Step::Free { of_q, pick }),
        4 => (0..6u8).prop_map(Step::Stack),
        2 => (any::<bool>(), part).prop_map(|(of_q, part)| Step::Shed { of_q, part }),
        1 => Just(Step::End),
    ]
}

/// What one process holds, by address, and what was given up of it.
#[derive(Clone, Debug, Default)]
struct Model {
    live: BTreeMap<u64, u64>,
    gone: Vec<ShedPart>,
    ended: bool,
}

impl Model {
    fn is_given_up(&self) -> bool {
        self.gone.contains(&ShedPart::Process)
    }
}

/// The events of these steps, and what a naive model makes of them.
fn told(steps: &[Step]) -> (Vec<Event>, [Model; 2]) {
    let mut events = Vec::new();
    let mut models = [Model::default(), Model::default()];
    let mut next = 4096;
    let of = |of_q: bool| if of_q { (Q, 1) } else { (P, 0) };
    let mut tell = |process, stack, body| {
        let number = events.len() as u64 + 1;
        events.push(Event {
            id: EventId {
                epoch: 1,
                sequence: number,
            },
            stack,
            ..event(process, SECOND + number * MS, body)
        });
    };
    for (process, pid) in [(P, 42), (Q, 43)] {
        let facts = facts(pid, Level::Segments, true);
        tell(process, StackRef::NotTaken, Body::Attached(facts));
    }
    for step in steps {
        match *step {
            Step::Alloc { of_q, size, stack } => {
                let (process, place) = of(of_q);
                next += 4096;
                let Body::Call(mut one) = call("cudaMalloc", CallOp::Alloc, next, size.into())
                else {
                    unreachable!()
                };
                one.device = Some(0);
                tell(process, StackRef::Id(stack.into()), Body::Call(one));
                let model = &mut models[place];
                if !model.ended {
                    model.live.insert(next, size.into());
                }
            }
            Step::Free { of_q, pick } => {
                let (process, place) = of(of_q);
                let model = &mut models[place];
                let count = model.live.len().max(1);
                let Some(ptr) = model.live.keys().nth(usize::from(pick) % count).copied() else {
                    continue;
                };
                tell(
                    process,
                    StackRef::NotTaken,
                    call("cudaFree", CallOp::Free, ptr, 0),
                );
                if !model.ended {
                    model.live.remove(&ptr);
                }
            }
            Step::Stack(id) => tell(P, StackRef::NotTaken, stack(id.into())),
            Step::Shed { of_q, part } => {
                let (process, place) = of(of_q);
                tell(process, StackRef::NotTaken, shed(part));
                models[place].gone.push(part);
                models[place].ended |= part == ShedPart::Process;
            }
            Step::End => {
                tell(P, StackRef::NotTaken, Body::Exited);
                models[0].ended = true;
            }
        }
    }
    (events, models)
}

/// Everything that is answered about a process.
fn answers(ledger: &Ledger, of: ProcessHandle) -> (v1::StatsResponse, String) {
    let stats = ledger
        .ask(&[of], as_of(0), &v1::StatsRequest::default())
        .unwrap();
    let leaks = ledger
        .ask(&[of], as_of(0), &v1::LeaksRequest::default())
        .unwrap();
    let course = ledger
        .ask(&[of], as_of(0), &v1::FluctuationRequest::default())
        .unwrap();
    let picture = ledger.snapshot(of, as_of(0)).unwrap();
    let summary = ledger.summary(of).unwrap();
    let mut stacks = ledger.stacks(of, as_of(0)).unwrap();
    stacks
        .rows
        .sort_by_key(|row| (row.live.bytes, row.allocated.bytes, format!("{row:?}")));
    let rest = format!("{leaks:?} {course:?} {picture:?} {summary:?} {stacks:?}");
    (stats, rest)
}

fn blocks(picture: &SnapshotReport) -> BTreeMap<u64, u64> {
    let segments = picture.segments.iter();
    let blocks = segments.flat_map(|segment| &segment.blocks);
    blocks.map(|block| (block.addr, block.size)).collect()
}

/// The ledger as it is after it was written into a checkpoint and read again.
fn through_a_checkpoint(ledger: &Ledger) -> Ledger {
    let written = rmp_serde::to_vec_named(ledger).unwrap();
    let mut again: Ledger = memscope_messagepack::from_slice(&written).unwrap();
    for part in ledger.parts() {
        let written = rmp_serde::to_vec_named(&part).unwrap();
        let part: RestoredPart = memscope_messagepack::from_slice(&written).unwrap();
        again.put(part);
    }
    again
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_number_is_right_or_a_note_says_that_it_is_not(
        steps in prop::collection::vec(step(), 1..150),
        cut in any::<prop::sample::Index>(),
    ) {
        let (events, models) = told(&steps);
        let mut ledger = Ledger::new(LedgerConfig::default());
        let mut resumed = Ledger::new(LedgerConfig::default());
        let cut = cut.index(events.len());
        for (place, event) in events.iter().enumerate() {
            ledger.apply(event);
            resumed.apply(event);
            if place == cut {
                resumed = through_a_checkpoint(&resumed);
            }
        }
        for (process, model) in [P, Q].into_iter().zip(models) {
            let (stats, rest) = answers(&ledger, process);
            let (stats_of_other, rest_of_other) = answers(&resumed, process);
            prop_assert_eq!(&stats, &stats_of_other);
            prop_assert_eq!(rest, rest_of_other);
            for part in ShedPart::ALL {
                let is_gone = model.gone.contains(&part);
                prop_assert_eq!(has_note(&stats.coverage, part.code()), is_gone);
                prop_assert_eq!(ledger.shed(process, part).is_some(), is_gone);
            }
            let summary = ledger.summary(process).unwrap();
            if model.is_given_up() {
                prop_assert_eq!(summary.state, ProcessState::GivenUp);
                prop_assert_eq!(summary.allocated_bytes, None);
                prop_assert!(!inexact(Answer::Stats, &stats.coverage).is_empty());
                prop_assert!(!inexact(Answer::Stacks, &stats.coverage).is_empty());
                continue;
            }
            // What lives, and how much that is, does not depend on what was given up.
            let held: u64 = model.live.values().sum();
            prop_assert_eq!(summary.allocated_bytes, Some(held));
            let picture = ledger.snapshot(process, as_of(0)).unwrap();
            prop_assert_eq!(blocks(&picture), model.live);
            prop_assert!(inexact(Answer::Picture, &picture.coverage).is_empty());
            // Nor does the sum over all stacks, whichever of them are gone.
            let stacks = ledger.stacks(process, as_of(0)).unwrap();
            let by_stack: u64 = stacks.rows.iter().map(|row| row.live.bytes).sum();
            prop_assert_eq!(by_stack, held);
        }
    }
}

/// Frames of a stack that is gone are not shown under another stack's number.
#[test]
fn a_stack_that_is_gone_is_no_other_stack() {
    let mut ledger = plain().ledger;
    let mut number = 0;
    let mut alloc = |ledger: &mut Ledger, id: u64| {
        number += 1;
        let Body::Call(mut one) = call("cudaMalloc", CallOp::Alloc, number << 12, 512) else {
            unreachable!()
        };
        one.device = Some(0);
        ledger.apply(&Event {
            stack: StackRef::Id(id),
            ..event(P, SECOND + number, Body::Call(one))
        });
    };
    ledger.apply(&event(P, SECOND, stack(1)));
    alloc(&mut ledger, 1);
    ledger.apply(&event(P, SECOND, shed(ShedPart::Stacks)));
    // The programs send the stack once more, under another number.
    ledger.apply(&event(P, SECOND, stack(2)));
    alloc(&mut ledger, 2);
    alloc(&mut ledger, 2);
    let report = ledger.stacks(P, as_of(0)).unwrap();
    let mut rows: Vec<(u64, bool)> = report
        .rows
        .iter()
        .map(|row| (row.live.count, row.stack.missing == Some("lost")))
        .collect();
    rows.sort_unstable();
    assert_eq!(rows, [(1, true), (2, false)]);
}

/// A program may name any number of devices. Those beyond the bound are one unknown device, and a note says so.
#[test]
fn devices_are_bounded() {
    let mut ledger = plain().ledger;
    for ordinal in 0..5_000 {
        let Body::Call(mut one) = call(
            "cudaMalloc",
            CallOp::Alloc,
            4096 + (ordinal as u64) * 512,
            512,
        ) else {
            unreachable!()
        };
        one.device = Some(ordinal);
        ledger.apply(&event(P, SECOND + ordinal as u64, Body::Call(one)));
    }
    let stats = stats(&ledger);
    assert_eq!(stats.devices.len(), 257);
    assert!(has_note(&stats.coverage, "devices_full"));
    let all: u64 = stats
        .devices
        .iter()
        .filter_map(|device| Some(device.driver?.bytes))
        .sum();
    assert_eq!(all, 5_000 * 512);
    Met {
        what: "devices of a process that are known by number",
        most: constant("crates/ledger/src/state/device.rs", "MOST"),
        beyond: "what is on further ones counts to an unknown device",
        told: "`devices_full` in coverage",
        test: "devices_are_bounded",
    }
    .is_told();
}
