//! Labels that a program gives its blocks, against a plain model of the same marks and allocations.

use std::collections::BTreeMap;

use crate::common::{P, as_of, attached, event, stats};
use memscope_ledger::event::{Body, Level, Mark, MarkKind, MarkSource, PoolTrace, TraceAction};
use memscope_ledger::report::BlockState;
use memscope_ledger::{Answer, Ledger, inexact};
use memscope_proto::v1;
use memscope_tests::limits::{Met, constant};
use proptest::prelude::*;

/// The labels of each live block, by address.
type Labels = BTreeMap<u64, Vec<String>>;

struct Told {
    ledger: Ledger,
    time: u64,
}

impl Told {
    fn new() -> Told {
        Told {
            ledger: attached(Level::Trace, true, 0),
            time: 0,
        }
    }

    fn say(&mut self, tid: u32, body: Body) {
        self.time += 1000;
        let mut event = event(P, self.time, body);
        event.tid = tid;
        self.ledger.apply(&event);
    }

    fn mark(&mut self, tid: u32, kind: MarkKind, range: u64, name: &str) {
        let mark = Mark {
            kind,
            source: MarkSource::Memscope,
            range,
            name: name.into(),
            cut: false,
        };
        self.say(tid, Body::Mark(Box::new(mark)));
    }

    fn pool(&mut self, tid: u32, action: TraceAction, addr: u64) {
        let trace = PoolTrace {
            action,
            allocator: 1,
            device: Some(0),
            addr,
            size: 512,
            stream: 0,
            block_size: Some(512),
            total_allocated: None,
            total_reserved: None,
            pool: None,
        };
        self.say(tid, Body::Trace(trace));
    }

    fn labels(&self) -> Labels {
        let report = self.ledger.snapshot(P, as_of(self.time)).unwrap();
        let blocks = report.segments.iter().flat_map(|segment| &segment.blocks);
        blocks
            .filter(|block| block.state == BlockState::Active)
            .map(|block| {
                let labels = report.labels[usize::from(block.labels)].iter();
                (block.addr, labels.map(ToString::to_string).collect())
            })
            .collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A thread begins a range with a label.
    Begin(u32, u8),
    /// A thread ends one of the open ranges, of whatever thread.
    End(u32, usize),
    /// A thread begins or ends a range that has nothing to do with labels.
    Other(u32, bool),
    Alloc(u32),
    Free(usize),
    /// The block with this number, or one that is not there, is labelled.
    Label(usize, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3_u32, 0..5_u8).prop_map(|(tid, label)| Step::Begin(tid, label)),
        (0..3_u32, any::<usize>()).prop_map(|(tid, at)| Step::End(tid, at)),
        (0..3_u32, any::<bool>()).prop_map(|(tid, begins)| Step::Other(tid, begins)),
        (0..3_u32).prop_map(Step::Alloc),
        (0..3_u32).prop_map(Step::Alloc),
        any::<usize>().prop_map(Step::Free),
        (any::<usize>(), 0..5_u8).prop_map(|(at, label)| Step::Label(at, label)),
    ]
}

