//! What `leaks` reports beside the verdicts: sums over all groups, growth that is too young to be judged, and growth
//! that was given back. Also that all of it stays true while not all stacks are recorded.

use crate::common::pictures::tell;
use crate::common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_proto::v1;
use memscope_proto::v1::{
    LeakGroup, LeaksRequest, LeaksResponse, StepsRequest, StepsResponse, YoungGrowth,
};
use std::collections::VecDeque;

/// Stacks, each with one line of its own.
const LEAK: u64 = 51;
const OTHER: u64 = 52;
const STEP: u64 = 60;
const OTHER_STEP: u64 = 61;

/// A training loop whose optimizer makes the marks that end steps.
#[derive(Clone)]
struct Training {
    sim: Sim,
    ledger: Ledger,
    /// What the BPF programs record of the stack with this identity: the stack, and its sampling.
    recorded: fn(u64) -> (StackRef, u8),
}

impl Training {
    fn new() -> Training {
        Training::with(Sim::new(Mode::Calibrated), true)
    }

    /// Attaches now, to a process that has done all that the simulator has done so far.
    fn with(mut sim: Sim, from_start: bool) -> Training {
        sim.attached = true;
        let mut ledger = attached(Level::Trace, from_start, sim.time);
        for id in [LEAK, OTHER, STEP, OTHER_STEP] {
            sim.line(id);
        }
        sim.feed(&mut ledger);
        Training {
            sim,
            ledger,
            recorded: |id| (StackRef::Id(id), 0),
        }
    }

    fn alloc(&mut self, stack: u64, size: u64) -> u64 {
        (self.sim.stack, self.sim.sampling) = (self.recorded)(stack);
        self.sim.time += MS / 10;
        let addr = self.sim.alloc(0, 0, size);
        self.sim.feed(&mut self.ledger);
        addr
    }

    /// A program that works frees most of what it allocates. Nothing of it repeats, so there are no steps.
    fn work(&mut self, dice: &mut Dice) {
        for _ in 0..4 + dice.below(4) {
            let passing = self.alloc(OTHER, 3000 + dice.below(500_000));
            self.free(passing);
        }
        self.sim.time += 20 * MS;
    }

    /// Works without steps, and leaks a block each time; returns these.
    fn leak_without_steps(&mut self) -> Vec<u64> {
        let mut dice = Dice(3);
        let leaks = (0..300).map(|_| {
            let leaked = self.alloc(LEAK, 64 << 10);
            self.work(&mut dice);
            leaked
        });
        leaks.collect()
    }

    fn free(&mut self, addr: u64) {
        self.sim.time += MS / 10;
        self.sim.free(addr, false);
        self.sim.feed(&mut self.ledger);
    }

    fn say(&mut self, body: Body) {
        self.sim.emit(body);
        self.sim.feed(&mut self.ledger);
    }

    /// One training step: activations are allocated and freed, then the optimizer steps.
    fn step(&mut self) {
        self.step_at(STEP);
    }

    fn step_at(&mut self, line: u64) {
        let blocks: Vec<u64> = (0..4).map(|n| self.alloc(OTHER, MIB + n * 4096)).collect();
        for addr in blocks {
            self.free(addr);
        }
        self.sim.time += 10 * MS;
        (self.sim.stack, self.sim.sampling) = (self.recorded)(line);
        self.say(update(MarkKind::Begin, "SGD"));
        self.say(update(MarkKind::End, "SGD"));
    }

    fn steps(&self) -> StepsResponse {
        let query = StepsRequest::default();
        self.ledger.ask(&[P], as_of(self.sim.time), &query).unwrap()
    }

    /// From now on not all stacks are recorded, or all of them again.
    fn record(&mut self, reduced: bool, recorded: fn(u64) -> (StackRef, u8)) {
        self.recorded = recorded;
        self.say(Body::Coverage(CoverageNote {
            code: "stacks_reduced".to_owned(),
            text: if reduced { "fewer" } else { "" }.to_owned(),
        }));
    }

    fn ask(&self, query: &LeaksRequest) -> LeaksResponse {
        self.ledger.ask(&[P], as_of(self.sim.time), query).unwrap()
    }

    /// Checks that every block is in exactly one of the groups.
    fn told_once(&self) {
        let report = self.ask(&LeaksRequest {
            include_steady: true,
            ..LeaksRequest::default()
        });
        let of_groups: u64 = report.groups.iter().map(|group| group.live_count).sum();
        let of_lines: u64 = report.lines.iter().map(|line| line.live_count).sum();
        let live = self.sim.live.len() as u64;
        assert_eq!((of_groups, of_lines), (live, live), "{report:#?}");
    }

