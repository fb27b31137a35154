//! Sums by stack, compared with a naive model that keeps every live block with its stack.

use crate::common::pictures::tell;
use crate::common::*;
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use memscope_ledger::{Ledger, LedgerConfig};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

fn say(ledger: &mut Ledger, body: Body) {
    ledger.apply(&event(P, SECOND, body));
}

fn seen(id: u64, frames: &[(u64, u64)]) -> Body {
    Body::Stack(Box::new(StackSeen {
        id,
        frames: frames.to_vec(),
        ..StackSeen::default()
    }))
}

fn named(code: u64, name: &str, died: Option<u64>) -> Body {
    Body::Code(Box::new(CodeName {
        code,
        died,
        name: name.into(),
        file: "model.py".into(),
        first_line: 10,
        origin: code + 100,
        unit: 1,
        entered_at: 0,
        lines: vec![(0, 10), (4, 11), (8, 0), (12, 20)],
        lines_cut: false,
    }))
}

/// The names of a row's frames, or why there are none.
fn title(stack: &Stack) -> String {
    match stack.missing {
        Some(why) => format!("[{why}]"),
        None => {
            let names: Vec<String> = stack
                .frames
                .iter()
                .map(|f| format!("{}:{}", f.name, f.line))
                .collect();
            names.join(";")
        }
    }
}

/// (device, title) → (live, peak, allocated), each (count, bytes).
type Sums = BTreeMap<(i32, String), [(u64, u64); 3]>;

fn reported(ledger: &Ledger) -> Sums {
    let mut sums = Sums::new();
    for row in ledger.stacks(P, as_of(0)).unwrap().rows {
        let key = (row.device.unwrap(), title(&row.stack));
        let entry = sums.entry(key).or_default();
        for (place, tally) in [row.live, row.peak, row.allocated].into_iter().enumerate() {
            entry[place].0 += tally.count;
            entry[place].1 += tally.bytes;
        }
    }
    sums.retain(|_, sums| *sums != [(0, 0); 3]);
    sums
}

/// Count and bytes by title.
type Titles = BTreeMap<String, (u64, u64)>;

#[derive(Default)]
struct Model {
    /// Address → (device, title, bytes).
    live: BTreeMap<u64, (i32, String, u64)>,
    allocated: BTreeMap<(i32, String), (u64, u64)>,
    peaks: BTreeMap<i32, (u64, Titles)>,
}

impl Model {
    fn by_title(&self, device: i32) -> Titles {
        let mut sums = Titles::new();
        for (of, title, bytes) in self.live.values() {
            if *of == device {
                let sum = sums.entry(title.clone()).or_default();
                *sum = (sum.0 + 1, sum.1 + bytes);
            }
        }
        sums
    }

    fn level(&mut self, device: i32) {
        let now = self.by_title(device);
        let total = now.values().map(|sum| sum.1).sum();
        let peak = self.peaks.entry(device).or_default();
        if total > peak.0 {
            *peak = (total, now);
        }
    }