/// Labels of a block that has some, with one more: at most three, each once.
fn with(labels: &[String], label: &str) -> Vec<String> {
    let mut labels = labels.to_vec();
    if labels.len() < 3 && !labels.iter().any(|own| own == label) {
        labels.push(label.to_owned());
    }
    labels
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_block_has_the_labels_of_its_thread_and_its_own(steps in prop::collection::vec(step(), 1..80)) {
        let mut told = Told::new();
        // Thread, number and labels of the open ranges, in the order in which they began.
        let mut open: Vec<(u32, u64, Vec<String>)> = Vec::new();
        let mut live: Vec<u64> = Vec::new();
        let mut expected = Labels::new();
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Begin(tid, label) => {
                    let label = format!("label {label}");
                    told.mark(tid, MarkKind::Begin, number, &format!("memscope:owner={label}"));
                    let around = open.iter().rev().find(|(of, ..)| *of == tid);
                    let around = around.map_or(Vec::new(), |(_, _, labels)| labels.clone());
                    open.push((tid, number, with(&around, &label)));
                }
                Step::End(tid, at) if !open.is_empty() => {
                    let (_, range, _) = open.remove(at % open.len());
                    told.mark(tid, MarkKind::End, range, "");
                }
                Step::Other(tid, true) => told.mark(tid, MarkKind::Begin, 1 << 40, "forward"),
                Step::Other(tid, false) => told.mark(tid, MarkKind::End, 0, ""),
                Step::Alloc(tid) => {
                    let addr = 0x7000_0000 + number * 512;
                    told.pool(tid, TraceAction::Alloc, addr);
                    live.push(addr);
                    let around = open.iter().rev().find(|(of, ..)| *of == tid);
                    expected.insert(addr, around.map_or(Vec::new(), |(_, _, labels)| labels.clone()));
                }
                Step::Free(at) if !live.is_empty() => {
                    let addr = live.remove(at % live.len());
                    told.pool(9, TraceAction::FreeRequested, addr);
                    told.pool(9, TraceAction::FreeCompleted, addr);
                    expected.remove(&addr);
                }
                Step::Label(at, label) => {
                    let label = format!("own {label}");
                    let addr = live.get(at % (live.len() + 1)).copied().unwrap_or(0x1000);
                    told.mark(9, MarkKind::Instant, 0, &format!("memscope:owner={label}@{addr:x}"));
                    if let Some(labels) = expected.get_mut(&addr) {
                        *labels = with(labels, &label);
                    }
                }
                Step::End(..) | Step::Free(_) => {}
            }
            prop_assert_eq!(told.labels(), expected.clone());
        }
        // They name no moments.
        let marks = told.ledger.ask(&[P], as_of(told.time), &v1::MarksRequest::default()).unwrap();
        prop_assert!(marks.marks.iter().all(|mark| mark.name == "forward"), "{:?}", marks);
    }
}

/// The end of a range may be among records that were lost. It labels nothing any more, and a note says that labels may be wrong.
#[test]
fn a_range_that_was_open_at_a_loss_labels_nothing_after_it() {
    let mut told = Told::new();
    let note = |told: &Told| {
        let notes = stats(&told.ledger).coverage;
        inexact(Answer::Owners, &notes)
            .iter()
            .any(|note| note.code == "labels_lost")
    };
    told.mark(1, MarkKind::Begin, 1, "memscope:owner=weights");
    told.pool(1, TraceAction::Alloc, 0x1000);
    assert!(!note(&told));
    told.time += 1000;
    let mut lost = event(P, told.time, Body::Lost);
    lost.lost_before = 1;
    told.ledger.apply(&lost);
    told.pool(1, TraceAction::Alloc, 0x2000);
    assert!(note(&told));
    told.mark(1, MarkKind::Begin, 2, "memscope:owner=cache");
    told.pool(1, TraceAction::Alloc, 0x3000);
    told.mark(1, MarkKind::End, 2, "");
    told.pool(1, TraceAction::Alloc, 0x4000);
    // The end of the first range comes after all, or is that of a range that had ended: it changes nothing.
    told.mark(1, MarkKind::End, 1, "");
    told.pool(1, TraceAction::Alloc, 0x5000);
    let labels = told.labels();
    assert_eq!(labels[&0x1000], ["weights"]);
    assert_eq!(labels[&0x3000], ["cache"]);
    for addr in [0x2000, 0x4000, 0x5000] {
        assert_eq!(labels[&addr], Vec::<String>::new(), "{addr:x}");
    }
}

/// Where a program gives no labels, none can be wrong.
#[test]
fn a_loss_without_labels_says_nothing_of_labels() {
    let mut told = Told::new();
    told.pool(1, TraceAction::Alloc, 0x1000);
    let mut lost = event(P, told.time, Body::Lost);
    lost.lost_before = 1;
    told.ledger.apply(&lost);
    let notes = stats(&told.ledger).coverage;
    assert!(notes.iter().any(|note| note.code == "records_lost"));
    assert!(notes.iter().all(|note| note.code != "labels_lost"));
}

#[test]
fn what_is_no_label() {
    let mut told = Told::new();
    told.pool(1, TraceAction::Alloc, 4096);
    for name in [
        "memscope:owner=x",
        "memscope:owner=x@",
        "memscope:owner=x@what",
        "owner=x@1000",
    ] {
        told.mark(1, MarkKind::Instant, 0, name);
    }
    told.mark(1, MarkKind::Step, 0, "memscope:owner=x");
    assert_eq!(told.labels()[&4096], Vec::<String>::new());
    told.mark(1, MarkKind::Instant, 0, "memscope:owner=a@b@0x1000");
    assert_eq!(told.labels()[&4096], ["a@b"]);
}