    /// What `leaks` says of the same process when it ends now, after it has freed all that it holds.
    fn ends(&self) -> LeaksResponse {
        let mut ending = self.clone();
        let all: Vec<u64> = ending.sim.live.keys().copied().collect();
        for addr in all {
            ending.free(addr);
        }
        ending.sim.time += MS;
        ending.say(Body::Exited);
        ending.ask(&LeaksRequest::default())
    }

    fn leaks(&self) -> LeaksResponse {
        let report = self.ask(&LeaksRequest::default());
        for group in &report.groups {
            assert!(group.growth_bytes <= group.live_bytes, "{group:#?}");
            assert!(group.growth_count <= group.live_count, "{group:#?}");
        }
        self.told_once();
        report
    }
}

fn line(group: &LeakGroup) -> Option<u32> {
    group.line.as_ref().map(|frame| frame.line)
}

#[test]
fn what_is_given_back_after_the_last_step_is_told_at_once() {
    let mut training = Training::new();
    let mut kept = Vec::new();
    for _ in 0..150 {
        kept.push(training.alloc(LEAK, 64 << 10));
        training.step();
    }
    let grown = training.leaks();
    assert_eq!(grown.growing_groups, 1);
    assert!(grown.given_back.is_empty());
    // There are no more steps. Half of the blocks are freed, then all others but a few.
    for addr in kept.drain(75..) {
        training.free(addr);
    }
    let half = training.leaks();
    assert_eq!(
        (half.growing_groups, half.growing_bytes),
        (0, 0),
        "{half:#?}"
    );
    for addr in kept.drain(10..) {
        training.free(addr);
    }
    let last = training.sim.time;
    training.sim.time += 5 * SECOND;
    let report = training.leaks();
    assert_eq!(report.growing_groups, 0, "{report:#?}");
    assert_eq!(report.given_back.len(), 1, "{report:#?}");
    let back = &report.given_back[0];
    // The last blocks were allocated after the last floor was taken.
    assert!(
        (138..=140).contains(&(back.bytes / (64 << 10))),
        "{back:#?}"
    );
    assert_eq!((back.size_bytes, back.last_boot_ns), (Some(64 << 10), last));
    assert_eq!((back.first_step, back.step), (Some(1), Some(151)));
    assert_eq!(
        back.line.as_ref().map(|frame| frame.line),
        Some(LEAK as u32)
    );
    let unused = training.sim.reserved(0) - training.sim.allocated(0);
    assert_eq!(back.reserved_unused_bytes, Some(unused));
    assert!(unused >= back.bytes);
    // Memory that was allocated and freed all the time was never a leak.
    for addr in kept {
        training.free(addr);
    }
    assert_eq!(training.leaks().given_back.len(), 1);
}

/// What a verdict on a line consists of.
type Said = (Option<u32>, u64, Option<u64>, Option<u64>);

fn said(report: &LeaksResponse) -> Vec<Said> {
    let growing = report.lines.iter();
    let growing = growing.filter(|line| line.verdict() == v1::Verdict::Growing);
    growing
        .map(|line| {
            let at = line.line.as_ref().map(|frame| frame.line);
            let step = line.growth_bytes_per_step.map(f64::to_bits);
            (at, line.growth_bytes, step, line.first_step)
        })
        .collect()
}

/// A program that runs out of memory gives back what its names lead to, and ends: what it has leaked until then is told all the same.
#[test]
fn what_a_program_frees_as_it_ends_was_not_given_back() {
    let mut leaks = 0;
    for leaking in [false, true] {
        let mut training = Training::new();
        let mut buffer = VecDeque::new();
        for step in 0..150 {
            // A buffer that is full after 30 steps, and what leaks beside it: blocks of one size, and of sizes that are all different.
            buffer.push_back(training.alloc(OTHER_STEP, MIB));
            if buffer.len() > 30 {
                training.free(buffer.pop_front().unwrap());
            }
            if leaking {
                training.alloc(LEAK, 64 << 10);
                training.alloc(OTHER, (4 << 20) + step * 8192);
            }
            training.step();
        }
        let (before, after) = (training.leaks(), training.ends());
        assert_eq!(said(&after), said(&before), "{after:#?}");
        assert!(after.given_back.is_empty(), "{after:#?}");
        assert!(after.until_boot_ns.is_some());
        // With the step's last allocation all of its activations lived.
        for line in &after.lines {
            assert!((150..=154).contains(&line.live_count), "{line:#?}");
        }
        leaks += after.growing_lines;
    }
    assert_eq!(leaks, 2);
}