    fn sums(&self) -> Sums {
        let mut sums = Sums::new();
        for device in 0..2 {
            for (title, live) in self.by_title(device) {
                sums.entry((device, title)).or_default()[0] = live;
            }
            if let Some((_, peak)) = self.peaks.get(&device) {
                for (title, at_peak) in peak {
                    sums.entry((device, title.clone())).or_default()[1] = *at_peak;
                }
            }
        }
        for ((device, title), allocated) in &self.allocated {
            sums.entry((*device, title.clone())).or_default()[2] = *allocated;
        }
        sums
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_are_those_of_the_blocks(
        seed in any::<u64>(),
        steps in 1u64..120,
        mode in prop::sample::select(&[Mode::Calibrated, Mode::Uncalibrated, Mode::Both, Mode::Reports][..]),
        known in 0u64..5,
    ) {
        let mut dice = Dice(seed);
        let mut sim = Sim::new(mode);
        let mut ledger = attached(Level::Trace, true, sim.time);
        say(&mut ledger, Body::Placed(Box::new(Placement { pool_seen: true, ..Placement::default() })));
        let mut model = Model::default();
        for (at, name) in NAMES.iter().enumerate().take(known as usize) {
            let code = 0x1000 * (at as u64 + 1);
            say(&mut ledger, seen(100 + at as u64, &[(code, code + 104)]));
            say(&mut ledger, named(code, name, None));
        }
        for _ in 0..steps {
            sim.time += 1 + dice.below(MS);
            if dice.below(3) < 2 {
                let which = dice.below(6);
                sim.stack = if which < 4 { StackRef::Id(100 + which) } else { StackRef::NoPython };
                let title = match which {
                    4.. => "[no_python]".to_owned(),
                    _ if which < known => format!("{}:11", NAMES[which as usize]),
                    _ => "[lost]".to_owned(),
                };
                let device = dice.below(2) as i32;
                let addr = sim.alloc(device, 0, 1 + dice.below(4 << 20));
                let bytes = sim.live[&addr].rounded;
                model.live.insert(addr, (device, title.clone(), bytes));
                let sum = model.allocated.entry((device, title)).or_default();
                *sum = (sum.0 + 1, sum.1 + bytes);
                model.level(device);
            } else if !sim.live.is_empty() {
                sim.stack = StackRef::NotTaken;
                let at = dice.below(sim.live.len() as u64) as usize;
                let addr = *sim.live.keys().nth(at).unwrap();
                sim.free(addr, false);
                model.live.remove(&addr);
            }
            sim.feed(&mut ledger);
            prop_assert_eq!(reported(&ledger), model.sums());
        }
    }
}

/// Names of new code are read a little later than the events that need them.
#[test]
fn a_picture_gets_the_names_that_come_later_and_nothing_else() {
    let mut sim = Sim::new(Mode::Calibrated);
    let mut ledger = attached(Level::Trace, true, sim.time);
    let code = |at: u64| 0x1000 * (at + 1);
    for at in 0..3 {
        say(&mut ledger, seen(100 + at, &[(code(at), code(at) + 104)]));
        sim.stack = StackRef::Id(100 + at);
        sim.time += MS;
        sim.alloc(0, 0, MIB << at);
    }
    say(&mut ledger, named(code(0), "alpha", None));
    sim.feed(&mut ledger);
    let (made, unnamed) = ledger.picture(P, as_of(sim.time)).unwrap();
    // One gets its name, and one another name at its death. Then another object is at that address.
    say(&mut ledger, named(code(1), "beta", None));
    ledger.apply(&Event {
        id: EventId {
            sequence: 70,
            ..EventId::default()
        },
        ..event(P, sim.time, Body::CodeDied { code: code(2) })
    });
    say(&mut ledger, seen(110, &[(code(2), code(2) + 104)]));
    say(&mut ledger, named(code(2), "delta", None));
    say(&mut ledger, named(code(2), "gamma", Some(70)));
    sim.stack = StackRef::Id(110);
    sim.time += MS;
    sim.alloc(0, 0, 5 * MIB);
    sim.feed(&mut ledger);
    let mut named = made.clone();
    ledger.name(&mut named, &unnamed);
    let titles = |report: &SnapshotReport| -> Vec<String> {
        let blocks = report.segments.iter().flat_map(|one| &one.blocks);
        let used = blocks.filter(|block| block.state == BlockState::Active);
        let mut all: Vec<String> = used
            .map(|block| title(&report.stacks[block.stack as usize]))
            .collect();
        all.sort();
        all
    };
    assert_eq!(titles(&made), [":0", ":0", "alpha:11"]);
    assert_eq!(titles(&named), ["alpha:11", "beta:11", "gamma:11"]);
    named.stacks.clone_from(&made.stacks);
    assert_eq!(named, made);
}

/// Stacks at the peak by device: title → count and bytes; devices whose ordinal is not known last.
fn at_peak(ledger: &Ledger) -> BTreeMap<(Option<i32>, String), (u64, u64)> {
    let mut sums = BTreeMap::new();
    for row in ledger.stacks(P, as_of(0)).unwrap().rows {
        let sum: &mut (u64, u64) = sums.entry((row.device, title(&row.stack))).or_default();
        *sum = (sum.0 + row.peak.count, sum.1 + row.peak.bytes);
    }
    sums.retain(|_, sum| *sum != (0, 0));
    sums
}

/// What the model has at the peak, in the form of [`at_peak`].
fn at_peak_of(model: &Model, device: i32) -> BTreeMap<(Option<i32>, String), (u64, u64)> {
    let titles = model.peaks.get(&device).map(|(_, titles)| titles.clone());
    let titles = titles.unwrap_or_default().into_iter();
    titles
        .map(|(title, sum)| ((Some(device), title), sum))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// What was there before the attach was there at the peak as well: until it went, or until a higher peak. Segments that
    /// the pool takes from the driver are in its blocks, on whatever device their calls seemed to be.
    #[test]
    fn at_the_peak_after_a_late_attach(
        seed in any::<u64>(),
        before in 0u64..40,
        until_reading in 0u64..30,
        until_applied in 0u64..15,
        after in 0u64..30,
        mode in prop::sample::select(&[Mode::Calibrated, Mode::Uncalibrated, Mode::Both, Mode::Reports][..]),
        driver_calls in any::<bool>(),
        names_device in any::<bool>(),
    ) {
        let mut dice = Dice(seed);
        let mut sim = Sim::new(mode);
        sim.attached = false;
        sim.driver_calls = driver_calls;
        sim.names_device = names_device || mode != Mode::Uncalibrated;
        let mut model = Model::default();
        let mut ledger = Ledger::new(LedgerConfig::default());
        let mut held: Vec<HeldPart> = Vec::new();
        let (attach, read) = (before, before + until_reading);
        let (first, second) = (read + until_applied, read + until_applied + after);
        for step in 0..=second {
            if step == attach {
                sim.attached = true;
                sim.time += MS;
                let level = if mode == Mode::Reports { Level::Blocks } else { Level::Trace };
                ledger = attached(level, false, sim.time);
                for (at, name) in NAMES.iter().enumerate() {
                    let code = 0x1000 * (at as u64 + 1);
                    say(&mut ledger, seen(100 + at as u64, &[(code, code + 104)]));
                    say(&mut ledger, named(code, name, None));
                }
                (0..2).for_each(|device| model.level(device));
            }
            sim.time += 1 + dice.below(MS);
            if step == read || step == second {
                held = (0..2).flat_map(|device| sim.reading(device, 7)).collect();
            }
            if step == first || step == second {
                tell(&mut ledger, sim.time, std::mem::take(&mut held));
            }
            sim.time += 1;
            if dice.below(3) < 2 {
                let which = dice.below(4);
                sim.stack = StackRef::Id(100 + which);
                let title = if sim.attached { format!("{}:11", NAMES[which as usize]) } else { "[before_attach]".to_owned() };
                let device = dice.below(2) as i32;
                let addr = sim.alloc(device, 0, 1 + dice.below(4 << 20));
                model.live.insert(addr, (device, title, sim.live[&addr].rounded));
                if sim.attached {
                    model.level(device);
                }
            } else if !sim.live.is_empty() {
                sim.stack = StackRef::NotTaken;
                let at = dice.below(sim.live.len() as u64) as usize;
                let addr = *sim.live.keys().nth(at).unwrap();
                sim.free(addr, false);
                model.live.remove(&addr);
            }
            if !sim.attached {
                continue;
            }
            sim.feed(&mut ledger);
            if step < first {
                continue;
            }
            let told = at_peak(&ledger);
            let wanted: BTreeMap<_, _> = (0..2).flat_map(|device| at_peak_of(&model, device)).collect();
            prop_assert_eq!(&told, &wanted, "step {}", step);
            for found in &stats(&ledger).devices {
                let sum: u64 = told.iter().filter(|((of, _), _)| *of == found.device).map(|(_, sum)| sum.1).sum();
                prop_assert_eq!(found.peak_allocated_bytes, Some(sum));
            }
        }
    }
}

/// A reading and no event since the attach: what it shows is all there ever was.
#[test]
fn the_peak_of_a_process_that_rests_is_what_it_holds() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.attached = false;
    sim.alloc(0, 0, 100 * MIB);
    sim.attached = true;
    let mut ledger = attached(Level::Trace, false, sim.time);
    sim.time += MS;
    tell(&mut ledger, sim.time, sim.reading(0, 10));
    let before = (Some(0), "[before_attach]".to_owned());
    assert_eq!(at_peak(&ledger), BTreeMap::from([(before, (1, 100 * MIB))]));
}

