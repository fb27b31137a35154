//! The figures against a plain model of a pool: it hands out and takes back, and the trace begins somewhere in between.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_report::{
    Action, Block, Entry, Figures, Frame, Known, Picture, Report, RuleSets, Segment, State, Trace,
    files, space,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SEGMENT: u64 = 1 << 20;
const SLOT: u64 = 1 << 14;
const BASE: u64 = 0x7f00_0000_0000;

#[derive(Clone, Debug)]
enum Change {
    Alloc { slot: u64, size: u64, stack: u32 },
    Free { slot: u64 },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0u64..40, 1u64..9000, 0u32..4).prop_map(|(slot, size, stack)| Change::Alloc {
            slot,
            size,
            stack
        }),
        (0u64..40).prop_map(|slot| Change::Free { slot }),
    ]
}

fn stacks() -> Vec<Arc<[Frame]>> {
    let frame = |function: &str, file: &str| Frame {
        function: Arc::from(function),
        file: Arc::from(file),
        line: 7,
    };
    vec![
        Arc::from([
            frame("step", "/v/site-packages/torch/optim/optimizer.py"),
            frame("main", "/w/train.py"),
        ]),
        Arc::from([
            frame("forward", "/v/site-packages/torch/nn/modules/linear.py"),
            frame("main", "/w/train.py"),
        ]),
        Arc::from([
            frame("cfunction_call", "/p/Python-3.11.7/Objects/methodobject.c"),
            frame("forward", "/w/attention.py"),
        ]),
        // A script, whose name needs no ending.
        Arc::from([
            frame("getitem", "/v/site-packages/data.py"),
            frame("main", "/w/train"),
        ]),
    ]
}

/// What a plain model says of the trace from an entry on.
struct Model {
    picture: Picture,
    /// Sum of requests after each entry, and before the first.
    levels: Vec<u64>,
    /// By category at the first of the highest levels.
    at_peak: BTreeMap<String, u64>,
}

const CATEGORIES: [&str; 4] = ["Optimizer State", "Linear/MatMul", "Attention", "Other"];

fn model(changes: &[Change], skipped: usize) -> Model {
    /// A block: its size, its stack, and the number of the change that brought it.
    type There = BTreeMap<u64, (u64, u32, usize)>;
    let mut there = There::new();
    let mut entries = Vec::new();
    let mut levels = Vec::new();
    let mut peak: Option<(u64, There)> = None;
    let mut freed = BTreeSet::new();
    let mut see = |there: &There, levels: &mut Vec<u64>| {
        let level = there.values().map(|(size, ..)| size).sum();
        levels.push(level);
        if peak.as_ref().is_none_or(|(peak, _)| level > *peak) {
            peak = Some((level, there.clone()));
        }
    };
    let mut done = 0;
    for change in changes {
        if done == skipped && levels.is_empty() {
            see(&there, &mut levels);
        }
        let entry = |action, slot: u64, size, stack| Entry {
            action,
            address: BASE + slot * SLOT,
            size,
            time_us: Some(1_000_000 + done as u64),
            stack,
        };
        let told = match change {
            Change::Alloc { slot, size, stack } if !there.contains_key(slot) => {
                there.insert(*slot, (*size, *stack, done));
                entry(Action::Alloc, *slot, *size, Some(*stack))
            }
            Change::Free { slot } if there.contains_key(slot) => {
                let (size, _, came) = there.remove(slot).unwrap();
                freed.insert(came);
                // The stack of whoever freed it, which says nothing of what it is for.
                entry(Action::Free, *slot, size, Some(1))
            }
            _ => continue,
        };
        done += 1;
        if done > skipped {
            entries.push(told);
            see(&there, &mut levels);
        }
    }
    if levels.is_empty() {
        see(&there, &mut levels);
    }
    let mut at_peak = BTreeMap::new();
    for (size, stack, came) in peak.unwrap().1.into_values() {
        // Of what came before the trace and went within it, nothing says who allocated it.
        let is_known = came >= skipped || !freed.contains(&came);
        let category = if is_known {
            CATEGORIES[stack as usize]
        } else {
            "Unknown"
        };
        *at_peak.entry(category.to_owned()).or_default() += size;
    }
    let mut blocks = Vec::new();
    let mut at = BASE;
    for (slot, (size, stack, _)) in &there {
        let address = BASE + slot * SLOT;
        if at < address {
            blocks.push(free(at, address - at));
        }
        let rounded = size.next_multiple_of(512);
        blocks.push(Block {
            address,
            size: rounded,
            requested: Some(*size),
            state: State::Active,
            stack: Some(*stack),
        });
        at = address + rounded;
    }
    blocks.push(free(at, BASE + SEGMENT - at));
    let picture = Picture {
        segments: vec![Segment {
            device: 0,
            address: BASE,
            size: SEGMENT,
            expandable: false,
            blocks,
        }],
        traces: vec![Trace {
            entries,
            ..Trace::default()
        }],
        stacks: stacks(),
        ..Picture::default()
    };
    Model {
        picture,
        levels,
        at_peak,
    }
}