/// The same where nothing tells of steps.
#[test]
fn what_a_program_without_steps_frees_as_it_ends_was_not_given_back() {
    let mut training = Training::new();
    training.leak_without_steps();
    let (before, after) = (training.leaks(), training.ends());
    let [(line, grown, ..)] = said(&after)[..] else {
        panic!("{after:#?}");
    };
    assert_eq!(line, Some(LEAK as u32));
    // The window of the last allocation had not ended.
    assert!(
        grown <= before.growing_bytes && grown * 10 >= before.growing_bytes * 9,
        "{grown} of {}",
        before.growing_bytes
    );
}

/// A cache that is made anew, larger each time: no block lives long, and its stack grows.
#[test]
fn a_cache_that_grows_until_the_end() {
    for is_stepped in [true, false] {
        let mut training = Training::new();
        let mut dice = Dice(3);
        let mut cache = training.alloc(LEAK, MIB);
        for number in 0..300 {
            let larger = training.alloc(LEAK, (2 << 20) + number * 64 * 1024);
            training.free(std::mem::replace(&mut cache, larger));
            training.work(&mut dice);
            if is_stepped {
                training.step();
            }
        }
        let (before, after) = (training.leaks(), training.ends());
        let lines = |report: &LeaksResponse| -> Vec<Option<u32>> {
            said(report).into_iter().map(|(line, ..)| line).collect()
        };
        assert_eq!(lines(&before), [Some(LEAK as u32)], "{before:#?}");
        assert_eq!(lines(&after), lines(&before), "{is_stepped}: {after:#?}");
        assert_eq!(
            after.lines[0].live_bytes, before.lines[0].live_bytes,
            "{is_stepped}"
        );
    }
}

/// A program that is ended while it loads a model has freed all of it, and has not leaked.
#[test]
fn a_program_that_ends_while_it_loads() {
    let mut training = Training::new();
    let mut dice = Dice(3);
    for _ in 0..300 {
        training.alloc(LEAK, 64 << 10);
        if dice.below(2) == 0 {
            let passing = training.alloc(OTHER, 3000 + dice.below(500_000));
            training.free(passing);
        }
        training.sim.time += 20 * MS;
    }
    assert_eq!(training.leaks().growing_groups, 0);
    let ended = training.ends();
    assert_eq!(ended.growing_groups, 0, "{ended:#?}");
}

/// A young growth that has filled the device is told, also once the program has ended by that and freed it.
#[test]
fn what_has_filled_the_device_is_told_after_the_end() {
    for ran_out in [true, false] {
        let mut training = Training::new();
        for _ in 0..50 {
            training.alloc(LEAK, 32 * MIB);
            training.step();
        }
        let early = training.leaks();
        assert_eq!(early.growing_groups, 0, "{early:#?}");
        if ran_out {
            let oom = PoolOom {
                device: 0,
                size: 32 * MIB,
                total_allocated: training.sim.allocated(0),
                total_reserved: training.sim.reserved(0),
            };
            training.say(Body::Oom(oom));
        }
        let lines: Vec<Said> = said(&training.ends());
        let lines: Vec<Option<u32>> = lines.into_iter().map(|(line, ..)| line).collect();
        assert_eq!(lines, vec![Some(LEAK as u32); usize::from(ran_out)]);
    }
}

/// The end of a process that was killed is no end of the time in which nothing came.
#[test]
fn a_process_that_waits_and_is_killed_has_waited() {
    let mut training = Training::new();
    training.leak_without_steps();
    training.alloc(LEAK, 64 << 10);
    training.sim.time += 25 * SECOND;
    let before = training.leaks();
    assert_eq!(before.growing_groups, 0, "{before:#?}");
    training.say(Body::Exited);
    let after = training.ask(&LeaksRequest::default());
    assert_eq!((after.growing_groups, after.until_boot_ns), (0, None));
}

/// A thread that loads data takes page-locked memory while the others free what the device held.
#[test]
fn memory_of_the_host_that_comes_late_hides_nothing() {
    let mut training = Training::new();
    for _ in 0..150 {
        training.alloc(LEAK, 64 << 10);
        training.step();
    }
    let before = training.leaks();
    let all: Vec<u64> = training.sim.live.keys().copied().collect();
    for addr in all {
        training.free(addr);
        training.say(call("cudaHostAlloc", CallOp::HostAlloc, addr, MIB));
    }
    training.say(Body::Exited);
    let after = training.ask(&LeaksRequest::default());
    assert_eq!(said(&after), said(&before), "{after:#?}");
    assert_eq!(before.growing_lines, 1);
}