#[test]
fn more_labels_than_are_kept() {
    let mut told = Told::new();
    let full = |told: &Told| {
        let mut notes = stats(&told.ledger).coverage.into_iter();
        notes.find(|note| note.code == "labels_full")
    };
    for number in 1..=1200 {
        let name = format!("memscope:owner=label {number}");
        told.mark(1, MarkKind::Begin, number, &name);
        told.pool(1, TraceAction::Alloc, number * 4096);
        told.mark(1, MarkKind::End, number, "");
        assert_eq!(full(&told).is_some(), number > 1000);
    }
    assert!(full(&told).unwrap().text.contains("200 times"));
    let labels = told.labels();
    assert_eq!(labels[&(1000 * 4096)], ["label 1000"]);
    assert_eq!(labels[&(1001 * 4096)], Vec::<String>::new());
    // Those that are known are given on.
    told.mark(2, MarkKind::Begin, 5000, "memscope:owner=label 7");
    told.pool(2, TraceAction::Alloc, 5000 * 4096);
    assert_eq!(told.labels()[&(5000 * 4096)], ["label 7"]);
    Met {
        what: "different sets of labels that a program gives its memory",
        most: constant("crates/ledger/src/state/labels.rs", "SETS"),
        beyond: "blocks have only the labels that are known",
        told: "`labels_full` in coverage",
        test: "more_labels_than_are_kept",
    }
    .is_told();
}

#[test]
fn more_open_ranges_than_are_kept() {
    let mut told = Told::new();
    for number in 1..=100 {
        told.mark(1, MarkKind::Begin, number, "memscope:owner=deep");
    }
    let said = stats(&told.ledger).coverage;
    let said = said.iter().find(|note| note.code == "labels_full").unwrap();
    assert!(said.text.contains("36 times"), "{}", said.text);
    for number in 1..=64 {
        told.pool(1, TraceAction::Alloc, number * 4096);
        assert_eq!(told.labels()[&(number * 4096)], ["deep"]);
        told.mark(1, MarkKind::End, number, "");
    }
    told.pool(1, TraceAction::Alloc, 100 * 4096);
    assert_eq!(told.labels()[&(100 * 4096)], Vec::<String>::new());
    Met {
        what: "labels within each other in one thread",
        most: constant("crates/ledger/src/state/labels.rs", "RANGES"),
        beyond: "what lies deeper has the labels around it",
        told: "`labels_full` in coverage",
        test: "more_open_ranges_than_are_kept",
    }
    .is_told();
}

#[test]
fn more_threads_with_labels_than_are_kept() {
    let mut told = Told::new();
    for tid in 1..=5000 {
        told.mark(tid, MarkKind::Begin, u64::from(tid), "memscope:owner=x");
    }
    let said = stats(&told.ledger).coverage;
    let said = said.iter().find(|note| note.code == "labels_full").unwrap();
    assert!(said.text.contains("904 times"), "{}", said.text);
    told.pool(4096, TraceAction::Alloc, 4096);
    told.pool(4097, TraceAction::Alloc, 8192);
    assert_eq!(told.labels()[&4096], ["x"]);
    assert_eq!(told.labels()[&8192], Vec::<String>::new());
    Met {
        what: "threads with labels at a time",
        most: constant("crates/ledger/src/state/labels.rs", "THREADS"),
        beyond: "what further threads allocate has no labels",
        told: "`labels_full` in coverage",
        test: "more_threads_with_labels_than_are_kept",
    }
    .is_told();
}

/// An entry that names no device waits until another event shows it. It keeps the labels of its own moment.
#[test]
fn what_waits_for_its_device_keeps_its_own_labels() {
    let mut told = Told::new();
    let entry = |device, addr| PoolTrace {
        action: TraceAction::Alloc,
        allocator: 1,
        device,
        addr,
        size: 512,
        stream: 0,
        block_size: Some(512),
        total_allocated: None,
        total_reserved: None,
        pool: None,
    };
    told.mark(1, MarkKind::Begin, 1, "memscope:owner=weights");
    told.say(1, Body::Trace(entry(None, 0x1000)));
    told.mark(1, MarkKind::End, 1, "");
    told.mark(1, MarkKind::Begin, 2, "memscope:owner=cache");
    told.say(1, Body::Trace(entry(Some(0), 0x2000)));
    let labels = [(0x1000, "weights"), (0x2000, "cache")];
    let labels = labels.map(|(addr, label)| (addr, vec![label.to_owned()]));
    assert_eq!(told.labels(), Labels::from(labels));
}
