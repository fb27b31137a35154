//! The answer about what grows.

use super::{AsOf, Frame, ProcessSummary, Space, StepSummary, Verdict};
use crate::event::CoverageNote;

/// Live blocks that share device, stream and size.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakGroup {
    /// Ordinal of the device in the process; none where it is not known.
    pub device: Option<i32>,
    /// What kind of memory.
    pub space: Space,
    /// Stream of the blocks, where known.
    pub stream: Option<u64>,
    /// Size of each block in bytes (requested at level `trace`, else rounded).
    pub size_bytes: u64,
    /// How many of its blocks live.
    pub live_count: u64,
    /// Bytes of its blocks that live.
    pub live_bytes: u64,
    /// Blocks by which the floor rose while it was watched.
    pub growth_count: u64,
    /// Bytes by which the floor rose.
    pub growth_bytes: u64,
    /// Floor growth per second over the watched window.
    pub growth_bytes_per_s: f64,
    /// Birth of the oldest live block, nanoseconds before `as_of`.
    pub oldest_age_ns: u64,
    /// Birth of the newest.
    pub newest_age_ns: u64,
    /// Verdict.
    pub verdict: Verdict,
    /// How sure that is, 0 to 1, where it grows and steps are known: the share of growths of this length and
    /// regularity that go on, if half of the caches that fill are full after 25 steps.
    pub confidence: Option<f64>,
    /// Growth per step, where steps are known: the median of the slopes between all pairs of floors, and the ends of its
    /// interval of 95 %.
    pub growth_bytes_per_step: Option<[f64; 3]>,
    /// The step in which the growth began, as exactly as windows of several steps tell.
    pub first_step: Option<u64>,
    /// Blocks of the group that went, and the most steps that one of them had lived.
    pub freed: (u64, u64),
    /// Its blocks came while less than all stacks was recorded, and others of its size grow: it is a part of their
    /// growth, and no growth of its own.
    pub beside: bool,
    /// Who allocated it, innermost first; empty: not known, or several.
    pub frames: Vec<Frame>,
    /// The innermost of the program's own lines among them.
    pub line: Option<Frame>,
    /// Why, in a sentence.
    pub reason: String,
    /// Some live addresses, oldest first (at most 5).
    pub examples: Vec<u64>,
}

/// The groups of one line of the program, folded; where their line is not known, blocks of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakLine {
    /// Ordinal of the device in the process; none where it is not known.
    pub device: Option<i32>,
    /// What kind of memory.
    pub space: Space,
    /// The innermost of the program's own lines that allocated the blocks, where known.
    pub line: Option<Frame>,
    /// Growing if one of its groups grows.
    pub verdict: Verdict,
    /// How sure that is: as sure as of the surest of its groups that grow.
    pub confidence: Option<f64>,
    /// Groups that are folded into it.
    pub groups: u64,
    /// Those of them that grow.
    pub growing_groups: u64,
    /// Different stacks of its groups.
    pub stacks: u64,
    /// Size of its smallest blocks in bytes.
    pub smallest_bytes: u64,
    /// Size of its largest blocks.
    pub largest_bytes: u64,
    /// How many of its blocks live.
    pub live_count: u64,
    /// Bytes of its blocks that live.
    pub live_bytes: u64,
    /// Bytes by which the floors of its growing groups rose; where none grows, of those that rise and are not judged yet. So it is with
    /// the next three, too.
    pub growth_bytes: u64,
    /// Growth per second.
    pub growth_bytes_per_s: f64,
    /// Growth per step, where steps are known: the sum of their medians, and of the ends of their intervals.
    pub growth_bytes_per_step: Option<[f64; 3]>,
    /// The step in which the first of the growths began.
    pub first_step: Option<u64>,
    /// Birth of the oldest live block, nanoseconds before `as_of`.
    pub oldest_age_ns: u64,
    /// Several functions of libraries, called by this line, keep blocks in the same steps: as a graph of autograd does that is kept.
    pub looks_like_kept_graph: bool,
    /// All its growing groups are parts of the growth of other lines, that came while less than all stacks was recorded.
    pub beside: bool,
    /// Why the largest of those groups is judged as it is, in a sentence; empty where there is none.
    pub reason: String,
    /// The program's own lines that called this one in all stacks of its growing groups, innermost first.
    pub callers: Vec<Frame>,
}