/// What is given back before the last allocation is given back, although the program ends soon.
#[test]
fn what_is_freed_before_other_work_was_given_back() {
    let mut training = Training::new();
    let kept: Vec<u64> = (0..150)
        .map(|_| {
            let kept = training.alloc(LEAK, 64 << 10);
            training.step();
            kept
        })
        .collect();
    for addr in kept {
        training.free(addr);
    }
    training.alloc(OTHER_STEP, MIB);
    let report = training.ends();
    assert_eq!(report.growing_groups, 0, "{report:#?}");
    assert_eq!(report.given_back.len(), 1, "{report:#?}");
}

/// What is freed long after the last step was freed by a program that does something else. One that is no longer followed has not
/// ended, so that what it freed before was no end either.
#[test]
fn what_is_freed_long_before_the_end_was_given_back() {
    let mut training = Training::new();
    for _ in 0..150 {
        training.alloc(LEAK, 64 << 10);
        training.step();
    }
    assert_eq!(training.leaks().growing_groups, 1);
    let mut detached = training.clone();
    for ending in [&mut training, &mut detached] {
        let all: Vec<u64> = ending.sim.live.keys().copied().collect();
        for addr in all {
            ending.free(addr);
        }
    }
    training.sim.time += 40 * SECOND;
    training.say(Body::Exited);
    detached.say(Body::Detached);
    for ended in [training, detached] {
        let report = ended.ask(&LeaksRequest::default());
        assert_eq!((report.growing_groups, report.until_boot_ns), (0, None));
        assert_eq!(report.given_back.len(), 1, "{report:#?}");
        assert_eq!(report.given_back[0].reserved_unused_bytes, None);
    }
}

#[test]
fn what_is_given_back_is_told_without_steps() {
    let mut training = Training::new();
    let kept = training.leak_without_steps();
    assert_eq!(training.leaks().growing_groups, 1);
    for addr in kept {
        training.free(addr);
    }
    let report = training.leaks();
    assert_eq!(report.growing_groups, 0, "{report:#?}");
    assert_eq!(report.given_back.len(), 1, "{report:#?}");
    assert_eq!(report.given_back[0].step, None);
}

/// A pool hands out 512 bytes for a tensor of 4.
#[test]
fn what_is_given_back_is_what_the_device_gets_back() {
    let mut training = Training::new();
    let mut kept = Vec::new();
    for _ in 0..150 {
        kept.push(training.alloc(LEAK, 4));
        training.step();
    }
    for addr in kept {
        training.free(addr);
    }
    let report = training.leaks();
    let [back] = &report.given_back[..] else {
        panic!("{report:#?}");
    };
    assert_eq!(back.size_bytes, Some(4));
    assert!((145..=150).contains(&(back.bytes / 512)), "{back:#?}");
}

/// Of a program that validates after each tenth step, the median of its steps says little about how long they take.
#[test]
fn the_rate_is_that_of_the_time_that_steps_take() {
    let mut training = Training::new();
    let mut began = 0;
    for step in 0..200 {
        // Before the growth begins, steps take long.
        if step < 50 {
            training.sim.time += SECOND;
        } else {
            training.alloc(LEAK, 64 << 10);
        }
        if step == 50 {
            began = training.sim.time;
        }
        if step % 10 == 9 {
            training.sim.time += 25 * 11 * MS;
        }
        training.step();
    }
    let report = training.leaks();
    let [group] = &report.groups[..] else {
        panic!("{report:#?}");
    };
    let seconds = (training.sim.time - began) as f64 / 1e9;
    let truth = (150 * (64 << 10)) as f64 / seconds;
    let told = group.growth_bytes_per_s / truth;
    assert!((0.9..1.1).contains(&told), "{told} of it: {group:#?}");
    // What a usual step takes is still said.
    let median = report.steps.and_then(|steps| steps.median_ns);
    assert!(median.is_some_and(|ns| ns < 20 * MS), "{median:?}");
}

