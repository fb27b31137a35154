//! Steps: msMemScope's rules compared with its worked examples and with a plain implementation of them, and how the
//! ends of steps are found.

use crate::common::{P, SECOND};
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use memscope_ledger::{Answer, Ledger, LedgerConfig, inexact};
use memscope_proto::v1;
use memscope_proto::v1::{StepGap, StepsRequest, StepsResponse};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A ledger with one process, to which events are applied one by one.
struct Told {
    ledger: Ledger,
    sequence: u64,
    time: u64,
    launches: u64,
    lost: u64,
}

impl Told {
    fn new() -> Told {
        let mut told = Told {
            ledger: Ledger::new(LedgerConfig::default()),
            sequence: 0,
            time: SECOND,
            launches: 0,
            lost: 0,
        };
        told.say(
            Body::Attached(Box::new(ProcessFacts {
                from_start: true,
                ..ProcessFacts::default()
            })),
            StackRef::NotTaken,
        );
        told.say(
            Body::Placed(Box::new(Placement {
                pool_seen: true,
                function_ends: true,
                ..Placement::default()
            })),
            StackRef::NotTaken,
        );
        told
    }

    fn say(&mut self, body: Body, stack: StackRef) {
        self.say_by(7, body, stack);
    }

    fn say_by(&mut self, tid: u32, body: Body, stack: StackRef) {
        self.sequence += 1;
        self.time += 1_000_000;
        self.ledger.apply(&Event {
            id: EventId {
                epoch: 1,
                sequence: self.sequence,
            },
            time_ns: self.time,
            process: P,
            tid,
            lost_before: std::mem::take(&mut self.lost),
            stack,
            sampling: 0,
            body,
        });
    }

    fn mark(&mut self, kind: MarkKind, source: MarkSource, name: &str, stack: StackRef) {
        let mark = Mark {
            kind,
            source,
            name: name.into(),
            ..Mark::default()
        };
        self.say(Body::Mark(Box::new(mark)), stack);
    }

    /// A backward pass of a thread.
    fn pass(&mut self, tid: u32) {
        let mark = Mark {
            kind: MarkKind::Instant,
            source: MarkSource::Backward,
            ..Mark::default()
        };
        self.say_by(tid, Body::Mark(Box::new(mark)), StackRef::Id(1));
    }

    fn optimizer(&mut self, name: &str, stack: u64) {
        self.begins(7, name, StackRef::Id(stack));
        self.ends(7);
    }

    /// An optimizer's step begins on a thread.
    fn begins(&mut self, tid: u32, name: &str, stack: StackRef) {
        self.function(
            tid,
            MarkKind::Begin,
            &format!("Optimizer.step#{name}.step"),
            stack,
        );
    }

    /// The innermost `record_function` of a thread ends.
    fn ends(&mut self, tid: u32) {
        self.function(tid, MarkKind::End, "", StackRef::NotTaken);
    }

    fn function(&mut self, tid: u32, kind: MarkKind, name: &str, stack: StackRef) {
        let mark = Mark {
            kind,
            source: MarkSource::RecordFunction,
            name: name.into(),
            ..Mark::default()
        };
        self.say_by(tid, Body::Mark(Box::new(mark)), stack);
    }

    /// Number of the steps, and of each its highest and its last level.
    fn levels(&self) -> (Option<u64>, Vec<(u64, u64, u64)>) {
        let report = self.steps();
        let rows = report.rows.iter();
        let rows = rows.map(|row| (row.step, row.max_allocated_bytes, row.end_allocated_bytes));
        (report.summary.unwrap().count, rows.collect())
    }

    fn report(&mut self, ptr: u64, size: i64, used: u64, stack: StackRef) {
        self.say(
            Body::Report(PoolReport {
                device: 0,
                ptr,
                size,
                total_allocated: used,
                total_reserved: 1 << 40,
            }),
            stack,
        );
    }

    fn stack(&mut self, id: u64) {
        self.say(
            Body::Stack(Box::new(StackSeen {
                id,
                frames: vec![(id, 0)],
                ..StackSeen::default()
            })),
            StackRef::NotTaken,
        );
    }

    fn steps(&self) -> StepsResponse {
        let as_of = AsOf {
            boot_ns: self.time,
            ..AsOf::default()
        };
        self.ledger
            .ask(
                &[P],
                as_of,
                &StepsRequest {
                    survivors: 1_000,
                    ..StepsRequest::default()
                },
            )
            .expect("the process is there")
    }
}

/// An event of an example.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Start,
    /// A range inside the step begins.
    Inner,
    /// The innermost range ends.
    End,
    Launch,
    Malloc {
        ptr: u64,
        size: u64,
        used: u64,
    },
    Free {
        ptr: u64,
        size: u64,
        used: u64,
    },
}

fn fold(events: &[Happens]) -> StepsResponse {
    let mut told = Told::new();
    for event in events {
        match *event {
            Happens::Start => told.mark(
                MarkKind::Begin,
                MarkSource::Mstx,
                "\"step start\"",
                StackRef::NotTaken,
            ),
            Happens::Inner => told.mark(
                MarkKind::Begin,
                MarkSource::Mstx,
                "forward",
                StackRef::NotTaken,
            ),
            Happens::End => told.mark(MarkKind::End, MarkSource::Mstx, "", StackRef::NotTaken),
            Happens::Launch => {
                told.launches += 1;
                let count = told.launches;
                told.say(Body::Launches { count }, StackRef::NotTaken);
            }
            Happens::Malloc { ptr, size, used } => {
                told.report(ptr, size as i64, used, StackRef::NotTaken);
            }
            Happens::Free { ptr, size, used } => {
                told.report(ptr, -(size as i64), used, StackRef::NotTaken);
            }
        }
    }
    told.steps()
}

/// The answer in the form of the worked examples.
fn figures(report: &StepsResponse) -> Value {
    let survivors: Vec<Value> = report
        .survivors
        .iter()
        .map(|one| {
            json!({"ptr": one.address, "size": one.size_bytes, "step": one.step, "kernel_launches_before": one.launches_before.unwrap_or(0)})
        })
        .collect();
    let gap = |gap: StepGap| json!({"step": gap.step, "min": gap.min_bytes, "max": gap.max_bytes, "ratio": gap.ratio});
    let device = report.devices.first();
    let gaps: Vec<Value> = report
        .rows
        .iter()
        .filter(|row| row.step > 1 && row.max_allocated_bytes > 0)
        .map(|row| {
            let (min, max) = (row.min_allocated_bytes, row.max_allocated_bytes);
            json!({"step": row.step, "min": min, "max": max, "ratio": min as f64 / max as f64})
        })
        .collect();
    json!({
        "step_survival": survivors,
        "leaked_bytes": report.survivor_bytes,
        "max_gap": device.and_then(|d| d.largest_gap).map(gap),
        "min_gap": device.and_then(|d| d.smallest_gap).map(gap),
        "gaps": gaps,
    })
}