fn free(address: u64, size: u64) -> Block {
    Block {
        address,
        size,
        requested: None,
        state: State::Inactive,
        stack: None,
    }
}

proptest! {
    #[test]
    fn courses_are_those_of_the_model(
        changes in prop::collection::vec(change(), 1..200),
        skipped in 0usize..60,
    ) {
        let model = model(&changes, skipped);
        let rules = RuleSets::new().unwrap();
        let figures = Figures::of(3, "s".to_owned(), &model.picture, &rules);
        let Some(course) = figures.courses.first() else {
            prop_assert!(model.picture.traces[0].entries.is_empty());
            prop_assert_eq!(figures.peak_bytes(), None);
            return Ok(());
        };
        let peak = *model.levels.iter().max().unwrap();
        prop_assert_eq!(course.peak.allocated, peak);
        let first = model.levels.iter().position(|level| *level == peak).unwrap();
        prop_assert_eq!(course.peak.entry, first as u64);
        prop_assert_eq!(course.peak.reserved, Some(SEGMENT));
        let at_peak: BTreeMap<String, u64> =
            course.categories.iter().map(|row| (row.name.clone(), row.bytes)).collect();
        prop_assert_eq!(&at_peak, &model.at_peak);
        let lines: u64 = course.lines.iter().map(|row| row.bytes).sum();
        prop_assert_eq!(lines + course.more_bytes, peak);
        for point in &course.points {
            prop_assert_eq!(point.allocated, model.levels[point.entry as usize]);
        }
        prop_assert_eq!(course.points.len(), model.levels.len());
        // mosaic begins at 0: what came before the trace counts only where the trace never names its place.
        let mosaic = figures.peak.as_ref().unwrap();
        let held: u64 = mosaic.stacks.values().map(|held| held.bytes).sum();
        prop_assert_eq!(held, mosaic.dynamic + mosaic.fixed);
        prop_assert!(figures.notes.is_empty(), "{:?}", figures.notes);
    }
}