/// What a line holds are all its blocks, also those that do not grow.
/// A server that loads, waits, and then keeps some answers of different lengths. The first request takes a workspace at the same line.
#[test]
fn the_rate_without_steps_is_that_of_the_growth() {
    let rates = |leak: fn(&mut Training, u64)| {
        let mut t = Training::new();
        for request in 0..800 {
            for _ in 0..10 {
                let addr = t.alloc(OTHER, MIB);
                t.free(addr);
            }
            if request >= 300 {
                leak(&mut t, request);
            }
            t.sim.time += 100 * MS - t.sim.time % (100 * MS);
        }
        let report = t.leaks();
        let line = &report.lines[0];
        assert_eq!(line.verdict(), v1::Verdict::Growing, "{report:#?}");
        line.growth_bytes_per_s
    };
    let of_one_size = rates(|t, _| {
        t.alloc(LEAK, 65_536);
    });
    assert!(
        (of_one_size / 655_360.0 - 1.0).abs() < 0.05,
        "{of_one_size}"
    );
    let of_many = rates(|t, request| {
        if request == 300 {
            t.alloc(LEAK, 8 * MIB);
        }
        t.alloc(LEAK, 4096 * (1 + request % 7));
    });
    assert!((of_many / 163_840.0 - 1.0).abs() < 0.05, "{of_many}");
}

#[test]
fn a_line_holds_what_it_holds() {
    let mut training = Training::new();
    for _ in 0..5 {
        training.alloc(LEAK, MIB);
    }
    training.alloc(OTHER, MIB);
    for _ in 0..150 {
        training.alloc(LEAK, 64 << 10);
        training.step();
    }
    let held = 5 * MIB + 150 * (64 << 10);
    let line_of = |include_steady| {
        let report = training.ask(&LeaksRequest {
            include_steady,
            ..LeaksRequest::default()
        });
        let lines = report.lines.len();
        let is_it =
            |line: &&v1::LeakLine| line.line.as_ref().is_some_and(|at| at.line == LEAK as u32);
        (report.lines.iter().find(is_it).unwrap().clone(), lines)
    };
    let ((plain, lines), (all, all_lines)) = (line_of(false), line_of(true));
    assert_eq!((plain.live_bytes, plain.live_count), (held, 155));
    assert_eq!(plain, all);
    assert_eq!(
        (plain.verdict(), plain.growing_groups, plain.groups),
        (v1::Verdict::Growing, 1, 2)
    );
    assert!(plain.growth_bytes <= 150 * (64 << 10), "{plain:#?}");
    // A line of which nothing grows is still left out.
    assert_eq!((lines, all_lines), (1, 2));
}

/// Somebody profiles ten steps of a training that goes on.
#[test]
fn a_profilers_steps_do_not_take_over() {
    let mut training = Training::new();
    let step = |training: &mut Training, profiled: Option<u64>| {
        if let Some(number) = profiled {
            training.say(Body::Mark(Box::new(Mark {
                kind: MarkKind::Begin,
                source: MarkSource::RecordFunction,
                name: format!("ProfilerStep#{number}").into(),
                ..Mark::default()
            })));
        }
        training.alloc(LEAK, 64 << 10);
        training.step();
    };
    for _ in 0..150 {
        step(&mut training, None);
    }
    for number in 0..10 {
        step(&mut training, Some(number));
        assert_eq!(training.leaks().growing_lines, 1, "profiled {number}");
    }
    for _ in 0..200 {
        step(&mut training, None);
    }
    let report = training.leaks();
    let steps = report.steps.unwrap();
    assert_eq!(
        (steps.source(), steps.count),
        (v1::StepSource::Optimizer, Some(360))
    );
    assert_eq!(report.growing_lines, 1);
    assert_eq!(report.lines[0].first_step, Some(1));
}

#[test]
fn sums_are_those_of_all_groups() {
    let mut training = Training::new();
    for _ in 0..150 {
        for size in 1..=20u64 {
            training.alloc(LEAK, size * 10_000);
        }
        training.step();
    }
    let all = training.leaks();
    assert_eq!((all.growing_groups, all.omitted_groups), (20, 0));
    let one = training.ask(&LeaksRequest {
        limit: 1,
        ..LeaksRequest::default()
    });
    assert_eq!(one.groups.len(), 1);
    assert_eq!((one.growing_groups, one.omitted_groups), (20, 19));
    assert_eq!(one.growing_bytes, all.growing_bytes);
}

#[test]
fn what_is_too_young_is_told() {
    let mut training = Training::new();
    for step in 0..150 {
        for size in 1..=20u64 {
            training.alloc(LEAK, size * 10_000);
        }
        training.step();
        let report = training.leaks();
        if step == 90 {
            let young = YoungGrowth {
                groups: 20,
                in_every_step: true,
                steps: Some(89),
                needed_steps: Some(100),
            };
            assert_eq!((report.young, report.growing_groups), (Some(young), 0));
        }
    }
    let report = training.leaks();
    assert_eq!((report.young, report.growing_groups), (None, 20));
    // A program without a leak has no such entries.
    let mut clean = Training::new();
    for _ in 0..60 {
        clean.step();
    }
    assert_eq!(clean.leaks().young, None);
}