/// A plain implementation of the rules as msMemScope's text states them: it keeps everything, and checks all of it at
/// each end of a step.
fn plain(events: &[Happens]) -> Value {
    let mut step = 0u64;
    let mut open = false;
    let mut inside = 0;
    let mut launches = 0u64;
    // address → (size, step, launches)
    let mut live: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
    let mut found: Vec<(u64, u64, u64, u64)> = Vec::new();
    let mut levels: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for event in events {
        match *event {
            Happens::Start => {
                step += 1;
                open = true;
            }
            Happens::Inner => inside += 1,
            Happens::End if inside > 0 => inside -= 1,
            Happens::End => {
                open = false;
                for (ptr, (size, born, before)) in &live {
                    let is_leak = *born > 1 && step - born >= 1;
                    let one = (*ptr, *size, *born, *before);
                    if is_leak && !found.iter().any(|f| f.0 == one.0 && f.2 == one.2) {
                        found.push(one);
                    }
                }
            }
            Happens::Launch => launches += 1,
            Happens::Malloc { ptr, size, used } => {
                live.insert(ptr, (size, step, launches));
                if open {
                    levels.entry(step).or_default().push(used);
                }
            }
            Happens::Free { ptr, used, .. } => {
                live.remove(&ptr);
                if open {
                    levels.entry(step).or_default().push(used);
                }
            }
        }
    }
    if open {
        levels.remove(&step); // it has not ended
    }
    found.sort_by_key(|(ptr, _, born, before)| (*born, *before, *ptr));
    let survivors: Vec<Value> = found
        .iter()
        .map(|(ptr, size, step, before)| {
            json!({"ptr": ptr, "size": size, "step": step, "kernel_launches_before": before})
        })
        .collect();
    let mut gaps: Vec<Value> = Vec::new();
    let (mut largest, mut smallest): (Option<Value>, Option<Value>) = (None, None);
    for (step, levels) in levels {
        let (min, max) = (*levels.iter().min().unwrap(), *levels.iter().max().unwrap());
        if step <= 1 || max == 0 {
            continue;
        }
        let ratio = min as f64 / max as f64;
        let gap = json!({"step": step, "min": min, "max": max, "ratio": ratio});
        let of = |known: &Option<Value>| known.as_ref().map(|k| k["ratio"].as_f64().unwrap());
        if of(&largest).is_none_or(|known| ratio > known) {
            largest = Some(gap.clone());
        }
        if of(&smallest).is_none_or(|known| ratio < known) {
            smallest = Some(gap.clone());
        }
        gaps.push(gap);
    }
    json!({
        "step_survival": survivors,
        "leaked_bytes": found.iter().map(|f| f.1).sum::<u64>(),
        "max_gap": largest,
        "min_gap": smallest,
        "gaps": gaps,
    })
}

/// Sorts survivors by steps and launches, because those of the same moment may be in any order.
fn in_order(mut figures: Value) -> Value {
    let list = figures["step_survival"].as_array_mut().unwrap();
    list.sort_by_key(|one| {
        let number = |key: &str| one[key].as_u64().unwrap();
        (
            number("step"),
            number("kernel_launches_before"),
            number("ptr"),
        )
    });
    figures
}

#[test]
fn the_worked_examples() {
    for number in 1..=3 {
        let read = |ending: &str| -> Value {
            let name = format!("tests/golden/step_leaks_and_gap_{number}.{ending}");
            serde_json::from_str(&std::fs::read_to_string(&name).expect(&name)).unwrap()
        };
        let events: Vec<Happens> = read("json")
            .as_array()
            .unwrap()
            .iter()
            .map(|event| {
                let number = |key: &str| event[key].as_u64().unwrap();
                match event["kind"].as_str().unwrap() {
                    "step_start" => Happens::Start,
                    "step_end" => Happens::End,
                    "kernel_launch" => Happens::Launch,
                    "malloc" => Happens::Malloc {
                        ptr: number("ptr"),
                        size: number("size"),
                        used: number("used"),
                    },
                    "free" => Happens::Free {
                        ptr: number("ptr"),
                        size: number("size"),
                        used: number("used"),
                    },
                    other => panic!("{other}"),
                }
            })
            .collect();
        let wanted = in_order(read("expected.json"));
        assert!(!wanted["step_survival"].as_array().unwrap().is_empty());
        assert_eq!(
            in_order(figures(&fold(&events))),
            wanted,
            "example {number}"
        );
        assert_eq!(
            in_order(plain(&events)),
            wanted,
            "plainly, example {number}"
        );
    }
}