/// Memory on an unknown device of which the pool turns out to be the owner is not at the peak of that device. The peak
/// is then that of the rest, at the same moment.
#[test]
fn what_the_pool_took_is_at_no_peak_of_an_unknown_device() {
    let peak = |before: &[(CallOp, u64, u64)]| {
        let mut sim = Sim::new(Mode::Calibrated);
        sim.driver_calls = true;
        let mut ledger = attached(Level::Trace, true, sim.time);
        for &(op, addr, size) in before {
            sim.time += MS;
            sim.emit(call("cudaMalloc", op, addr, size));
            sim.feed(&mut ledger);
        }
        sim.time += MS;
        sim.alloc(0, 0, 5 * MIB);
        sim.feed(&mut ledger);
        let rows = ledger.stacks(P, as_of(0)).unwrap().rows;
        let rows = rows.iter().filter(|row| row.device.is_none());
        let sum: u64 = rows.map(|row| row.peak.bytes).sum();
        let told = find_device(&ledger, None).and_then(|row| row.peak_allocated_bytes);
        assert_eq!(told.unwrap_or(0), sum, "{before:?}");
        sum
    };
    assert_eq!(peak(&[]), 0);
    let kept = (CallOp::Alloc, 0x1000, 8 * MIB);
    assert_eq!(peak(&[kept]), 8 * MIB);
    // The peak is from before the pool's 20 MiB.
    let more = [
        (CallOp::Alloc, 0x1000_0000, 50 * MIB),
        (CallOp::Free, 0x1000_0000, 0),
    ];
    assert_eq!(peak(&more), 50 * MIB);
    assert_eq!(peak(&[more[0], more[1], kept]), 50 * MIB);
}