#[test]
fn bytes_of_a_stack_are_not_called_blocks() {
    let mut training = Training::new();
    let mut size = 4096;
    let mut kept = training.alloc(LEAK, size);
    for _ in 0..300 {
        size += 4096;
        let larger = training.alloc(LEAK, size);
        training.free(kept);
        kept = larger;
        training.step();
    }
    let report = training.leaks();
    assert_eq!(report.growing_groups, 1, "{report:#?}");
    let reason = &report.groups[0].reason;
    assert!(
        reason.contains("the floor rose by 1.15 MiB in "),
        "{reason}"
    );
    assert!(!reason.contains("blocks in"), "{reason}");
}

/// The blocks' mean size changes with each of them.
#[test]
fn a_stack_without_a_line_whose_blocks_all_differ_is_known_again() {
    const NATIVE: u64 = 70;
    let mut training = Training::new();
    training.say(Body::Stack(Box::new(StackSeen {
        id: NATIVE,
        natives: vec![0x55_0000_1000, 0x55_0000_2000],
        ..StackSeen::default()
    })));
    let mut size = 40_000;
    let mut leak_and_ask = |steps: u64| {
        for _ in 0..steps {
            size += 512;
            training.alloc(NATIVE, size);
            training.step();
        }
        let report = training.leaks();
        let growing = |line: &v1::LeakLine| line.verdict() == v1::Verdict::Growing;
        let mut lines: Vec<v1::LeakLine> = report.lines.into_iter().filter(growing).collect();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        lines.remove(0)
    };
    let first = leak_and_ask(150);
    let second = leak_and_ask(10);
    let sizes = |line: &v1::LeakLine| [line.smallest_bytes, line.largest_bytes];
    assert_eq!(sizes(&first), [40_960, 117_248], "not their mean");
    assert_eq!(sizes(&second), [40_960, 122_368]);
    assert_eq!((&first.line, first.growing_groups), (&None, 1));
    let key = |line: &v1::LeakLine| (line.device, line.source, line.stack);
    assert!(first.stack.is_some(), "{first:#?}");
    assert_eq!(key(&first), key(&second));
}

/// A leak that never pauses: `before` steps with all stacks, `during` steps with fewer, then `after` steps with all.
fn reduced(recorded: fn(u64) -> (StackRef, u8), before: u64, during: u64, after: u64) {
    const SIZE: u64 = 5 << 20;
    let mut training = Training::new();
    let mut live = 0;
    let mut said = false;
    for step in 0..before + during + after {
        if step == before {
            training.record(true, recorded);
        }
        if step == before + during {
            training.record(false, |id| (StackRef::Id(id), 0));
        }
        training.alloc(LEAK, SIZE);
        live += SIZE;
        training.step();
        let report = training.leaks();
        let growing: Vec<&LeakGroup> = report
            .groups
            .iter()
            .filter(|group| group.verdict() == v1::Verdict::Growing)
            .collect();
        let own = growing
            .iter()
            .find(|group| line(group) == Some(LEAK as u32));
        if let Some(own) = own {
            said = true;
            assert!(own.first_step.unwrap() <= 2, "{step}: {own:#?}");
            let rate = per_step(own);
            if let Some([low, middle, high]) = rate {
                assert!(
                    low <= SIZE as f64 && SIZE as f64 <= high,
                    "{step}: {own:#?}"
                );
                assert!(
                    (middle - SIZE as f64).abs() < 1.0,
                    "{step}: {rate:?} {own:#?}"
                );
            }
            // The growth is all live bytes except those that were allocated in the last windows.
            assert!(report.growing_bytes <= live, "{step}");
            let missing = (live - report.growing_bytes) / SIZE;
            assert!(missing <= 12, "{missing} at {step}: {growing:#?}");
        }
        assert!(
            !said || own.is_some(),
            "withdrawn at {step}: {:#?}",
            report.groups
        );
        assert!(
            step < 105 || said,
            "not found at {step}: {:#?}",
            report.groups
        );
        assert_eq!(
            growing.iter().filter(|group| !group.beside).count(),
            usize::from(said),
            "{step}: {growing:#?}"
        );
    }
}

#[test]
fn a_leak_goes_on_while_no_stacks_are_taken() {
    reduced(|_| (StackRef::NotTaken, 0), 150, 60, 200);
}

#[test]
fn a_leak_goes_on_while_stacks_are_sampled() {
    // Blocks smaller than the sampling interval: none has a stack. Larger blocks: each has one.
    reduced(|_| (StackRef::NotSampled, 26), 150, 60, 200);
    reduced(|id| (StackRef::Id(id), 20), 150, 60, 200);
}