/// Random programs that step, with ranges inside of steps, launch, allocate and free in some order.
fn programs() -> impl Strategy<Value = Vec<Happens>> {
    prop::collection::vec((0u8..16, 1u64..40, 1u64..64), 0..400).prop_map(|choices| {
        let mut events = Vec::new();
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut used, mut open, mut inside) = (0u64, false, 0);
        for (what, place, size) in choices {
            let (ptr, size) = (0x1000_0000 + place * 0x10_0000, size * 512);
            match what {
                0 if open => {
                    events.push(Happens::End);
                    open = inside > 0;
                    inside -= i32::from(open);
                }
                3 if open => {
                    events.push(Happens::Inner);
                    inside += 1;
                }
                0 | 1 if !open => {
                    events.push(Happens::Start);
                    open = true;
                }
                2 => events.push(Happens::Launch),
                _ => match live.remove(&ptr) {
                    Some(size) => {
                        used -= size;
                        events.push(Happens::Free { ptr, size, used });
                    }
                    None => {
                        used += size;
                        live.insert(ptr, size);
                        events.push(Happens::Malloc { ptr, size, used });
                    }
                },
            }
        }
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn as_the_plain_rules(events in programs()) {
        prop_assert_eq!(in_order(figures(&fold(&events))), in_order(plain(&events)));
    }
}

#[test]
fn nothing_tells_of_steps() {
    let mut told = Told::new();
    for i in 0..500u64 {
        told.report(
            0x1000 * i + 0x1000,
            512 * (1 + i as i64 * 37 % 101),
            1 << 20,
            StackRef::NotTaken,
        );
    }
    let report = told.steps();
    assert_eq!(
        report.summary.as_ref().unwrap().source(),
        v1::StepSource::Unknown
    );
    assert_eq!(report.summary.as_ref().unwrap().count, None);
    assert!(report.rows.is_empty());
}

#[test]
fn an_optimizer_is_better_than_a_backward_pass() {
    let mut told = Told::new();
    for step in 0..20u64 {
        for _ in 0..4 {
            told.mark(MarkKind::Instant, MarkSource::Backward, "", StackRef::Id(1));
        }
        if step == 0 {
            assert_eq!(
                told.steps().summary.as_ref().unwrap().source(),
                v1::StepSource::Backward
            );
        }
        told.optimizer("AdamW", 2);
        let summary = told.steps().summary.unwrap();
        assert_eq!(
            (summary.source(), summary.count),
            (v1::StepSource::Optimizer, Some(step + 1))
        );
    }
}

/// A profiler's steps tell of steps where nothing else does, and only there.
#[test]
fn a_backward_pass_is_better_than_a_profilers_step() {
    let mut told = Told::new();
    let source = |told: &Told| {
        let summary = told.steps().summary.unwrap();
        (summary.source(), summary.count)
    };
    for step in 0..10 {
        let name = format!("ProfilerStep#{step}");
        told.mark(
            MarkKind::Begin,
            MarkSource::RecordFunction,
            &name,
            StackRef::Id(9),
        );
        assert_eq!(source(&told), (v1::StepSource::Profiler, Some(step + 1)));
    }
    for pass in 0..10 {
        told.pass(7);
        assert_eq!(source(&told), (v1::StepSource::Backward, Some(pass + 1)));
    }
    told.mark(
        MarkKind::Begin,
        MarkSource::RecordFunction,
        "ProfilerStep#10",
        StackRef::Id(9),
    );
    assert_eq!(source(&told), (v1::StepSource::Backward, Some(10)));
    // Whoever picks the profiler's steps at the attach, or says steps by itself, is heard.
    told.mark(MarkKind::Step, MarkSource::Memscope, "", StackRef::Id(9));
    assert_eq!(source(&told), (v1::StepSource::Mark, Some(1)));
}

/// A step is one, whatever it is called: a loop may number its steps, and msMemScope's own do.
#[test]
fn steps_with_names_that_change_are_steps() {
    let mut told = Told::new();
    for step in 1..=150u64 {
        let name = format!("epoch {step}");
        told.mark(
            MarkKind::Step,
            MarkSource::Outside,
            &name,
            StackRef::NotTaken,
        );
        assert_eq!(told.steps().summary.unwrap().count, Some(step));
    }
}

#[test]
fn two_optimizers_make_one_step() {
    let mut told = Told::new();
    told.stack(1);
    told.stack(2);
    for _ in 0..20 {
        told.optimizer("Adam", 1);
        told.optimizer("Adam", 2);
    }
    let report = told.steps();
    assert_eq!(report.summary.as_ref().unwrap().count, Some(20));
    // An optimizer that steps only every fifth time does not count.
    let mut told = Told::new();
    told.stack(1);
    told.stack(2);
    for step in 0..40 {
        told.optimizer("Adam", 1);
        if step % 5 == 4 {
            told.optimizer("Adam", 2);
        }
    }
    assert_eq!(told.steps().summary.as_ref().unwrap().count, Some(40));
}

/// `for optimizer in optimizers: optimizer.step()`, after one backward pass or several.
#[test]
fn optimizers_of_one_line_make_one_step() {
    let mut told = Told::new();
    told.stack(1);
    let mut used = 0;
    for _ in 0..20 {
        for _ in 0..2 {
            told.pass(7);
        }
        for _ in 0..3 {
            used += 512;
            told.report(used << 12, 512, used, StackRef::NotTaken);
            told.optimizer("SGD", 1);
        }
    }
    let (count, rows) = told.levels();
    assert_eq!(count, Some(20));
    // A step ends with the last of them.
    let ends: Vec<u64> = rows.iter().map(|(_, _, end)| end / 512).collect();
    assert_eq!(ends, (1..=20).map(|step| 3 * step).collect::<Vec<u64>>());
}

/// Two lines, each in a loop over two optimizers.
#[test]
fn lines_in_a_loop_over_optimizers() {
    let mut told = Told::new();
    told.stack(1);
    told.stack(2);
    for _ in 0..20 {
        told.pass(7);
        for _ in 0..2 {
            told.optimizer("SGD", 1);
            told.optimizer("SGD", 2);
        }
    }
    assert_eq!(told.levels().0, Some(20));
}

/// An optimizer for each of hundreds of parameters, stepped in hooks of the backward pass, on a thread of the autograd engine.
#[test]
fn optimizers_in_hooks_make_one_step() {
    let mut told = Told::new();
    told.stack(1);
    // The program's first thread tries a pass, and another one trains.
    told.pass(6);
    for pass in 1..=10 {
        told.pass(7);
        for _ in 0..900 {
            told.begins(8, "SGD", StackRef::Id(1));
            told.ends(8);
        }
        assert_eq!(told.steps().summary.unwrap().count, Some(pass));
    }
}

/// Each of two threads makes its own passes and steps at the same line, in any order.
#[test]
fn threads_that_step_at_one_line_make_a_step_each() {
    let mut told = Told::new();
    told.stack(1);
    for at_once in [false, true] {
        for _ in 0..10 {
            told.pass(7);
            if !at_once {
                told.optimizer("SGD", 1);
            }
            told.pass(8);
            if at_once {
                told.optimizer("SGD", 1);
            }
            told.begins(8, "SGD", StackRef::Id(1));
            told.ends(8);
        }
    }
    assert_eq!(told.levels().0, Some(40));
}

/// A program may use an optimizer without any backward pass, also after a warm-up that had some.
#[test]
fn optimizers_without_backward_passes() {
    let mut told = Told::new();
    told.stack(1);
    for _ in 0..50 {
        told.optimizer("SGD", 1);
    }
    assert_eq!(told.levels().0, Some(50));
    for _ in 0..10 {
        told.pass(7);
        told.optimizer("SGD", 1);
    }
    assert_eq!(told.levels().0, Some(60));
    // The first two could be further optimizers of that line. That so many came once after a pass does not say that they always do.
    for times in 1..=2 {
        for _ in 0..100 {
            told.optimizer("SGD", 1);
        }
        assert_eq!(told.levels().0, Some(60 + 99 * times - 1));
        told.pass(7);
        told.optimizer("SGD", 1);
    }
}

/// A program that makes its passes once, for a graph, and then none: steps are counted after some of them.
#[test]
fn optimizers_after_the_only_backward_pass() {
    let mut told = Told::new();
    told.stack(1);
    told.pass(7);
    for _ in 0..1500 {
        told.optimizer("SGD", 1);
    }
    assert_eq!(told.levels().0, Some(1500 - 1024));
}

/// The pass of a step may be lost, and its optimizer's step may not be.
#[test]
fn a_lost_backward_pass_merges_no_steps() {
    let mut told = Told::new();
    told.stack(1);
    for step in 1..=40 {
        told.report(0x1000, 512, 512, StackRef::NotTaken);
        if step % 2 == 0 {
            // All that were lost until then.
            told.lost = 3 * step;
        } else {
            told.pass(7);
        }
        told.report(0x1000, -512, 0, StackRef::NotTaken);
        told.optimizer("SGD", 1);
        assert_eq!(told.levels().0, Some(step));
    }
}

/// Of some of the optimizers in hooks the stack could not be taken.
#[test]
fn optimizers_in_hooks_without_some_stacks() {
    let mut told = Told::new();
    told.stack(1);
    for pass in 1..=20 {
        told.pass(7);
        for hook in 0..300 {
            let stack = match hook % 100 {
                50 => StackRef::NotTaken,
                _ => StackRef::Id(1),
            };
            told.begins(8, "SGD", stack);
            told.ends(8);
        }
        assert_eq!(told.levels().0, Some(pass));
    }
}

/// Without stacks nothing tells which line a step is of.
#[test]
fn optimizers_without_stacks_make_a_step_each() {
    let mut told = Told::new();
    for _ in 0..20 {
        told.pass(7);
        for _ in 0..2 {
            told.begins(7, "SGD", StackRef::NotTaken);
            told.ends(7);
        }
    }
    assert_eq!(told.levels().0, Some(40));
}

#[test]
fn several_steps_make_a_row() {
    let mut told = Told::new();
    let mut used = 0;
    for step in 0..25u64 {
        used += 512;
        told.report(0x1000 * (step + 1), 512, used, StackRef::NotTaken);
        told.optimizer("SGD", 1);
    }
    let as_of = AsOf::default();
    let query = StepsRequest {
        every: 10,
        ..StepsRequest::default()
    };
    let report = told.ledger.ask(&[P], as_of, &query).unwrap();
    let rows: Vec<(u64, u64, u64, u64)> = report
        .rows
        .iter()
        .map(|row| {
            (
                row.step,
                row.steps,
                row.min_allocated_bytes / 512,
                row.max_allocated_bytes / 512,
            )
        })
        .collect();
    assert_eq!(rows, [(10, 10, 1, 10), (20, 10, 11, 20), (25, 5, 21, 25)]);
    assert_eq!(report.rows[0].allocs, 10);
    // The sums for devices are still over single steps.
    assert_eq!(report.devices[0].steps, 24);
}

/// In most steps nothing happens on the device, as where a graph of kernels is launched.
/// Where rows are no longer kept, it is said up to when. A step without rows is none of them.
#[test]
fn what_is_forgotten_of_steps_is_said() {
    let mut told = Told::new();
    let mut ended = Vec::new();
    for step in 1..=4100 {
        told.report(0x1000, 512, 512, StackRef::NotTaken);
        told.report(0x1000, -512, 0, StackRef::NotTaken);
        told.mark(
            MarkKind::Step,
            MarkSource::Memscope,
            "s",
            StackRef::NotTaken,
        );
        ended.push(told.steps().rows.last().unwrap().to_boot_ns);
        let expected = (step > 4096).then(|| ended[step - 4097]);
        if step == 4096 || step == 4097 || step == 4100 {
            assert_eq!(told.steps().forgotten_to_boot_ns, expected, "{step}");
        }
    }
    let request = v1::StepsRequest {
        pid: 1,
        limit: 10,
        ..Default::default()
    };
    let answer = told.ledger.ask(&[P], AsOf::default(), &request).unwrap();
    assert_eq!(answer.rows.len(), 10);
    assert_eq!(answer.forgotten_to_boot_ns, Some(ended[4089]));
}

/// The rows of ticks go one by one, and what is left of a step is none.
#[test]
fn the_oldest_step_is_a_whole_one() {
    let mut told = Told::new();
    told.stack(1);
    told.stack(2);
    let mut seen = 0;
    for tick in 0..4_200u64 {
        told.report(0x1000, 512, 512, StackRef::NotTaken);
        told.report(0x1000, -512, 0, StackRef::NotTaken);
        told.optimizer("Adam", 1 + tick % 2);
        if tick < 4_090 {
            continue;
        }
        let steps = told.steps();
        let rows = steps.rows.iter().map(|row| (row.allocs, row.frees));
        let odd: Vec<_> = rows.filter(|row| *row != (2, 2)).collect();
        assert!(odd.is_empty(), "after tick {tick}: {odd:?}");
        if let Some(forgotten) = steps.forgotten_to_boot_ns {
            seen += 1;
            assert_eq!(steps.rows[0].from_boot_ns, forgotten, "after tick {tick}");
        }
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn the_floor_by_step_counts_steps_without_allocations() {
    let mut told = Told::new();
    let mut used = 0;
    for step in 0..100u64 {
        if step % 10 == 0 {
            used += 1000;
            told.report(0x1000 * (step + 1), 1000, used, StackRef::NotTaken);
        }
        told.optimizer("SGD", 1);
    }
    let report = told
        .ledger
        .ask(&[P], AsOf::default(), &StepsRequest::default())
        .unwrap();
    let device = &report.devices[0];
    assert_eq!(
        device.steps, 9,
        "in which something happened, without the first"
    );
    let slope = device.floor_bytes_per_step;
    assert!((slope - 100.0).abs() < 1.0, "{slope}");
}

impl Told {
    /// A step, counted from 0, that allocates a block and keeps it.
    fn keeps_a_block(&mut self, step: u64) {
        let number = step + 1;
        self.report(0x1000 * number, 512, 512 * number, StackRef::NotTaken);
        self.optimizer("SGD", 1);
    }
}

/// Of a process that has made more steps than are kept, the first row of several begins with the first step that is kept.
#[test]
fn a_row_of_several_steps_says_how_many_are_in_it() {
    let mut told = Told::new();
    for step in 0..4_200u64 {
        told.keeps_a_block(step);
    }
    let query = StepsRequest {
        every: 100,
        limit: 4_096,
        ..StepsRequest::default()
    };
    let report = told.ledger.ask(&[P], AsOf::default(), &query).unwrap();
    let first: Vec<(u64, u64, u64)> = report
        .rows
        .iter()
        .take(2)
        .map(|row| (row.step, row.steps, row.allocs))
        .collect();
    assert_eq!(first, [(200, 96, 96), (300, 100, 100)]);
}

/// A step ends at its mark, and the first one goes back to where the levels begin.
#[test]
fn the_first_step_begins_at_the_attach_and_its_time_is_not_a_steps() {
    let mut told = Told::new();
    for step in 0..3u64 {
        told.keeps_a_block(step);
        let report = told.steps();
        let first = &report.rows[0];
        assert!(first.from_boot_ns < first.to_boot_ns, "{first:?}");
        assert_eq!(first.allocs, 1);
        let median = report.summary.unwrap().median_ns;
        assert_eq!(median.is_some(), step > 0, "{median:?}");
    }
}

/// The first call after an attach may have begun before it, so that it has no stack. It is counted for its line.
#[test]
fn a_call_without_a_stack_is_one_of_its_line() {
    let mut told = Told::new();
    told.stack(1);
    let optimizer = "Optimizer.step#SGD.step";
    told.begins(7, "SGD", StackRef::NotTaken);
    told.ends(7);
    for _ in 0..40 {
        told.optimizer("SGD", 1);
    }
    let summary = told.steps().summary.unwrap();
    assert_eq!(summary.count, Some(41));
    assert!(
        summary
            .evidence
            .starts_with(&format!("41 calls of {optimizer}")),
        "{}",
        summary.evidence
    );
    assert!(!summary.evidence.contains(','), "{}", summary.evidence);
}

/// Compiled code in the stacks of a line differs from call to call and may have no line of its own. It says nothing of steps.
#[test]
fn compiled_code_in_stacks_does_not_count() {
    // The code objects of the optimizers' lines; where there are none, stacks are of compiled code alone.
    for codes in [Some([0x100, 0x200]), None] {
        let mut told = Told::new();
        let mut id = 0;
        for step in 0..70u64 {
            for (place, name) in ["Adam", "SGD"].into_iter().enumerate() {
                id += 1;
                let code = codes.map(|codes| codes[place]);
                let stack = StackSeen {
                    id,
                    // The interpreter specialises its code, so one line has several stacks.
                    frames: code.map(|code| (code, step % 2 * 4)).into_iter().collect(),
                    natives: vec![0x7000, 0x8000 + step],
                    ..StackSeen::default()
                };
                told.say(Body::Stack(Box::new(stack)), StackRef::NotTaken);
                told.optimizer(name, id);
                if let Some(code) = code.filter(|_| step == 0) {
                    let name = CodeName {
                        code,
                        died: None,
                        name: "train".into(),
                        file: "train.py".into(),
                        first_line: 10,
                        origin: code + 1,
                        unit: 1,
                        entered_at: 0,
                        lines: vec![(0, 10 + place as u32)],
                        lines_cut: false,
                    };
                    told.say(Body::Code(Box::new(name)), StackRef::NotTaken);
                }
            }
        }
        let steps = told.steps();
        let summary = steps.summary.unwrap();
        assert_eq!(summary.count, Some(70), "{codes:x?}: {}", summary.evidence);
        let counts: Vec<u64> = steps.lines.iter().map(|line| line.count).collect();
        assert_eq!(counts, [70, 70], "{codes:x?}");
    }
}

/// Steps of four backward passes each, of which the first also allocates the gradients. In one pass, it may be, something else is allocated.
fn accumulated(steps: u64, unlike: Option<(u64, u64)>, mut see: impl FnMut(&Told)) -> Told {
    let mut told = Told::new();
    let mut used = 0u64;
    let mut next = 0x1000u64;
    for step in 0..steps {
        for pass in 0..4u64 {
            let mut blocks = if pass == 0 { 5 } else { 3 };
            if unlike == Some((step, pass)) {
                blocks = 9;
            }
            for _ in 0..blocks {
                used += 512;
                next += 0x1000;
                told.report(next, 512, used, StackRef::NotTaken);
            }
            for _ in 0..blocks {
                used -= 512;
                told.report(next, -512, used, StackRef::NotTaken);
                next -= 0x1000;
            }
            told.pass(7);
        }
        see(&told);
    }
    told
}

#[test]
fn accumulated_gradients_make_one_step() {
    let report = accumulated(30, None, |_| {}).steps();
    assert_eq!(
        report.summary.as_ref().unwrap().source(),
        v1::StepSource::Backward
    );
    assert_eq!(
        report.summary.as_ref().unwrap().count,
        Some(30),
        "{}",
        report.summary.as_ref().unwrap().evidence
    );
    assert_eq!(report.rows.last().unwrap().step, 30);
}

/// One pass that is unlike all others, as one of a longer sequence, changes nothing.
#[test]
fn an_unlike_pass_leaves_the_number_of_passes_in_a_step() {
    let mut steps = 0;
    accumulated(160, Some((100, 2)), |told| {
        steps += 1;
        if steps > 10 {
            let report = told.steps();
            assert_eq!(report.summary.unwrap().count, Some(steps));
            assert_eq!(report.rows.last().unwrap().step, steps);
        }
    });
}

/// A warm-up, or one phase of a training, has a thread of its own.
#[test]
fn another_thread_goes_on_where_the_first_makes_no_more_passes() {
    let mut told = Told::new();
    for tid in [1, 2, 1] {
        for pass in 0..100 {
            if pass < 10 || tid == 2 {
                told.report(0x1000, 512, 1 << 20, StackRef::NotTaken);
                told.pass(tid);
                told.report(0x1000, -512, 1 << 20, StackRef::NotTaken);
            }
        }
    }
    let report = told.steps();
    assert_eq!(report.summary.unwrap().count, Some(120));
    let numbers: Vec<u64> = report.rows.iter().map(|row| row.step).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    assert_eq!(report.survivors, []);
}

/// With checkpointing a pass begins others, on threads of the autograd engine.
#[test]
fn passes_inside_of_a_pass_are_no_steps() {
    let mut told = Told::new();
    for step in 0..20 {
        told.pass(1);
        for inner in 0..24 + step {
            told.pass(2 + inner % 2);
        }
    }
    assert_eq!(told.steps().summary.unwrap().count, Some(20));
}

/// A warm-up without checkpointing comes first, so that nobody knows how many passes come inside of one.
#[test]
fn passes_inside_of_later_passes_are_no_steps() {
    for (inner, wrong) in [(48, 0), (100, 100)] {
        let mut told = Told::new();
        for step in 0..50 {
            told.pass(1);
            for _ in 0..if step < 10 { 0 } else { inner } {
                told.pass(2);
            }
        }
        // Of so many the first ones are taken for steps of another thread, but not those that come later.
        let count = told.steps().summary.unwrap().count;
        assert_eq!(count, Some(50 + wrong), "{inner}");
    }
}

/// Passes of which four made a step, and then none that repeat, are counted one by one again after a while.
#[test]
fn a_number_of_passes_does_not_hold_for_ever() {
    let mut told = Told::new();
    for pass in 0..2_000_u64 {
        let blocks = if pass < 400 {
            pass % 4
        } else {
            pass * pass % 1_009
        };
        for _ in 0..blocks {
            told.report(0x1000, 512, 1 << 20, StackRef::NotTaken);
            told.report(0x1000, -512, 1 << 20, StackRef::NotTaken);
        }
        told.pass(1);
    }
    assert_eq!(told.steps().summary.unwrap().count, Some(2_000));
}

#[test]
fn what_the_user_picked_is_best() {
    let mut told = Told::new();
    told.say(
        Body::Attached(Box::new(ProcessFacts {
            from_start: true,
            step_name: Some("iteration *".to_owned()),
            ..ProcessFacts::default()
        })),
        StackRef::NotTaken,
    );
    for i in 0..30 {
        told.optimizer("SGD", 1);
        told.mark(MarkKind::Step, MarkSource::Memscope, "", StackRef::NotTaken);
        if i % 2 == 0 {
            let name = format!("iteration {i}");
            told.mark(MarkKind::Begin, MarkSource::Nvtx, &name, StackRef::NotTaken);
        }
    }
    let summary = told.steps().summary.unwrap();
    assert_eq!(
        (summary.source(), summary.count),
        (v1::StepSource::Named, Some(15))
    );
}

#[test]
fn inference_is_counted_by_its_pattern() {
    let mut told = Told::new();
    told.stack(5);
    let mut used = 1u64 << 30;
    // One layer is unlike all others.
    let size = |layer: u64| {
        if layer == 11 {
            50
        } else {
            1 + layer as i64 % 7
        }
    };
    for pass in 0..100u64 {
        for layer in 0..20u64 {
            used += 512;
            told.report(
                0x10_0000 + layer * 0x1000,
                512 * size(layer),
                used,
                StackRef::Id(5),
            );
        }
        for layer in 0..20u64 {
            used -= 512;
            told.report(
                0x10_0000 + layer * 0x1000,
                -512 * size(layer),
                used,
                StackRef::NotTaken,
            );
        }
        if pass > 30 {
            let summary = told.steps().summary.unwrap();
            assert_eq!(
                (summary.source(), summary.count),
                (v1::StepSource::Pattern, Some(pass + 1))
            );
        }
    }
    // What came before the pattern was known is no step.
    let rows = told.steps().rows;
    assert!(rows.iter().all(|row| row.allocs == 20), "{rows:#?}");
}

/// Passes of inference whose layers have all different sizes, and what came before them. Returns what was asked at each moment: the count, and
/// the number and the allocations of each row.
fn asked_all_the_time(before: u64, layers: u64, passes: u64) -> Vec<(u64, Vec<(u64, u64)>)> {
    let mut told = Told::new();
    told.stack(5);
    let used = 1u64 << 30;
    for block in 0..before {
        let size = 512 * (1000 + block as i64);
        told.report(0x8000_0000 + block * 0x10_0000, size, used, StackRef::Id(5));
    }
    let mut seen = Vec::new();
    for _ in 0..passes {
        for sign in [1, -1] {
            for layer in 0..layers {
                let size = sign * 512 * (1 + layer as i64);
                told.report(0x10_0000 + layer * 0x10_0000, size, used, StackRef::Id(5));
                let report = told.steps();
                let rows = report.rows.iter().map(|row| (row.step, row.allocs));
                let count = report.summary.unwrap().count.unwrap_or(0);
                seen.push((count, rows.collect()));
            }
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn steps_of_a_pattern_are_whole_and_their_numbers_follow(before in 0u64..60, layers in 2u64..24) {
        // A pattern is looked for at 64, 128 and 256 allocations, and must have three quarters of them.
        let passes = 60.max(300 / layers);
        let mut newest = 0;
        for (count, rows) in asked_all_the_time(before, layers, passes) {
            prop_assert!(count >= newest, "{} after {}", count, newest);
            newest = count;
            prop_assert!(rows.iter().all(|row| row.1 == layers), "{:?}", rows);
            let numbers = rows.iter().map(|row| row.0);
            let follow = numbers.clone().zip(numbers.skip(1)).all(|(one, next)| next == one + 1);
            prop_assert!(follow, "{:?}", rows);
        }
        prop_assert!(newest >= passes - 2, "{}", newest);
    }
}

/// The functions of mstx and NVTX say which range they begin only when they return, so ends are counted.
#[test]
fn ranges_inside_a_step_do_not_end_it() {
    for (source, other) in [
        (MarkSource::Mstx, MarkSource::Nvtx),
        (MarkSource::Nvtx, MarkSource::Memscope),
    ] {
        let mut told = Told::new();
        told.mark(MarkKind::Begin, source, "step start", StackRef::NotTaken);
        told.mark(MarkKind::Begin, source, "x", StackRef::NotTaken);
        told.report(0x1000, 512, 512, StackRef::NotTaken);
        told.mark(MarkKind::End, source, "", StackRef::NotTaken);
        told.mark(MarkKind::End, other, "", StackRef::NotTaken);
        assert_eq!(told.steps().rows, []);
        let all = (1 << 20) + 512;
        told.report(0x2000, 1 << 20, all, StackRef::NotTaken);
        told.mark(MarkKind::End, source, "", StackRef::NotTaken);
        let rows = told.steps().rows;
        let rows: Vec<_> = rows.iter().map(|row| row.max_allocated_bytes).collect();
        assert_eq!(rows, [all], "{source:?}");
    }
}

/// A generator and a discriminator have an optimizer each: what lives as long as the step does not outlive it.
#[test]
fn blocks_outlive_steps_and_not_single_ticks() {
    let mut told = Told::new();
    told.stack(1);
    told.stack(2);
    for step in 1..=6 {
        told.report(0x1000, 512, 1024, StackRef::NotTaken);
        if step == 3 {
            told.report(0x2000, 512, 1024, StackRef::NotTaken);
        }
        told.optimizer("Adam", 1);
        told.optimizer("Adam", 2);
        told.report(0x1000, -512, 512, StackRef::NotTaken);
    }
    let report = told.steps();
    assert_eq!(report.summary.unwrap().count, Some(6));
    let found = report.survivors.iter();
    let found: Vec<_> = found.map(|one| (one.address, one.step)).collect();
    assert_eq!(found, [(0x2000, 3)]);
}

/// Another loop of the program takes over: the number of steps lags for a tick, and then jumps.
#[test]
fn what_is_freed_in_its_step_outlives_none_where_another_line_takes_over() {
    let mut told = Told::new();
    for line in [1, 1, 2, 1, 2] {
        for _ in 0..10 {
            told.report(0x1000, 512, 1024, StackRef::NotTaken);
            told.optimizer("Adam", line);
            told.report(0x1000, -512, 512, StackRef::NotTaken);
        }
    }
    let report = told.steps();
    assert!(report.summary.unwrap().count > Some(10));
    assert_eq!(report.survivor_count, 0, "{:?}", report.survivors);
}

/// Where gradients are accumulated, a step has several backward passes.
#[test]
fn blocks_outlive_steps_and_not_single_passes() {
    let mut told = Told::new();
    let mut early = 0;
    for step in 1..=30u64 {
        for pass in 0..4u64 {
            // The first pass of a step also allocates what is needed throughout the step.
            if pass == 0 {
                told.report(0x2000, 512, 1 << 20, StackRef::NotTaken);
            }
            if (step, pass) == (20, 1) {
                told.report(0x9000, 512, 1 << 20, StackRef::NotTaken);
            } else {
                told.report(0x1000, 512, 1 << 20, StackRef::NotTaken);
                told.report(0x1000, -512, 1 << 20, StackRef::NotTaken);
            }
            told.mark(MarkKind::Instant, MarkSource::Backward, "", StackRef::Id(1));
        }
        told.report(0x2000, -512, 1 << 20, StackRef::NotTaken);
        if step == 12 {
            early = told.steps().survivor_count;
        }
    }
    let report = told.steps();
    assert_eq!(report.summary.unwrap().count, Some(30));
    // Until the pattern of the passes is known, each of them counts as a step.
    let later = report.survivors.iter().skip(early as usize);
    let later: Vec<_> = later.map(|one| (one.address, one.step)).collect();
    assert_eq!(later, [(0x9000, 20)]);
}

/// A training loop as PyTorch's own numbers have it: the first step allocates the optimizer's state, each step temporaries.
fn trained(told: &mut Told, steps: u64, ends: bool) {
    told.stack(1);
    for step in 1..=steps {
        let held = if step == 1 { 100 } else { 200 };
        told.report(0x1000, 500, held + 500, StackRef::NotTaken);
        told.pass(7);
        told.report(0x1000, -500, held, StackRef::NotTaken);
        told.begins(7, "Adam", StackRef::Id(1));
        if step == 1 {
            told.report(0x2000, 100, 200, StackRef::NotTaken);
        }
        told.report(
            0x3000,
            1000 * step as i64,
            200 + 1000 * step,
            StackRef::NotTaken,
        );
        told.report(0x3000, -1000 * step as i64, 200, StackRef::NotTaken);
        if ends {
            told.ends(7);
        }
    }
}

#[test]
fn what_an_optimizer_allocates_is_of_the_step_that_it_ends() {
    let mut told = Told::new();
    trained(&mut told, 3, true);
    let rows = vec![(1, 1200, 200), (2, 2200, 200), (3, 3200, 200)];
    assert_eq!(told.levels(), (Some(3), rows));
    let report = told.steps();
    assert_eq!(report.survivors, []);
    let evidence = report.summary.unwrap().evidence;
    assert!(!evidence.contains("is not seen"), "{evidence}");
}

/// The first step has the peak of its forward pass, although the backward pass was what told of steps until then.
#[test]
fn the_first_step_of_an_optimizer_has_the_passes_before_it() {
    let mut told = Told::new();
    told.stack(1);
    for _ in 0..3 {
        told.report(0x1000, 500, 600, StackRef::NotTaken);
        told.pass(7);
        told.report(0x1000, -500, 100, StackRef::NotTaken);
    }
    told.optimizer("SGD", 1);
    assert_eq!(told.levels(), (Some(1), vec![(1, 600, 100)]));
    let row = &told.steps().rows[0];
    assert_eq!((row.allocs, row.frees), (3, 3));
    told.report(0x1000, 50, 150, StackRef::NotTaken);
    told.pass(7);
    told.optimizer("SGD", 1);
    assert_eq!(told.levels().1[1], (2, 150, 150));
}

/// In older recordings, and where PyTorch ends a `record_function` without a function that can have a probe.
#[test]
fn without_the_ends_of_optimizers_steps_end_where_they_begin() {
    for probed in [false, true] {
        let mut told = Told::new();
        told.say(
            Body::Placed(Box::new(Placement {
                pool_seen: true,
                function_ends: probed,
                ..Placement::default()
            })),
            StackRef::NotTaken,
        );
        trained(&mut told, 4, false);
        let rows = match probed {
            false => vec![
                (1, 600, 100),
                (2, 1200, 200),
                (3, 2200, 200),
                (4, 3200, 200),
            ],
            // The second beginning shows that the ends are not seen. Until then two steps have passed, and no row is for both.
            true => vec![(3, 2200, 200), (4, 3200, 200)],
        };
        assert_eq!(told.levels(), (Some(4), rows), "{probed}");
        let evidence = told.steps().summary.unwrap().evidence;
        assert!(
            evidence.contains("so steps end where they begin"),
            "{evidence}"
        );
    }
}

#[test]
fn an_optimizer_that_calls_others_ends_one_step() {
    let mut told = Told::new();
    for line in [1, 2, 3] {
        told.stack(line);
    }
    let mut used = 0;
    for step in 1..=5 {
        told.begins(7, "Wrapper", StackRef::Id(1));
        for (name, line) in [("Adam", 2), ("Adam", 3), ("Adam", 2)] {
            // A function of the program inside of it, and another thread that has its own.
            told.begins(7, name, StackRef::Id(line));
            told.function(7, MarkKind::Begin, "all_gather", StackRef::Id(9));
            told.function(8, MarkKind::Begin, "loader", StackRef::Id(9));
            told.ends(7);
            told.ends(7);
        }
        used += 100;
        told.report(0x1000 * step, 100, used, StackRef::NotTaken);
        told.ends(8);
        assert_eq!(told.steps().summary.unwrap().count.unwrap_or(0), step - 1);
        told.ends(7);
        assert_eq!(told.levels().1.last(), Some(&(step, used, used)));
    }
    assert_eq!(told.levels().0, Some(5));
}

/// An end whose beginning was before the attach ends nothing.
#[test]
fn an_attach_in_the_middle_of_an_optimizers_step() {
    let mut told = Told::new();
    told.ends(7);
    told.ends(7);
    trained(&mut told, 3, true);
    assert_eq!(told.levels().0, Some(3));
}

/// The end is among records that were lost: the step ends where the loss is heard of, and is counted once.
#[test]
fn a_step_whose_end_is_lost_is_counted_once() {
    for end_comes in [false, true] {
        let mut told = Told::new();
        trained(&mut told, 3, true);
        told.report(0x1000, 50, 250, StackRef::NotTaken);
        told.pass(7);
        told.begins(7, "Adam", StackRef::Id(1));
        told.function(7, MarkKind::Begin, "inside", StackRef::Id(9));
        told.lost += 5;
        told.report(0x1000, -50, 200, StackRef::NotTaken);
        assert_eq!(told.levels().0, Some(4));
        if end_comes {
            told.ends(7);
            told.ends(7);
        }
        trained(&mut told, 2, true);
        assert_eq!(told.levels().0, Some(6), "{end_comes}");
    }
}

/// Marks of steps may be among records that were lost. Steps are counted from the first one that was seen, so a loss before it makes the
/// count no worse.
#[test]
fn steps_that_may_have_been_lost_are_said() {
    let step = |told: &mut Told| {
        told.mark(MarkKind::Step, MarkSource::Memscope, "", StackRef::NotTaken);
    };
    let said = |told: &Told, answer| {
        let notes = told.steps().coverage;
        let mut notes = inexact(answer, &notes).into_iter();
        notes.any(|note| note.code == "steps_inexact_after_loss")
    };
    let mut told = Told::new();
    told.lost = 5;
    told.report(0x1000, 50, 50, StackRef::NotTaken);
    assert!(!said(&told, Answer::Steps), "there are no steps");
    told.pass(7);
    told.pass(7);
    assert!(!said(&told, Answer::Steps));
    told.lost = 6;
    told.pass(7);
    assert!(said(&told, Answer::Steps));
    // A source that tells more begins a count of its own.
    step(&mut told);
    assert!(!said(&told, Answer::Steps));
    told.lost = 7;
    step(&mut told);
    for (answer, spoils) in [
        (Answer::Steps, true),
        (Answer::Leaks, true),
        (Answer::Stats, false),
    ] {
        assert_eq!(said(&told, answer), spoils, "{answer:?}");
    }
}

/// A pattern of allocations goes on counting where it was lost for a while, and what went by in a loss is missing in its count.
#[test]
fn steps_of_a_pattern_that_may_have_been_lost_are_said() {
    const CYCLE: u64 = 50;
    let cycles = |told: &mut Told, allocations: std::ops::Range<u64>| {
        for number in allocations {
            let size = 512 * (number % CYCLE + 1);
            told.report(0x1000, size as i64, size, StackRef::NotTaken);
            told.report(0x1000, -(size as i64), 0, StackRef::NotTaken);
        }
    };
    let said = |told: &Told| {
        let report = told.steps();
        let is_said = |note: &v1::CoverageNote| note.code == "steps_inexact_after_loss";
        let source = report.summary.unwrap_or_default().source();
        (source, report.coverage.iter().any(is_said))
    };
    // The loss comes before the first cycle was recognised, or after it.
    for before in [30, 20 * CYCLE] {
        let mut told = Told::new();
        cycles(&mut told, 0..before);
        told.lost = 20;
        cycles(&mut told, before + 20..before + 20 + 200 * CYCLE);
        assert_eq!(said(&told), (v1::StepSource::Pattern, true), "{before}");
    }
    let mut told = Told::new();
    told.lost = 20;
    cycles(&mut told, 0..40 * CYCLE);
    assert_eq!(said(&told), (v1::StepSource::Pattern, false));
}

/// What a thread of a program does with optimizers.
#[derive(Clone, Debug)]
enum Call {
    /// A `record_function`, of an optimizer by its line or of something else, with what is called inside of it.
    Function(Option<u64>, Vec<Call>),
    Alloc(u64),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let leaf = (1u64..100).prop_map(Call::Alloc);
    let call = leaf.prop_recursive(3, 12, 4, |inner| {
        let inside = prop::collection::vec(inner, 0..4);
        (prop::option::of(Just(())), inside)
            .prop_map(|(is_optimizer, inside)| Call::Function(is_optimizer.map(|()| 0), inside))
    });
    prop::collection::vec(call, 0..5)
}

/// Plays calls; `place` is the place of the program, which differs with what is around it.
fn play(
    told: &mut Told,
    calls: &[Call],
    place: u64,
    inside: bool,
    used: &mut u64,
    ended: &mut Vec<u64>,
) {
    for call in calls {
        match call {
            Call::Alloc(size) => {
                *used += size;
                told.report(*used << 12, *size as i64, *used, StackRef::NotTaken);
            }
            Call::Function(optimizer, within) => {
                let (place, is_step) = (place + 1, optimizer.is_some());
                let name = if is_step {
                    "Optimizer.step#A.step"
                } else {
                    "other"
                };
                told.function(7, MarkKind::Begin, name, StackRef::Id(place));
                play(told, within, place, inside || is_step, used, ended);
                told.ends(7);
                if is_step && !inside {
                    ended.push(*used);
                }
            }
        }
    }
}

proptest! {
    /// One step for each outermost step of an optimizer, and what is held at its end is the level of its row.
    #[test]
    fn each_outermost_step_of_an_optimizer_ends_a_step(calls in calls(), again in 1usize..6) {
        let mut told = Told::new();
        for place in 1..8 {
            told.stack(place);
        }
        let (mut used, mut ended) = (0, Vec::new());
        for _ in 0..again {
            // One line of the program makes all of them, so each of them is a step.
            let one = Call::Function(Some(0), calls.clone());
            play(&mut told, &[Call::Alloc(7), one], 0, false, &mut used, &mut ended);
        }
        let (count, rows) = told.levels();
        prop_assert_eq!(count, Some(again as u64));
        let levels: Vec<u64> = rows.iter().map(|(_, _, end)| *end).collect();
        prop_assert_eq!(levels, ended);
    }
}