/// Without a pool, the peak is that of the driver's allocations; with the first block of a pool, the pool's.
#[test]
fn the_peak_without_a_pool_is_the_drivers() {
    let mut ledger = attached_as(Level::Trace, true, SECOND, Backend::Unknown);
    for (at, name) in NAMES.iter().enumerate() {
        let code = 0x1000 * (at as u64 + 1);
        say(&mut ledger, seen(50 + at as u64, &[(code, code + 104)]));
        say(&mut ledger, named(code, name, None));
    }
    let mut number = 0;
    let mut called = |ledger: &mut Ledger, op: CallOp, addr: u64, size: u64, stack: u64| {
        number += 1;
        let mut call = event(P, SECOND + number * MS, call("cudaMalloc", op, addr, size));
        if let Body::Call(of) = &mut call.body {
            of.device = Some(0);
        }
        call.id.sequence = number;
        call.stack = StackRef::Id(stack);
        ledger.apply(&call);
    };
    called(&mut ledger, CallOp::Alloc, 0x10_0000, 1000, 50);
    called(&mut ledger, CallOp::Alloc, 0x20_0000, 3000, 51);
    called(&mut ledger, CallOp::Free, 0x10_0000, 0, 51);
    called(&mut ledger, CallOp::Alloc, 0x30_0000, 500, 52);
    let peaks = |ledger: &Ledger| -> BTreeMap<String, u64> {
        let sums = reported(ledger).into_iter();
        sums.map(|((_, title), [_, peak, _])| (title, peak.1))
            .collect()
    };
    let expected = [("alpha:11", 1000), ("beta:11", 3000), ("gamma:11", 0)];
    let expected = expected.map(|(title, bytes)| (title.to_owned(), bytes));
    assert_eq!(peaks(&ledger), BTreeMap::from(expected));
    assert_eq!(device(&ledger, 0).peak_allocated_bytes, Some(4000));
    // A pool begins: its first block is its peak, however much the driver held before.
    let mut sim = Sim::new(Mode::Calibrated);
    sim.time = 2 * SECOND;
    sim.stack = StackRef::Id(53);
    sim.alloc(0, 0, 1000);
    sim.feed(&mut ledger);
    assert_eq!(peaks(&ledger).get("delta:11"), Some(&1024));
}

