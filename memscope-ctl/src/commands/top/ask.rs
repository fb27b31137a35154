//! What the view asks a daemon, and what comes back.

use memscope_proto::v1;

/// A question, and at the same time the name under which its latest answer is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ask {
    /// All processes.
    List,
    /// What all processes hold, by device.
    Devices,
    /// What a process holds.
    Stats(u32),
    /// How a process's memory rose and fell lately.
    Course(u32),
    /// Whether a process leaks, in short: its largest line alone.
    Verdict(u32),
    /// Its lines that grow.
    Leaks(u32),
    /// The same with what holds their blocks, for which the process's objects are read.
    Held(u32),
    /// What its memory is for; with a moment, nanoseconds since 1970, at that moment.
    Owners(u32, Option<u64>),
    /// Why the block at an address is for what it is; with a moment, at that moment.
    Why(u32, u64, Option<u64>),
    /// Whose memory it is, by line: the program's own, or any.
    Lines {
        pid: u32,
        any: bool,
        at: Option<u64>,
    },
    /// Whose memory it is, stack by stack.
    Stacks(u32, Option<u64>),
    /// Its steps.
    Steps(u32),
    /// What holds the blocks at these addresses, and those like them.
    Holders(u32, Vec<u64>),
}

/// What came back.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    List(v1::ListResponse),
    Devices(v1::DevicesResponse),
    Stats(v1::StatsResponse),
    Course(v1::FluctuationResponse),
    Leaks(v1::LeaksResponse),
    Owners(v1::OwnersResponse),
    Stacks(v1::StacksResponse),
    Steps(v1::StepsResponse),
    Holders(v1::HoldersResponse),
    /// The daemon answers, and says that it cannot answer this: what happened and what to do.
    Refused(String),
}

/// Why nothing came back.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    /// What happened, in a sentence.
    pub(super) what: String,
}

/// What the one that asks tells the view.
#[derive(Clone, Debug)]
pub(super) enum Heard {
    /// An answer to a question. It is boxed because answers are large.
    Answer(Ask, Box<Answer>),
    /// A question got no answer, because the daemon cannot be reached any more.
    Lost(Ask, Trouble),
    /// The daemon can be reached again.
    Reached,
}
