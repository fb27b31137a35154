//! A snapshot from a file, in one form for all kinds of files.

use memscope_pickle::State;
use memscope_proto::{Image, v1};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// One block. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: Option<u64>,
    pub(crate) state: State,
    /// Time of the allocation, in nanoseconds since 1970, if the file says it.
    pub(crate) born_ns: Option<u64>,
    /// Index of the block's stack in [`SnapshotFile::stacks`], if the file has one.
    pub(crate) stack: Option<u32>,
}

/// One segment. Its size is in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) device: i32,
    pub(crate) stream: u64,
    pub(crate) size: u64,
    pub(crate) blocks: Vec<Block>,
}

/// A snapshot from a file.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFile {
    pub(crate) path: PathBuf,
    pub(crate) image: Option<Image>,
    /// When memscope attached that process, in nanoseconds since 1970: nobody says what came and went before. `None` in other
    /// programs' files, and in pickles of older versions.
    pub(crate) attached_ns: Option<u64>,
    /// Moment that the snapshot describes, in nanoseconds since 1970.
    pub(crate) as_of_ns: Option<u64>,
    /// From when on the trace of each device has all allocations, in nanoseconds since 1970; `None` without a trace.
    pub(crate) traced_from_ns: Option<u64>,
    /// It says of each block that was seen to come since the attach when it came: each block has its time, or the trace was
    /// kept as a whole.
    pub(crate) has_births: bool,
    pub(crate) segments: Vec<Segment>,
    /// Stacks, each once: a line for each frame, innermost first.
    pub(crate) stacks: Vec<Stack>,
    pub(crate) coverage: Vec<v1::CoverageNote>,
}

/// The frames of a stack as text, such as `name (file:line)`, innermost first. Stacks share the texts of their frames.
pub(crate) type Stack = Arc<[Arc<str>]>;

/// Most frames of all different stacks together.
pub(super) const MOST_IN_ALL: usize = 1 << 24;

/// Bytes of the longest name of a function or a file that is shown whole.
const LONGEST: usize = 4096;

pub(super) fn line_of(name: &str, file: &str, line: Option<u64>) -> Arc<str> {
    let cut = |text: &str| text[..text.floor_char_boundary(LONGEST)].to_owned();
    let (name, file) = (cut(name), cut(file));
    match line {
        Some(line) if line > 0 => format!("{name} ({file}:{line})").into(),
        _ => format!("{name} ({file})").into(),
    }
}

/// Kinds of numbers that a note is taken to affect where the file does not say it, as files of older versions do
/// not: all kinds that a file contains.
pub(super) fn not_judged() -> Vec<String> {
    ["totals", "blocks"].map(str::to_owned).to_vec()
}

/// Times of allocations, read from a trace.
#[derive(Default)]
pub(super) struct Births {
    /// Time of the last allocation at each device and address, in nanoseconds since 1970.
    pub(super) of: HashMap<(i32, u64), u64>,
    pub(super) newest_ns: Option<u64>,
    /// Time of each device's first entry.
    oldest_ns: HashMap<i32, u64>,
    /// A trace has an allocation, so that `skip_actions` did not leave them out.
    has_allocations: bool,
}

impl Births {
    /// Takes in an entry of a trace. Entries must come in the order of time.
    pub(super) fn entry(
        &mut self,
        device: i32,
        came: bool,
        address: Option<u64>,
        time_us: Option<u64>,
    ) {
        let Some(time_ns) = time_us.map(|us| us.saturating_mul(1000)) else {
            return;
        };
        self.newest_ns = self.newest_ns.max(Some(time_ns));
        self.oldest_ns.entry(device).or_insert(time_ns);
        self.has_allocations |= came;
        if came && let Some(address) = address {
            self.of.insert((device, address), time_ns);
        }
    }

    /// From when on the trace of each device has all allocations; `None` if no trace has any.
    pub(super) fn reach_back_to_ns(&self) -> Option<u64> {
        let oldest = self.oldest_ns.values().max();
        oldest.filter(|_| self.has_allocations).copied()
    }
}