/// Where another code object is created at the address of one that has died, no frame gets a wrong name.
#[test]
fn an_address_that_is_used_again() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    let mut sim = Sim::new(Mode::Calibrated);
    let mut allocate = |ledger: &mut Ledger, id: u64| {
        sim.time += MS;
        sim.stack = StackRef::Id(id);
        sim.alloc(0, 0, 1000);
        sim.feed(ledger);
    };
    let titles = |ledger: &Ledger| -> Vec<String> {
        let rows = ledger.stacks(P, as_of(0)).unwrap().rows;
        let mut titles: Vec<String> = rows.iter().map(|row| title(&row.stack)).collect();
        titles.sort();
        titles
    };
    say(&mut ledger, seen(50, &[(0x1000, 0x1064)]));
    allocate(&mut ledger, 50);
    let first = ledger.code_sighting(P, 0x1000).unwrap();
    assert_eq!(titles(&ledger), [":0"], "not named yet");
    // It dies before its name was read; the name comes with its death.
    let mut death = event(P, SECOND, Body::CodeDied { code: 0x1000 });
    death.id.sequence = 77;
    ledger.apply(&death);
    assert_eq!(ledger.code_sighting(P, 0x1000), None);
    say(&mut ledger, seen(51, &[(0x1000, 0x1064)]));
    allocate(&mut ledger, 51);
    let second = ledger.code_sighting(P, 0x1000).unwrap();
    assert_ne!(first, second);
    say(&mut ledger, named(0x1000, "first", Some(77)));
    say(&mut ledger, named(0x1000, "second", None));
    assert_eq!(titles(&ledger), ["first:10", "second:10"]);
    // A name for a death that this log does not have, or that has its name already, changes nothing.
    say(&mut ledger, named(0x1000, "wrong", Some(76)));
    say(&mut ledger, named(0x1000, "wrong", Some(77)));
    say(&mut ledger, named(0x1000, "wrong", None));
    assert_eq!(titles(&ledger), ["first:10", "second:10"]);
    // The same stack under another identity is the same stack.
    say(&mut ledger, seen(52, &[(0x1000, 0x1064)]));
    allocate(&mut ledger, 52);
    assert_eq!(titles(&ledger), ["first:10", "second:10"]);
}

