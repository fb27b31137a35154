//! What the threads of a process are, and which of them allocated and freed a block.
//!
//! Owns: by which names PyTorch's threads are known, and what counts as a thread of the program. Refuses: to say what a block is for,
//! which rules decide.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use memscope_ledger::event::TraceAction;
use memscope_ledger::report::{FrameKind, SnapshotBlock, SnapshotReport, Stack};
use memscope_owners::{AllocatedBy, FreedBy};

/// How PyTorch names the threads that run its backward pass, one for each device.
const BACKWARD: &str = "pt_autograd_";
/// How functions in Python are called that are a part of the backward pass themselves.
const OWN_PART: &str = "backward";
/// Functions of PyTorch that begin a backward pass, in the files below a folder. A backward pass may begin another one.
const BEGINS: [&str; 3] = ["_engine_run_backward", "backward", "grad"];
const BEGINS_IN: &str = "torch/autograd/";
/// Where a forward pass is computed again, also by a function that is called like [`OWN_PART`].
const COMPUTED_AGAIN: &str = "torch/utils/checkpoint.py";

/// The threads of a process that run PyTorch's backward pass. Empty if it has none or is gone.
pub(crate) fn backward(pid: u32) -> HashSet<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let tids = tasks.filter(|task| is_backward(&task.path()));
    tids.filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}

fn is_backward(task: &Path) -> bool {
    std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with(BACKWARD))
}

/// Which threads allocated and freed the blocks of a moment.
#[derive(Default)]
pub(crate) struct Threads {
    backward: HashSet<u32>,
    /// Threads that run Python and not the backward pass.
    program: HashSet<u32>,
    /// The threads that allocated blocks, by the blocks' addresses and the boot times of their allocations.
    allocated: HashMap<(u64, u64), u32>,
    /// The threads that freed blocks afterwards, by the blocks' addresses.
    freed: HashMap<u64, u32>,
}

impl Threads {
    /// What is known of a moment from the allocator's trace that is shown with it, from the threads of the backward pass, and from who
    /// freed its blocks afterwards, by their addresses.
    pub(crate) fn new(
        snapshot: &SnapshotReport,
        backward: HashSet<u32>,
        freed: HashMap<u64, u32>,
    ) -> Threads {
        if backward.is_empty() {
            return Threads::default();
        }
        let entries = snapshot.trace.iter();
        let allocations = entries.filter(|entry| entry.action == TraceAction::Alloc);
        let mut program = HashSet::new();
        let mut allocated = HashMap::new();
        for entry in allocations {
            allocated.insert((entry.addr, entry.time_ns), entry.tid);
            if backward.contains(&entry.tid) || program.contains(&entry.tid) {
                continue;
            }
            let stack = snapshot.stacks.get(entry.stack as usize);
            if stack.and_then(|stack| stack.ran_python()) == Some(true) {
                program.insert(entry.tid);
            }
        }
        Threads {
            backward,
            program,
            allocated,
            freed,
        }
    }

    /// Who allocated a block, with this stack. Not known if its entry is no longer in the trace.
    pub(crate) fn allocated_by(
        &self,
        block: &SnapshotBlock,
        stack: Option<&Stack>,
    ) -> Option<AllocatedBy> {
        let tid = self.allocated.get(&(block.addr, block.since_ns))?;
        if self.program.contains(tid) {
            return Some(AllocatedBy::Program);
        }
        let stack = stack.filter(|_| self.backward.contains(tid))?;
        // Where no stack was taken, there may have been a hook.
        stack.ran_python()?;
        // What the innermost backward pass called.
        let called = stack.frames.iter().take_while(|frame| {
            !(BEGINS.contains(&&*frame.name) && frame.file.contains(BEGINS_IN))
        });
        let mut called = called
            .filter(|frame| frame.kind == FrameKind::Python)
            .peekable();
        let is_none = called.peek().is_none();
        let (mut is_own_part, mut again) = (false, false);
        for frame in called {
            is_own_part |= &*frame.name == OWN_PART;
            again |= frame.file.ends_with(COMPUTED_AGAIN);
        }
        Some(match (again, is_none || is_own_part) {
            (true, _) => AllocatedBy::Recompute,
            (false, true) => AllocatedBy::Backward,
            (false, false) => AllocatedBy::Hook,
        })
    }