proptest! {
    // Each case draws five plots.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_a_trace_says_there_are_figures(
        entries in prop::collection::vec((0u8..7, any::<u64>(), any::<u64>(), any::<Option<u64>>(), any::<Option<u32>>()), 0..60),
        blocks in prop::collection::vec((any::<u64>(), any::<u64>(), 0u8..3, any::<Option<u32>>()), 0..20),
        size in any::<u64>(),
        device in any::<i32>(),
        expandable in any::<bool>(),
        known in prop_oneof![Just(Known::All), Just(Known::Blocks), Just(Known::Nothing)],
    ) {
        const ACTIONS: [Action; 7] =
            [Action::Alloc, Action::Free, Action::Grow, Action::Shrink, Action::Map, Action::Unmap, Action::Other];
        const STATES: [State; 3] = [State::Active, State::Pending, State::Inactive];
        let entry = |(action, address, size, time_us, stack)| {
            let action: u8 = action;
            Entry { action: ACTIONS[usize::from(action)], address, size, time_us, stack }
        };
        let block = |(address, size, state, stack)| {
            let state: u8 = state;
            Block { address, size, requested: None, state: STATES[usize::from(state)], stack }
        };
        let picture = Picture {
            segments: vec![Segment { device, address: 0, size, expandable, blocks: blocks.into_iter().map(block).collect() }],
            traces: vec![Trace { device, entries: entries.into_iter().map(entry).collect(), known }],
            stacks: stacks(),
            notes: vec!["<b>".to_owned()],
        };
        let rules = RuleSets::new().unwrap();
        let figures = Figures::of(u64::MAX, String::new(), &picture, &rules);
        let _ = space(0, &picture, &rules);
        let mut report = Report {
            name: "<script>".to_owned(),
            made: String::new(),
            made_by: String::new(),
            ranks: vec![figures.clone()],
            live: None,
            compared: None,
        };
        report.compare("<script>", &[figures]).unwrap();
        for (name, content) in files(&report).unwrap() {
            prop_assert!(!content.is_empty(), "{}", name);
            if name == "report.html" {
                let page = String::from_utf8(content).unwrap();
                prop_assert!(!page.contains("<script") && !page.contains("<li><b>"));
            }
        }
    }
}

/// Two segments lie side by side and are given back before the end, so that the picture has neither. What is free in one is no
/// piece with what is free in the other; of a segment that grows it is.
#[test]
fn free_pieces_end_where_segments_did() {
    let told = |grow: Action, shrink: Action| {
        let entries = [
            (grow, 0, 4096),
            (grow, 4096, 8192),
            (Action::Alloc, 0, 2048),
            (Action::Free, 0, 2048),
            (shrink, 0, 4096),
            (shrink, 4096, 8192),
        ];
        let entry = |(action, at, size)| Entry {
            action,
            address: BASE + at,
            size,
            time_us: None,
            stack: None,
        };
        let picture = Picture {
            traces: vec![Trace {
                device: 0,
                entries: entries.map(entry).to_vec(),
                known: Known::All,
            }],
            ..Picture::default()
        };
        let figures = Figures::of(0, String::new(), &picture, &RuleSets::new().unwrap());
        let report = Report {
            name: String::new(),
            made: String::new(),
            made_by: String::new(),
            ranks: vec![figures],
            live: None,
            compared: None,
        };
        let files = files(&report).unwrap();
        let json = files.iter().find(|file| file.0 == "memory_profile.json");
        String::from_utf8(json.unwrap().1.clone()).unwrap()
    };
    // 2048 of the first segment and 8192 of the second: the largest piece is four fifths.
    let apart = told(Action::Grow, Action::Shrink);
    assert!(apart.contains("\"fragmentation_percent\": 20.0"), "{apart}");
    let together = told(Action::Map, Action::Unmap);
    assert!(
        together.contains("\"fragmentation_percent\": 0.0"),
        "{together}"
    );
}

/// At the level `blocks` a trace has no entries of segments. What was reserved at the end was not there all the time, and nothing is
/// said of it before.
#[test]
fn nothing_is_reserved_where_the_trace_has_no_segments() {
    const GIB: u64 = 1 << 30;
    let entry = |action, at: u64| Entry {
        action,
        address: BASE + at * 5 * GIB,
        size: 5 * GIB,
        time_us: None,
        stack: None,
    };
    let told = |entries: &[Entry], known| {
        let picture = Picture {
            segments: vec![Segment {
                device: 0,
                address: BASE,
                size: 2 * GIB,
                expandable: false,
                blocks: vec![free(BASE, 2 * GIB)],
            }],
            traces: vec![Trace {
                device: 0,
                entries: entries.to_vec(),
                known,
            }],
            ..Picture::default()
        };
        let rules = RuleSets::new().unwrap();
        assert!(space(0, &picture, &rules).is_none());
        let figures = Figures::of(0, String::new(), &picture, &rules);
        let course = &figures.courses[0];
        assert!(course.points.iter().all(|point| point.reserved.is_none()));
        assert_eq!(course.peak.reserved, None);
        assert_eq!(figures.sums.reserved, 2 * GIB);
        assert!(figures.notes[0].contains("reserved on device 0"));
        course.peak.allocated
    };
    let all = [
        entry(Action::Alloc, 0),
        entry(Action::Alloc, 1),
        entry(Action::Free, 0),
        entry(Action::Free, 1),
    ];
    // More was handed out than the only segment has: nobody has to say that segments are missing.
    assert_eq!(told(&all, Known::All), 10 * GIB);
    let small = [Action::Alloc, Action::Free].map(|action| Entry {
        size: GIB,
        ..entry(action, 0)
    });
    assert_eq!(told(&small, Known::Blocks), GIB);
}