/// From events after the moment asked about, only names for stacks from before it are used.
#[test]
fn what_comes_later_names_what_was_there() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    let mut sim = Sim::new(Mode::Calibrated);
    for (id, code) in [(50, 0x1000), (51, 0x2000)] {
        say(&mut ledger, seen(id, &[(code, code + 100)]));
        sim.time += MS;
        sim.stack = StackRef::Id(id);
        sim.alloc(0, 0, 1000);
        sim.feed(&mut ledger);
    }
    let before = stats(&ledger);
    assert!(ledger.has_unnamed());
    let mut number = 100;
    let mut learn = |ledger: &mut Ledger, body: Body| {
        number += 1;
        let mut later = event(P, 2 * SECOND, body);
        later.id.sequence = number;
        ledger.learn(&later);
        number
    };
    // The first code object dies; another one is created at its address and gets its name before the first one does.
    let death = learn(&mut ledger, Body::CodeDied { code: 0x1000 });
    learn(&mut ledger, seen(52, &[(0x1000, 0x1064)]));
    learn(&mut ledger, named(0x1000, "another", None));
    assert!(ledger.has_unnamed());
    learn(&mut ledger, named(0x1000, "first", Some(death)));
    learn(&mut ledger, named(0x2000, "second", None));
    assert!(!ledger.has_unnamed());
    learn(&mut ledger, Body::Exited);
    let rows = ledger.stacks(P, as_of(0)).unwrap().rows;
    let titles: BTreeMap<String, u64> = rows
        .iter()
        .map(|row| (title(&row.stack), row.live.count))
        .collect();
    let wanted = ["first:10", "second:10"].map(|title| (title.to_owned(), 1));
    assert_eq!(titles, BTreeMap::from(wanted));
    assert_eq!(stats(&ledger), before);
}

#[test]
fn lines_are_where_they_begin() {
    let Body::Code(name) = named(0x1000, "f", None) else {
        unreachable!()
    };
    let line = |at: u64| name.line(0x1064 + at);
    assert_eq!(
        [0, 3, 4, 7, 8, 12, 4000].map(line),
        [10, 10, 11, 11, 0, 20, 20]
    );
    assert_eq!(
        name.line(0x1063),
        10,
        "before the first instruction: the first line"
    );
}

fn native(address: u64, module: &str, functions: &[&str]) -> Body {
    let functions = functions.iter().map(|name| NativeFunction {
        name: (*name).into(),
        ..NativeFunction::default()
    });
    Body::Native(Box::new(NativeName {
        address,
        module: module.into(),
        offset: address & 0xffff,
        functions: functions.collect(),
        ..NativeName::default()
    }))
}