/// Lines that keep blocks in the same steps, all called by one line of the program.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakTogether {
    /// The innermost line that calls all of them, or is one of them.
    pub line: Frame,
    /// How many lines there are.
    pub lines: u64,
    /// What they grew by, bytes.
    pub growth_bytes: u64,
    /// Growth per second.
    pub growth_bytes_per_s: f64,
    /// Growth per step, where steps are known.
    pub growth_bytes_per_step: Option<f64>,
    /// Several functions of libraries keep blocks there: as an autograd graph does that is kept.
    pub looks_like_kept_graph: bool,
}

/// What to ask of `leaks`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LeakQuery {
    /// Only blocks at least this old.
    pub min_age_ns: u64,
    /// Also groups that do not grow.
    pub include_steady: bool,
    /// At most so many groups, largest growth first (0: all).
    pub limit: usize,
    /// Steps that a growth must have lasted before it is called one (0: 100).
    pub sure_after_steps: u64,
}

/// The answer to `leaks`.
#[derive(Clone, Debug, PartialEq)]
pub struct LeakReport {
    /// The process that was asked about.
    pub process: ProcessSummary,
    /// When.
    pub as_of: AsOf,
    /// What tells of steps, and how many there were.
    pub steps: StepSummary,
    /// The groups folded into the program's own lines: growing ones first, by growth, then the rest by live bytes.
    pub lines: Vec<LeakLine>,
    /// Lines beyond the limit that was asked for.
    pub omitted_lines: u64,
    /// Lines that grow, also those that are not shown.
    pub growing_lines: u64,
    /// Of the lines that grow together with others, the one that grows most and those others.
    pub together: Option<LeakTogether>,
    /// Groups: growing ones first, by growth, then the rest by live bytes.
    pub groups: Vec<LeakGroup>,
    /// Groups beyond the limit that was asked for.
    pub omitted_groups: u64,
    /// Groups that grow, also those that are not shown.
    pub growing_groups: u64,
    /// Their growth together.
    pub growing_bytes: u64,
    /// What rises, and was not watched for long enough to be judged.
    pub young: Option<YoungGrowth>,
    /// What grew until it was given back, the last ones first.
    pub given_back: Vec<GivenBack>,
    /// How long we have watched, nanoseconds.
    pub watched_ns: u64,
    /// Time until the device is full at this growth, where its free bytes are known.
    pub seconds_to_full: Option<f64>,
    /// What limits this answer.
    pub coverage: Vec<CoverageNote>,
}

/// Groups that rise and are too young to be judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct YoungGrowth {
    /// How many.
    pub groups: u64,
    /// All of them rose in every step.
    pub in_every_step: bool,
    /// Steps that the longest of them has risen for, where steps are known.
    pub steps: Option<u64>,
    /// Steps that a growth must last.
    pub needed_steps: Option<u64>,
}

/// A growth that is over: at least half of what lived of it was given back.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenBack {
    /// Ordinal of the device in the process; none where it is not known.
    pub device: Option<i32>,
    /// What kind of memory.
    pub space: Space,
    /// Size of each block in bytes; 0 where they differ.
    pub size_bytes: u64,
    /// Bytes that were given back.
    pub bytes: u64,
    /// When the last of its blocks went, boot time.
    pub last_ns: u64,
    /// The step in which that was, where steps are known.
    pub step: Option<u64>,
    /// The step in which the growth had begun.
    pub first_step: Option<u64>,
    /// What the device's pool reserves and has not handed out, where known: what was given back stays there.
    pub reserved_unused_bytes: Option<u64>,
    /// The line that allocated it.
    pub line: Option<Frame>,
}