#[test]
fn a_young_leak_grows_up_while_no_stacks_are_taken() {
    reduced(|_| (StackRef::NotTaken, 0), 90, 60, 100);
}

#[test]
fn blocks_that_are_replaced_do_not_grow_while_no_stacks_are_taken() {
    let mut training = Training::new();
    let mut buffers: Vec<u64> = (0..200).map(|_| training.alloc(LEAK, 5 << 20)).collect();
    for step in 0..500usize {
        match step {
            120 => training.record(true, |_| (StackRef::NotTaken, 0)),
            200 => training.record(false, |id| (StackRef::Id(id), 0)),
            _ => {}
        }
        let at = step % buffers.len();
        let new = training.alloc(LEAK, 5 << 20);
        training.free(std::mem::replace(&mut buffers[at], new));
        training.step();
        let report = training.leaks();
        assert_eq!(report.growing_groups, 0, "{step}: {:#?}", report.groups);
    }
}

#[test]
fn a_leak_that_ends_while_no_stacks_are_taken_ends() {
    let mut training = Training::new();
    for step in 0..400 {
        if step == 150 {
            training.record(true, |_| (StackRef::NotTaken, 0));
        }
        if step < 170 {
            training.alloc(LEAK, 5 << 20);
        }
        training.step();
    }
    let report = training.leaks();
    assert_eq!(report.growing_groups, 0, "{:#?}", report.groups);
}

/// A warm-up loop and a main loop, each with its own line that calls an optimizer: the steps of both are counted, and
/// the rate is per step.
#[test]
fn steps_of_two_loops_are_all_counted() {
    const SIZE: u64 = 512 << 10;
    let mut training = Training::new();
    for step in 1..=530u64 {
        training.alloc(LEAK, SIZE);
        training.step_at(if step <= 127 { STEP } else { OTHER_STEP });
        let count = training.steps().summary.as_ref().unwrap().count.unwrap();
        // After one step of the second line, both optimizers might belong to one step. The next step shows that they do
        // not.
        assert!((step - 1..=step).contains(&count), "{count} of {step}");
        assert!(count == step || step == 128, "{count} of {step}");
        let report = training.leaks();
        let own = report.groups.iter().find(|g| line(g) == Some(LEAK as u32));
        if let Some([low, middle, high]) = own.and_then(per_step) {
            assert!((middle - SIZE as f64).abs() < 1.0, "{middle} at {step}");
            assert!(low <= SIZE as f64 && SIZE as f64 <= high, "{low} {high}");
        }
    }
    let report = training.steps();
    assert_eq!(
        report.summary.as_ref().unwrap().evidence,
        "403 calls of Optimizer.step#SGD.step at train.py:61, 127 of Optimizer.step#SGD.step at train.py:60"
    );
    let numbers: Vec<u64> = report.rows.iter().map(|row| row.step).collect();
    assert_eq!(numbers, (1..=530).collect::<Vec<u64>>());
    let own = &training.leaks().groups[0];
    assert_eq!(own.first_step, Some(1).or(own.first_step));
}

/// Two optimizers in one step, and no stacks for a time to tell their lines apart.
#[test]
fn steps_are_counted_while_no_stacks_are_taken() {
    let mut training = Training::new();
    for step in 1..=300u64 {
        match step {
            101 => training.record(true, |_| (StackRef::NotTaken, 0)),
            201 => training.record(false, |id| (StackRef::Id(id), 0)),
            _ => {}
        }
        training.step_at(STEP);
        training.step_at(OTHER_STEP);
        let count = training.steps().summary.as_ref().unwrap().count.unwrap();
        assert!(count.abs_diff(step) <= 2, "{count} of {step}");
    }
}