/// Python frames replace the interpreter's frame that executes them, up to the frame with which that call began.
#[test]
fn python_among_compiled_code() {
    const EVAL: &str = "_PyEval_EvalFrameDefault";
    let mut ledger = attached(Level::Trace, true, SECOND);
    let mut sim = Sim::new(Mode::Calibrated);
    for (place, name) in NAMES.iter().enumerate() {
        let code = 0x1000 * (place as u64 + 1);
        say(&mut ledger, seen(40 + place as u64, &[(code, code + 100)]));
        say(&mut ledger, named(code, name, None));
    }
    for (address, functions) in [
        (0x7f01, &["malloc"][..]),
        (0x7f02, &["inlined", "empty"]),
        (0x7f03, &[EVAL]),
        (0x7f04, &["sort"]),
        (0x7f05, &[EVAL]),
        (0x7f06, &["main"]),
        (0x7f07, &[""]),
    ] {
        say(&mut ledger, native(address, "/lib/libx.so", functions));
    }
    let frames: Vec<(u64, u64)> = (1..=4).map(|n| (0x1000 * n, 0x1000 * n + 100)).collect();
    let mut allocate = |ledger: &mut Ledger, seen: StackSeen| -> Vec<String> {
        sim.time += MS;
        sim.stack = StackRef::Id(seen.id);
        say(ledger, Body::Stack(Box::new(seen)));
        sim.alloc(0, 0, 1000);
        sim.feed(ledger);
        let rows = ledger.stacks(P, as_of(0)).unwrap().rows;
        let newest = rows
            .iter()
            .max_by_key(|row| row.stack.frames.len())
            .unwrap();
        let frames = newest.stack.frames.iter();
        frames.map(|frame| frame.name.to_string()).collect()
    };
    let mixed = StackSeen {
        id: 60,
        frames: frames.clone(),
        entries: vec![1, 3],
        natives: vec![0x7f01, 0x7f02, 0x7f03, 0x7f04, 0x7f05, 0x7f06],
        ..StackSeen::default()
    };
    assert_eq!(
        allocate(&mut ledger, mixed.clone()),
        [
            "malloc", "inlined", "empty", "alpha", "beta", "sort", "gamma", "delta", "main"
        ]
    );
    // Only the inner compiled frames are known yet: the Python frames follow them, and once the outer compiled frames
    // come, all are in the right order.
    let unfinished = StackSeen {
        id: 61,
        natives: vec![0x7f01],
        unfinished: true,
        truncated: true,
        ..mixed.clone()
    };
    allocate(&mut ledger, unfinished);
    let short = |ledger: &Ledger| -> Vec<Stack> {
        let rows = ledger.stacks(P, as_of(0)).unwrap().rows;
        let stacks = rows.iter().map(|row| Stack::clone(&row.stack));
        stacks.filter(|stack| stack.truncated).collect()
    };
    let cut = short(&ledger);
    assert_eq!(cut.len(), 1);
    assert_eq!(
        title(&cut[0]),
        "malloc:0;alpha:10;beta:10;gamma:10;delta:10"
    );
    // A code object of the stack dies meanwhile: completing the stack does not change its Python frames.
    say(&mut ledger, Body::CodeDied { code: 0x1000 });
    let rest = StackSeen {
        id: 61,
        natives: mixed.natives.clone(),
        completes: true,
        ..StackSeen::default()
    };
    say(&mut ledger, Body::Stack(Box::new(rest)));
    assert!(short(&ledger).is_empty());
    let rows = ledger.stacks(P, as_of(0)).unwrap().rows;
    let titles: std::collections::BTreeSet<String> =
        rows.iter().map(|row| title(&row.stack)).collect();
    assert_eq!(titles.len(), 1, "{titles:#?}");
    // An event that completes an unknown stack is ignored.
    let stranger = StackSeen {
        id: 99,
        natives: vec![0x7f01],
        completes: true,
        ..StackSeen::default()
    };
    say(&mut ledger, Body::Stack(Box::new(stranger)));
    // Addresses without a name are shown as file and offset or as a number; without Python frames the interpreter's
    // frames stay.
    let plain = StackSeen {
        id: 62,
        natives: vec![0x7f07, 0x7f03, 0x7fff, 1, 2, 3, 4, 5, 6, 7],
        ..StackSeen::default()
    };
    let names = allocate(&mut ledger, plain);
    assert_eq!(names[..3], ["libx.so+0x7f07", EVAL, "0x7fff"]);
}

/// A sampled stack stands for its interval of bytes, so the sums estimate all blocks, also those without a stack.
/// Larger blocks stand for themselves, and a free subtracts what its allocation added.
#[test]
fn sampled_stacks_are_estimates() {
    const INTERVAL: u64 = 1 << 20;
    const BLOCKS: u64 = 40_000;
    let mut ledger = attached(Level::Trace, true, SECOND);
    let mut sim = Sim::new(Mode::Calibrated);
    say(&mut ledger, seen(50, &[(0x1000, 0x1064)]));
    say(&mut ledger, named(0x1000, "f", None));
    let mut state = 7u64;
    let mut taken = 0;
    let mut addresses = Vec::new();
    for _ in 0..BLOCKS {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        sim.time += MS;
        // Samples are chosen as the BPF programs choose them.
        let sampled = (state >> 33) & (INTERVAL - 1) < 5120;
        (sim.stack, sim.sampling) = if sampled {
            taken += 1;
            (StackRef::Id(50), 20)
        } else {
            (StackRef::NotSampled, 0)
        };
        addresses.push(sim.alloc(0, 0, 5120));
    }
    sim.feed(&mut ledger);
    let row = |ledger: &Ledger| {
        let rows = ledger.stacks(P, as_of(0)).unwrap().rows;
        assert!(rows.len() <= 1, "{rows:#?}");
        rows.first().map(|row| (row.live, row.allocated))
    };
    let (live, allocated) = row(&ledger).unwrap();
    assert_eq!(live, allocated);
    assert_eq!(live.bytes, taken * INTERVAL, "each stands for the interval");
    assert_eq!(live.count, taken * ((INTERVAL + 2560) / 5120));
    let real = (BLOCKS * 5120) as f64;
    assert!(
        (live.bytes as f64 - real).abs() < real * 0.35,
        "{} of {real}",
        live.bytes
    );
    // A block larger than the interval stands for itself.
    sim.stack = StackRef::Id(50);
    sim.sampling = 20;
    let large = sim.alloc(0, 0, 9 << 20);
    sim.feed(&mut ledger);
    assert_eq!(row(&ledger).unwrap().0.bytes, live.bytes + (9 << 20));
    // A free has no stack, and the sampling may have changed by then.
    sim.stack = StackRef::NotTaken;
    sim.sampling = 0;
    for address in addresses.into_iter().chain([large]) {
        sim.time += MS;
        sim.free(address, false);
    }
    sim.feed(&mut ledger);
    let (live, after) = row(&ledger).unwrap();
    assert_eq!(live, Tally::default(), "all that came went");
    assert_eq!(after.bytes, allocated.bytes + (9 << 20));
}

