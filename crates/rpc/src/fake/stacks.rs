//! Made-up stacks: any number of plain ones, and some of every kind that is hard to display.

use super::answers::{AS_OF, summary};
use memscope_ledger::event::CoverageNote;
use memscope_ledger::report::{AsOf, Frame, FrameKind, Stack, StackReport, StackRow, Tally};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A Python frame.
#[must_use]
pub fn python(name: &str, file: &str, line: u32) -> Frame {
    Frame {
        kind: FrameKind::Python,
        name: name.into(),
        file: file.into(),
        line,
    }
}

/// A frame of compiled code.
#[must_use]
pub fn native(name: &str, file: &str, line: u32) -> Frame {
    Frame {
        kind: FrameKind::Native,
        ..python(name, file, line)
    }
}

/// A row of stacks with `live` live blocks. The same was live at the peak, and three times as much was allocated in
/// all.
#[must_use]
pub fn stack_row(device: Option<i32>, stack: Stack, live: Tally) -> StackRow {
    let times = |n: u64, tally: Tally| Tally {
        count: tally.count * n,
        bytes: tally.bytes * n,
    };
    StackRow {
        device,
        stack: Arc::new(stack),
        live,
        peak: live,
        allocated: times(3, live),
        before: None,
    }
}

/// The answer to `stacks`: `plain` stacks of a training loop, and those of [`hard`], the largest first. With `earlier`,
/// the answer is of a minute before: a quarter of the memory was live then, and one stack more.
#[must_use]
pub fn stacks(pid: u32, uid: u32, plain: usize, earlier: bool) -> StackReport {
    let plain = (0..plain).map(|index| {
        let line = u32::try_from(index).unwrap_or(u32::MAX);
        let stack = Stack {
            frames: vec![
                native(
                    "at::native::empty_cuda(c10::ArrayRef<long>)",
                    "/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so",
                    0,
                ),
                python(
                    "forward",
                    "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py",
                    125,
                ),
                python(
                    "_call_impl",
                    "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
                    1784,
                ),
                python(
                    "_wrapped_call_impl",
                    "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
                    1773,
                ),
                python("forward", "/home/ada/model.py", line.saturating_add(1)),
                python("step", "/home/ada/train.py", 42),
                python("<module>", "/home/ada/train.py", 99),
            ],
            ..Stack::default()
        };
        let count = 2_000_u64.saturating_sub(index as u64).max(1);
        stack_row(
            Some(0),
            stack,
            Tally {
                count,
                bytes: count * MIB,
            },
        )
    });
    let mut rows: Vec<StackRow> = plain.chain(hard()).collect();
    let mut as_of = AS_OF;
    if earlier {
        as_of = AsOf {
            boot_ns: as_of.boot_ns - 60_000_000_000,
            unix_ns: as_of.unix_ns - 60_000_000_000,
            ..as_of
        };
        for row in &mut rows {
            row.live.count /= 4;
            row.live.bytes /= 4;
        }
        // This stack's memory has been freed since then.
        let freed = Stack {
            frames: vec![python("warm_up", "/home/ada/train.py", 7)],
            ..Stack::default()
        };
        let held = Tally {
            count: 8,
            bytes: 8 * MIB,
        };
        rows.push(stack_row(Some(0), freed, held));
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.live.bytes));
    StackReport {
        process: summary(pid, uid),
        as_of,
        from: None,
        rows,
        coverage: vec![
            CoverageNote {
                code: "stacks_reduced".into(),
                text: "Some stacks are deeper than what is taken of them.".into(),
            }
            .into(),
        ],
    }
}

/// Stacks that are missing, truncated, deep, recursive, of several devices, or with names that break displays.
#[must_use]
pub fn hard() -> Vec<StackRow> {
    let tally = |count: u64| Tally {
        count,
        bytes: count * MIB,
    };
    let stack = |frames: Vec<Frame>| Stack {
        frames,
        ..Stack::default()
    };
    let missing = |missing| Stack {
        missing: Some(missing),
        ..Stack::default()
    };
    let recursive = (1..=40).map(|line| python("visit", "/home/ada/tree.py", line));
    vec![
        stack_row(Some(0), missing("no_python"), tally(7)),
        stack_row(Some(0), missing("unreadable"), tally(1)),
        stack_row(Some(0), missing("busy"), tally(1)),
        stack_row(Some(0), missing("lost"), tally(1)),
        stack_row(Some(1), missing("not_taken"), tally(1)),
        stack_row(
            Some(1),
            Stack {
                truncated: true,
                ..stack(recursive.collect())
            },
            tally(5),
        ),
        stack_row(
            None,
            stack(vec![
                python("größe_日本語", "/home/ada/ünï.py", 3),
                python("a;b c 12", "/tmp/x; y 7", 0),
                python(
                    "\u{1b}]0;pwned\u{7}\n\u{202e}evil",
                    "/tmp/\u{1b}[2J.py",
                    u32::MAX,
                ),
                python("</title><script>alert(1)</script>", "<string>", 1),
                python("", "", 0),
            ]),
            tally(4),
        ),
        stack_row(
            Some(0),
            stack(vec![native("malloc", "/usr/lib/libc.so.6", 0)]),
            tally(2),
        ),
        // Everything that this stack allocated was freed: nothing of it is live.
        StackRow {
            allocated: tally(100),
            ..stack_row(
                Some(0),
                stack(vec![python("temporary", "/home/ada/train.py", 50)]),
                Tally::default(),
            )
        },
    ]
}
