//! Reports of stacks, by hand and at random.

use super::process;
use memscope_ledger::event::{CoverageNote, EventId};
use memscope_ledger::report::*;
use proptest::prelude::*;
use std::sync::Arc;

pub const NOW_UNIX_NS: u64 = 1_750_000_000_000_000_000;

pub fn python(name: &str, file: &str, line: u32) -> Frame {
    Frame {
        kind: FrameKind::Python,
        name: name.into(),
        file: file.into(),
        line,
    }
}

pub fn native(name: &str, file: &str, line: u32) -> Frame {
    Frame {
        kind: FrameKind::Native,
        ..python(name, file, line)
    }
}

pub fn tally(count: u64, bytes: u64) -> Tally {
    Tally { count, bytes }
}

/// A row all of whose blocks live and lived at the peak.
pub fn row(device: Option<i32>, frames: Vec<Frame>, count: u64, bytes: u64) -> StackRow {
    StackRow {
        device,
        stack: Arc::new(Stack {
            frames,
            ..Stack::default()
        }),
        live: tally(count, bytes),
        peak: tally(count, bytes),
        allocated: tally(count * 2, bytes * 2),
        before: None,
    }
}

pub fn as_of(unix_ns: u64) -> AsOf {
    AsOf {
        boot_ns: 90_000_000_000,
        unix_ns,
        event: EventId::default(),
    }
}

pub fn report(rows: Vec<StackRow>) -> StackReport {
    StackReport {
        process: process(&[]),
        as_of: as_of(NOW_UNIX_NS),
        from: None,
        rows,
        coverage: vec![
            CoverageNote {
                code: "attached_late".into(),
                text: "Attached\nlate.".into(),
            }
            .into(),
        ],
    }
}

/// Names that some format or reader could fail on.
const NAMES: &[&str] = &[
    "forward",
    "",
    "f 12",
    "a b",
    "a",
    "a;b",
    "<module>",
    "<lambda>",
    "operator()(int)::{lambda()#1}_[k]",
    "-",
    "--",
    " x ",
    "line\nbreak\r",
    "nul\0esc\x1b[2Jbel\x07",
    "\u{2028}\u{202e}\u{fffe}\u{a0}",
    "häuser_日本語_🔥",
    "</title><script>alert(1)</script>&amp;]]>-->",
    "\"quoted\\\"",
    "# comment",
];

const FILES: &[&str] = &[
    "/home/ada/train.py",
    "/v/lib/python3.11/site-packages/torch/nn/modules/module.py",
    "/w/lib/python3.12/site-packages/torch/nn/modules/module.py",
    "<string>",
    "<frozen runpy>",
    "",
    "a;b 7",
    "/tmp/\n5",
    "/usr/lib/libc.so.6",
];

const MISSING: &[Option<&str>] = &[
    Some("no_python"),
    Some("unreadable"),
    Some("busy"),
    Some("lost"),
    Some("not_taken"),
    None,
];

fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => proptest::sample::select(NAMES).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

fn frames() -> impl Strategy<Value = Frame> {
    let file = proptest::sample::select(FILES);
    (any::<bool>(), names(), file, 0..4_u32).prop_map(|(is_native, name, file, line)| {
        match is_native {
            true => native(&name, file, line),
            false => python(&name, file, line),
        }
    })
}

fn stacks() -> impl Strategy<Value = Stack> {
    let missing = proptest::sample::select(MISSING);
    (
        prop::collection::vec(frames(), 0..6),
        any::<bool>(),
        missing,
    )
        .prop_map(|(frames, truncated, missing)| Stack {
            truncated: truncated && !frames.is_empty(),
            missing: missing.filter(|_| frames.is_empty()),
            frames,
        })
}

fn tallies() -> impl Strategy<Value = Tally> {
    prop_oneof![
        1 => Just(Tally::default()),
        4 => (1..1000_u64, 1..1_u64 << 40).prop_map(|(count, bytes)| tally(count, bytes)),
    ]
}

fn devices() -> impl Strategy<Value = Option<i32>> {
    prop_oneof![3 => Just(Some(0)), 1 => Just(Some(1)), 1 => Just(None)]
}

fn rows(compared: bool) -> impl Strategy<Value = StackRow> {
    let numbers = (tallies(), tallies(), tallies(), tallies());
    (devices(), stacks(), numbers).prop_map(
        move |(device, stack, (live, peak, allocated, before))| StackRow {
            device,
            stack: Arc::new(stack),
            live,
            peak,
            allocated,
            before: compared.then_some(before),
        },
    )
}

/// Random reports. `compared`: they have an earlier moment.
pub fn reports(compared: bool) -> impl Strategy<Value = StackReport> {
    prop::collection::vec(rows(compared), 0..14).prop_map(move |rows| StackReport {
        from: compared.then_some(as_of(NOW_UNIX_NS - 60_000_000_000)),
        ..report(rows)
    })
}