#[test]
fn identities_that_were_given_up_are_forgotten() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    let stacks = 200u64;
    for death in 0..2_000 {
        // Each death of a code object gives every stack another identity.
        for stack in 0..stacks {
            let id = 1_000_000 + death * stacks + stack;
            say(&mut ledger, seen(id, &[(7, stack)]));
        }
        say(&mut ledger, Body::CodeDied { code: 900 + death });
    }
    let kept = ledger.kept(P).unwrap().identities;
    assert!(kept < 40_000, "{kept} of {}", 2_000 * stacks);
    // The newest identities are known, and those of stacks that were walked before the last deaths.
    for death in [1_999, 1_950] {
        let frames = ledger.frames(P, StackRef::Id(1_000_000 + death * stacks));
        assert_eq!(frames.len(), 1);
    }
    assert_eq!(ledger.frames(P, StackRef::Id(1_000_000)), []);
}

/// The trace of PyTorch 2.1 names no device, and no version names it for `snapshot` entries: such entries wait until
/// another event shows the device of their allocator. They keep the stack with which they came.
#[test]
fn what_waits_for_its_device_keeps_its_own_stack() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    for (id, code, name) in [(1, 0x1000, "first"), (2, 0x2000, "second")] {
        say(&mut ledger, seen(id, &[(code, code + 100)]));
        say(&mut ledger, named(code, name, None));
    }
    let mut trace = |stack, action, device, addr| {
        let body = Body::Trace(PoolTrace {
            action,
            allocator: 0x7000,
            device,
            addr,
            size: 512,
            stream: 0,
            block_size: Some(512),
            total_allocated: None,
            total_reserved: None,
            pool: Some((0, 0)),
        });
        ledger.apply(&Event {
            stack,
            ..event(P, SECOND, body)
        });
    };
    trace(StackRef::NotTaken, TraceAction::Snapshot, Some(0), 0);
    trace(StackRef::Id(1), TraceAction::Alloc, None, 0x10_0000);
    trace(StackRef::Id(2), TraceAction::Alloc, Some(0), 0x20_0000);
    let report = ledger.snapshot(P, as_of(SECOND)).unwrap();
    let titles: Vec<String> = report
        .trace
        .iter()
        .map(|entry| title(&report.stacks[entry.stack as usize]))
        .collect();
    assert_eq!(titles, ["[not_taken]", "first:10", "second:10"]);
    let sums = reported(&ledger);
    let live = |name: &str| sums.get(&(0, name.to_owned())).map(|sums| sums[0]);
    assert_eq!(live("first:10"), Some((1, 512)), "{sums:?}");
    assert_eq!(live("second:10"), Some((1, 512)), "{sums:?}");
}
