//! What a daemon must be able to do to be served, in plain types.

use crate::{Caller, Refusal, Triggers, kinds};
use memscope_ledger::event::{Event, EventId, Level, Mark, ProcessHandle};
use memscope_ledger::report::{SnapshotReport, StackReport};
use memscope_ledger::{Answered, Asked, Who};
use memscope_proto::v1;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Answers the questions that the server passes on.
///
/// The server checks who may see what: it asks whose memory it would be, and asks about those processes only. So questions do not get
/// the caller. `attach` and `detach` change things and do: they must use [`Caller::may_see`]. Both run to their end even if the client
/// goes away. Questions may be dropped at any await.
#[tonic::async_trait]
pub trait Daemon: Triggers + Send + Sync + 'static {
    /// Attaches, and returns once the probes of the processes that run already are live.
    async fn attach(
        &self,
        caller: Caller,
        request: AttachRequest,
    ) -> Result<v1::AttachResponse, Refusal>;

    /// Detaches, and returns once the probes are gone.
    async fn detach(
        &self,
        caller: Caller,
        scope: DetachScope,
    ) -> Result<v1::DetachResponse, Refusal>;

    /// Whose memory there is: of the process with this pid, the newest memory image that had it; without a pid of all processes, ended
    /// ones until their retention is over.
    async fn who(&self, pid: Option<u32>) -> Result<Vec<Who>, Refusal>;

    /// Answers a question about these processes. Drains the ring first.
    async fn ask(&self, asked: Asked, of: Vec<ProcessHandle>) -> Result<Answered, Refusal>;

    /// Names the present moment of a process; gives the event.
    async fn mark(&self, pid: u32, mark: Mark) -> Result<EventId, Refusal>;

    /// All that the journal has up to now, as one file.
    async fn recording(&self) -> Result<RecordingWriter, Refusal>;

    /// Segments, blocks and trace. Drains the ring first. Works on a copy: the server holds it for
    /// as long as the client takes to read it.
    /// `at`: the state of an earlier moment, from the journal.
    async fn snapshot(&self, pid: u32, at: Option<Moment>) -> Result<Arc<SnapshotReport>, Refusal>;

    /// What each stack allocated. Drains the ring first. The server compares two of them: `from` and
    /// `before` stay empty here. `at`: the state of an earlier moment, from the journal.
    async fn stacks(&self, pid: u32, at: Option<Moment>) -> Result<StackReport, Refusal>;

    /// Events from now on, those that `filter` accepts. The channel is bounded and never waited
    /// for: see [`crate::EventHub`], which does this.
    async fn events(&self, filter: EventFilter) -> Result<mpsc::Receiver<EventItem>, Refusal>;

    /// State of the daemon itself, as root sees it; how many processes are traced is counted by the server.
    async fn status(&self) -> Result<v1::StatusResponse, Refusal>;
}

/// Writes a recording.
pub type RecordingWriter = Box<dyn FnOnce(&mut dyn std::io::Write) -> std::io::Result<()> + Send>;

/// A moment within the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nanoseconds since 1970.
    Unix(u64),
    /// Nanoseconds before now, or before the end of a recording.
    Ago(u64),
    /// Right after the event with this number.
    Event(u64),
    /// At the end of the step with this number.
    Step(u64),
}

/// Least time between two readings at level `read`.
pub const SHORTEST_READ_EVERY: Duration = Duration::from_millis(200);

/// What to attach, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// Which processes.
    pub scope: AttachScope,
    /// What is looked at.
    pub options: AttachOptions,
}

/// What is looked at in a process. A rule has them for the processes that it attaches, and a process for its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// Depth asked for.
    pub level: Level,
    /// At level `read`: time between two readings; `None` reads on demand only. Unused elsewhere.
    pub read_every: Option<Duration>,
    /// Which stacks are taken of allocations.
    pub stacks: StackKinds,
    /// Marks with this name tell of steps.
    pub step_name: Option<String>,
    /// Kernel launches are counted.
    pub launches: bool,
}

/// Which frames are taken of an allocation's stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackKinds {
    /// Those of Python code.
    pub python: bool,
    /// Those of compiled code.
    pub native: bool,
    /// Most frames of each kind.
    pub depth: u32,
    /// A stack is taken of one allocation in two to the power of this many bytes; 0: of every one.
    pub sampling: u8,
}

impl StackKinds {
    /// Most frames that can be asked for.
    pub const DEEPEST: u32 = 1024;
    /// None.
    pub const NONE: StackKinds = StackKinds {
        python: false,
        native: false,
        depth: StackKinds::DEEPEST,
        sampling: 0,
    };
    /// Python's.
    pub const PYTHON: StackKinds = StackKinds {
        python: true,
        native: false,
        depth: StackKinds::DEEPEST,
        sampling: 0,
    };
    /// Those of compiled code.
    pub const NATIVE: StackKinds = StackKinds {
        python: false,
        native: true,
        depth: StackKinds::DEEPEST,
        sampling: 0,
    };
    /// Both.
    pub const ALL: StackKinds = StackKinds {
        python: true,
        native: true,
        depth: StackKinds::DEEPEST,
        sampling: 0,
    };
}

/// Which processes to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachScope {
    /// The process with this id, if it runs.
    Pid {
        /// Its process id.
        pid: u32,
        /// Also the children that it makes from now on.
        children: bool,
        /// Attach even if it maps no device library yet.
        wait: bool,
    },
    /// A rule: every process with this short name, now and later. 1 to 15 bytes.
    Comm(String),
    /// A rule: every process in this control group or below it, now and later. Absolute, beneath
    /// the cgroup root, without `..`.
    Cgroup(String),
    /// A rule: every process that maps a device library, now and later.
    All,
}

/// What to detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachScope {
    /// The process with this id, whatever attached it.
    Pid(u32),
    /// One rule and the processes that it attached.
    Rule(u64),
    /// Every rule and process that the caller may see.
    All,
}

/// Which events a reader gets.
#[derive(Clone, Debug)]
pub struct EventFilter {
    /// Only those of this process.
    pub pid: Option<u32>,
    /// Only what this caller may see; `None` for everything.
    pub caller: Option<Caller>,
    /// Only of these kinds, by their names on the wire, or `framework_mark`; empty for all.
    pub kinds: Vec<&'static str>,
}

impl EventFilter {
    /// Whether the reader gets `item`. Events of the machine go to those who see everything.
    #[must_use]
    pub fn accepts(&self, item: &EventItem) -> bool {
        let wanted = self.pid.is_none() || self.pid == item.pid;
        let allowed = match (self.caller, item.uids) {
            (None, _) => true,
            (Some(caller), Some(uids)) => caller.may_see(&uids),
            (Some(caller), None) => caller.is_root(),
        };
        let of_kind = kinds::is_of(&self.kinds, &item.event.body);
        wanted && allowed && of_kind
    }
}

/// An event with what is needed to pass it on.
#[derive(Clone, Debug)]
pub struct EventItem {
    /// The event.
    pub event: Arc<Event>,
    /// Process id, `None` for events of the machine.
    pub pid: Option<u32>,
    /// Real, effective, saved uid of the process.
    pub uids: Option<[u32; 3]>,
    /// The event's time since 1970, where known.
    pub unix_ns: Option<u64>,
    /// Events that this reader missed just before; set by [`crate::EventHub`].
    pub missed: u64,
}