    /// Whose thread freed a block afterwards.
    pub(crate) fn freed_by(&self, block: &SnapshotBlock) -> Option<FreedBy> {
        let tid = self.freed.get(&block.addr)?;
        if self.backward.contains(tid) {
            return Some(FreedBy::Backward);
        }
        self.program.contains(tid).then_some(FreedBy::Program)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memscope_ledger::report::Frame;

    use super::*;

    /// A stack, from the innermost frame on: function and file of Python code, or a function alone.
    fn stack(frames: &[(&str, &str)]) -> Stack {
        let frames = frames.iter().map(|(name, file)| Frame {
            kind: match file.is_empty() {
                true => FrameKind::Native,
                false => FrameKind::Python,
            },
            name: Arc::from(*name),
            file: Arc::from(*file),
            line: 1,
        });
        Stack {
            frames: frames.collect(),
            ..Stack::default()
        }
    }

    #[test]
    fn who_allocated() {
        const SITE: &str = "/lib/python3.11/site-packages/";
        let engine = &format!("{SITE}torch/autograd/graph.py");
        let function = &format!("{SITE}torch/autograd/function.py");
        let checkpoint = &format!("{SITE}torch/utils/checkpoint.py");
        let begun = ("_engine_run_backward", engine.as_str());
        let apply = ("apply", function.as_str());
        let cases = [
            (stack(&[("at::empty", "")]), Some(AllocatedBy::Backward)),
            // A function of the program's own, and what it calls.
            (
                stack(&[("scale", "own.py"), ("backward", "own.py"), apply]),
                Some(AllocatedBy::Backward),
            ),
            (stack(&[("hook", "own.py")]), Some(AllocatedBy::Hook)),
            // A checkpoint computes a forward pass again, in either of its ways.
            (
                stack(&[("forward", "own.py"), ("unpack_hook", checkpoint)]),
                Some(AllocatedBy::Recompute),
            ),
            (
                stack(&[("forward", "own.py"), ("backward", checkpoint), apply]),
                Some(AllocatedBy::Recompute),
            ),
            // The backward pass that it begins then is one itself, and may call a hook.
            (
                stack(&[begun, ("backward", checkpoint), apply]),
                Some(AllocatedBy::Backward),
            ),
            (
                stack(&[("hook", "own.py"), begun, ("backward", checkpoint), apply]),
                Some(AllocatedBy::Hook),
            ),
            // It was not seen whether Python was called.
            (
                Stack {
                    missing: Some("not_sampled"),
                    ..Stack::default()
                },
                None,
            ),
            (
                Stack {
                    missing: Some("no_python"),
                    ..Stack::default()
                },
                Some(AllocatedBy::Backward),
            ),
        ];
        let block = SnapshotBlock {
            addr: 0x1000,
            size: 512,
            requested: None,
            state: memscope_ledger::report::BlockState::Active,
            since_ns: 5,
            stack: 0,
            labels: 0,
        };
        let mut threads = Threads {
            backward: HashSet::from([7]),
            program: HashSet::from([1]),
            allocated: HashMap::from([((0x1000, 5), 7)]),
            freed: HashMap::from([(0x1000, 1)]),
        };
        for (stack, by) in &cases {
            assert_eq!(threads.allocated_by(&block, Some(stack)), *by, "{stack:#?}");
        }
        assert_eq!(threads.freed_by(&block), Some(FreedBy::Program));
        // On a thread of the program all of that is the program's; of another thread nothing is known.
        for (tid, by) in [(1, Some(AllocatedBy::Program)), (2, None)] {
            threads.allocated.insert((0x1000, 5), tid);
            for (stack, _) in &cases {
                assert_eq!(threads.allocated_by(&block, Some(stack)), by);
            }
        }
        threads.freed.insert(0x1000, 2);
        assert_eq!(threads.freed_by(&block), None);
        // Another block was at this address.
        let later = SnapshotBlock {
            since_ns: 6,
            ..block
        };
        assert_eq!(threads.allocated_by(&later, Some(&cases[0].0)), None);
    }
}