/// A leak of one block in each step, while the recording of stacks changes again and again: the reported growth never
/// becomes smaller.
#[test]
fn growth_is_never_taken_back_while_a_leak_goes_on() {
    const SIZE: u64 = 1_500_000;
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut training = Training::new();
        let (mut live, mut least, mut changes) = (0, 0, Vec::new());
        let (mut reduced, mut kind, mut next) = (false, 0, 5 + random.below(300));
        for step in 0..1200 {
            if step == next {
                (reduced, kind) = (!reduced, random.below(4));
                next += 3 + random.below(400);
                changes.push((step, reduced, kind));
                training.record(reduced, |id| (StackRef::Id(id), 0));
            }
            training.recorded = match (reduced, kind, random.below(40)) {
                (false, _, _) => |id| (StackRef::Id(id), 0),
                (true, 0, _) => |_| (StackRef::NotTaken, 0),
                // Sampled stacks: all, half of them, or very few, but always those of the optimizer's marks.
                (true, 1, 0) | (true, 2, 0..20) => |id| (StackRef::Id(id), 26),
                (true, 3, _) => |id| (StackRef::Id(id), 20),
                _ => |id| match id {
                    STEP => (StackRef::Id(id), 26),
                    _ => (StackRef::NotSampled, 26),
                },
            };
            training.alloc(LEAK, SIZE);
            live += SIZE;
            training.step();
            if step % 4 > 0 {
                continue;
            }
            let report = training.leaks();
            let grown = report.growing_bytes;
            assert!(
                grown >= least && grown <= live,
                "seed {seed}, step {step}: {grown} of {live} after {least}; {changes:?}: {:#?}",
                report.groups
            );
            assert!(
                step < 130 || grown > live * 3 / 4,
                "seed {seed}, step {step}: {grown} of {live}; {changes:?}: {:#?}",
                report.groups
            );
            least = grown;
        }
    }
}

/// Another line also holds blocks of the leaking size, and keeps them without growing.
#[test]
fn who_only_keeps_blocks_is_not_blamed_for_a_leak_of_their_size() {
    const SIZE: u64 = 1_500_000;
    const KEEPS: u64 = OTHER_STEP;
    let mut training = Training::new();
    let mut blamed = 0;
    for step in 0..500 {
        match step {
            200 => training.record(true, |_| (StackRef::NotTaken, 0)),
            300 => training.record(false, |id| (StackRef::Id(id), 0)),
            _ => {}
        }
        if step < 60 {
            training.alloc(KEEPS, SIZE);
        }
        if step >= 100 {
            training.alloc(LEAK, SIZE);
        }
        training.step();
        let report = training.leaks();
        for group in report
            .groups
            .iter()
            .filter(|g| g.verdict() == v1::Verdict::Growing)
        {
            assert_ne!(line(group), Some(KEEPS as u32), "{step}: {group:#?}");
            blamed += u32::from(line(group) == Some(LEAK as u32));
        }
    }
    assert!(blamed > 250, "{blamed}");
}

/// Random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 33) % end
    }
}

/// A buffer that was full at the attach frees an old block for each new one, while blocks of the same size leak. The
/// buffer does not grow, the leak does, and each block is reported once.
#[test]
fn a_full_buffer_beside_a_leak_of_blocks_of_the_same_size() {
    full_buffer_beside_a_leak(|_, _| true);
}

/// The same while not all stacks are recorded for a time: still the leak is reported, and the buffer is not.
#[test]
fn a_full_buffer_while_less_is_recorded() {
    full_buffer_beside_a_leak(|training, step| {
        match step {
            160 => training.record(true, |_| (StackRef::NotTaken, 0)),
            190 => training.record(false, |id| (StackRef::Id(id), 0)),
            _ => {}
        }
        step < 160
    });
}

/// `tell_of` is called before each step; it returns whether all stacks have been recorded so far.
fn full_buffer_beside_a_leak(tell_of: impl Fn(&mut Training, u64) -> bool) {
    const SIZE: u64 = 64 << 10;
    let mut sim = Sim::new(Mode::Calibrated);
    sim.attached = false;
    let mut buffer: VecDeque<u64> = (0..250).map(|_| sim.alloc(0, 0, SIZE)).collect();
    let mut training = Training::with(sim, false);
    let parts = training.sim.reading(0, 1000);
    tell(&mut training.ledger, training.sim.time, parts);
    for step in 0..400u64 {
        let all_recorded = tell_of(&mut training, step);
        buffer.push_back(training.alloc(OTHER_STEP, SIZE));
        training.free(buffer.pop_front().unwrap());
        if step % 10 == 0 {
            training.alloc(LEAK, SIZE);
        }
        training.step();
        if step < 130 {
            continue;
        }
        let report = training.leaks();
        let growing = report
            .lines
            .iter()
            .filter(|l| l.verdict() == v1::Verdict::Growing);
        let told = growing.map(|row| (row.line.as_ref().map(|frame| frame.line), row.live_count));
        let lines: Vec<(Option<u32>, u64)> = told.collect();
        let of = |line: u64| lines.iter().find(|(at, _)| *at == Some(line as u32));
        assert_eq!(of(OTHER_STEP), None, "{step}: {report:#?}");
        if all_recorded {
            let leak = (Some(LEAK as u32), step / 10 + 1);
            assert_eq!(lines, [leak], "{step}: {report:#?}");
        } else {
            assert!(of(LEAK).is_some(), "{step}: {report:#?}");
        }
    }
}