/// Of two traces one says nothing of what happened: its device has no course and no profile, and the peak of both is not known.
#[test]
fn a_trace_from_which_nothing_follows_has_no_course_and_no_peak() {
    let entry = Entry {
        action: Action::Alloc,
        address: BASE,
        size: 4096,
        time_us: None,
        stack: None,
    };
    let trace = |device, known| Trace {
        device,
        entries: vec![entry],
        known,
    };
    let figures = |traces| {
        let picture = Picture {
            traces,
            ..Picture::default()
        };
        Figures::of(0, String::new(), &picture, &RuleSets::new().unwrap())
    };
    let told = |figures: &Figures| {
        let report = Report {
            name: String::new(),
            made: String::new(),
            made_by: String::new(),
            ranks: vec![figures.clone()],
            live: None,
            compared: None,
        };
        files(&report).unwrap()
    };
    let none = figures(vec![trace(0, Known::Nothing)]);
    assert_eq!((none.peak_bytes(), none.courses.len()), (None, 0));
    assert_eq!((none.peak.as_ref(), none.profiles.len()), (None, 0));
    let files = told(&none);
    assert!(!files.iter().any(|(name, _)| name.ends_with(".json")));
    let page = files.into_iter().find(|(name, _)| name == "report.html");
    let page = String::from_utf8(page.unwrap().1).unwrap();
    assert!(page.contains("Peak and course are not known"), "{page}");
    assert!(!page.contains("There is no trace"), "{page}");
    let one = figures(vec![trace(0, Known::Blocks), trace(1, Known::Nothing)]);
    assert_eq!((one.peak_bytes(), one.courses.len()), (None, 1));
    assert!(one.peak.is_some());
}

/// Each of eight devices has one free block: nothing of it is scattered.
#[test]
fn free_blocks_of_several_devices_are_not_scattered() {
    let segment = |device, sizes: &[u64]| Segment {
        device,
        address: BASE,
        size: sizes.iter().sum(),
        expandable: false,
        blocks: sizes.iter().map(|size| free(BASE, *size)).collect(),
    };
    let picture = Picture {
        segments: vec![segment(0, &[1 << 30]), segment(1, &[1 << 30])],
        ..Picture::default()
    };
    let rules = RuleSets::new().unwrap();
    let mut ranks: Vec<Figures> = (0..4)
        .map(|rank| Figures::of(rank, String::new(), &picture, &rules))
        .collect();
    let page = |ranks: &[Figures]| {
        let report = Report {
            name: String::new(),
            made: String::new(),
            made_by: String::new(),
            ranks: ranks.to_vec(),
            live: None,
            compared: None,
        };
        let files = files(&report).unwrap();
        let page = files.into_iter().find(|file| file.0 == "report.html");
        String::from_utf8(page.unwrap().1).unwrap()
    };
    let row = "Free, but not in the largest free block of its device</td><td class=\"n\">";
    assert!(page(&ranks).contains(&format!("{row}0.0 %")));
    // The half of what is free on one device more is in smaller blocks than the largest there.
    let picture = Picture {
        segments: vec![segment(0, &[2 << 30, 1 << 30, 1 << 30, 4 << 30])],
        ..Picture::default()
    };
    ranks.push(Figures::of(4, String::new(), &picture, &rules));
    assert!(page(&ranks).contains(&format!("{row}25.0 %")));
}
