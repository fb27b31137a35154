//! What a daemon must be able to do to be served, in plain types.

use crate::{Caller, Refusal, Triggers, kinds};
use memscope_ledger::event::{
    CoverageNote, Event, EventId, Finding, Level, Mark, ProcessHandle, ReadingCost,
};
use memscope_ledger::report::{
    FluctuationQuery, FluctuationReport, LeakQuery, LeakReport, MarksReport, ProcessSummary,
    SnapshotReport, StackReport, StatsReport, StepQuery, StepsReport,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Answers the questions that the server passes on.
///
/// The server checks who may see what on the answers (their `process.facts.uids`), so queries do
/// not get the caller. `attach` and `detach` change things and do: they must use
/// [`Caller::may_see`]. Both run to their end even if the client goes away. Queries may be dropped
/// at any await.
#[tonic::async_trait]
pub trait Daemon: Triggers + Send + Sync + 'static {
    /// Attaches, and returns once the probes of the processes that run already are live.
    async fn attach(
        &self,
        caller: Caller,
        request: AttachRequest,
    ) -> Result<AttachOutcome, Refusal>;

    /// Detaches, and returns once the probes are gone.
    async fn detach(&self, caller: Caller, scope: DetachScope) -> Result<DetachOutcome, Refusal>;

    /// All processes, ended ones until their retention is over.
    async fn list(&self) -> Result<Vec<ProcessSummary>, Refusal>;

    /// From when on each process can be asked about its past, nanoseconds since 1970. Processes of which no past is kept
    /// are left out.
    async fn known_from(&self) -> Result<Vec<(ProcessHandle, u64)>, Refusal>;

    /// The findings that stand: which lines are known to keep more and more.
    async fn findings(&self) -> Result<Vec<(ProcessHandle, Finding)>, Refusal>;

    /// What a process holds. Drains the ring first. Where several memory images had this pid, the
    /// newest.
    async fn stats(&self, pid: u32) -> Result<StatsReport, Refusal>;

    /// Which groups of live blocks grow. Drains the ring first.
    async fn leaks(&self, pid: u32, query: LeakQuery) -> Result<LeakReport, Refusal>;

    /// Which steps there were. Drains the ring first.
    async fn steps(&self, pid: u32, query: StepQuery) -> Result<StepsReport, Refusal>;

    /// Names the present moment of a process; gives the event.
    async fn mark(&self, pid: u32, mark: Mark) -> Result<EventId, Refusal>;

    /// Which moments of a process have a name. Drains the ring first.
    async fn marks(&self, pid: u32) -> Result<MarksReport, Refusal>;

    /// All that the journal has up to now, as one file.
    async fn recording(&self) -> Result<RecordingWriter, Refusal>;

    /// How the pools breathed. Drains the ring first.
    async fn fluctuation(
        &self,
        pid: u32,
        query: FluctuationQuery,
    ) -> Result<FluctuationReport, Refusal>;

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

    /// State of the daemon itself.
    async fn status(&self) -> Result<DaemonStatus, Refusal>;
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

/// What to attach, and how deep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// Which processes.
    pub scope: AttachScope,
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
    /// One process.
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

/// What an attach did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttachOutcome {
    /// Processes traced now because of it.
    pub processes: Vec<AttachedProcess>,
    /// The rule's number, where the scope makes one. From 1.
    pub rule: Option<u64>,
    /// Processes that matched a rule and could not be attached.
    pub refused: Vec<RefusedProcess>,
}

/// One process whose probes are live.
#[derive(Clone, Debug, PartialEq)]
pub struct AttachedProcess {
    /// Process id.
    pub pid: u32,
    /// Short name.
    pub comm: String,
    /// Sites with a live probe.
    pub sites: u32,
    /// Ways into the framework's allocator in use.
    pub ways: Vec<String>,
    /// Level reached.
    pub level: Level,
    /// What will not be seen.
    pub coverage: Vec<CoverageNote>,
    /// What the probes cost, where there is something to say.
    pub cost: Option<String>,
    /// What was there before the attach, where it could be read by the time of the answer.
    pub baseline: Option<BaselineRead>,
    /// It is still being read.
    pub baseline_pending: bool,
}

/// What a process' allocator held when it was attached, read from the allocator's own structures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BaselineRead {
    /// Devices that hold something.
    pub devices: u32,
    /// Segments.
    pub segments: u64,
    /// Blocks in use.
    pub blocks: u64,
    /// Their rounded bytes.
    pub bytes: u64,
    /// Bytes of the segments.
    pub reserved_bytes: u64,
    /// What it took.
    pub cost: ReadingCost,
}

/// One process that a rule matched and that could not be attached.
#[derive(Debug)]
pub struct RefusedProcess {
    /// Process id.
    pub pid: u32,
    /// Why.
    pub refusal: Refusal,
}

impl Clone for RefusedProcess {
    fn clone(&self) -> Self {
        RefusedProcess {
            pid: self.pid,
            refusal: self.refusal.duplicate(),
        }
    }
}

impl PartialEq for RefusedProcess {
    fn eq(&self, other: &Self) -> bool {
        self.pid == other.pid && self.refusal.to_string() == other.refusal.to_string()
    }
}

/// What to detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachScope {
    /// One process.
    Pid(u32),
    /// One rule and the processes that it attached.
    Rule(u64),
    /// Every rule and process that the caller may see.
    All,
}

/// What a detach did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetachOutcome {
    /// Process ids no longer traced.
    pub pids: Vec<u32>,
    /// Rules that ended.
    pub rules: Vec<u64>,
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

/// State of the daemon.
#[derive(Clone, Debug, Default)]
pub struct DaemonStatus {
    /// Version.
    pub version: String,
    /// Kernel release.
    pub kernel: String,
    /// Time since its start.
    pub uptime: Duration,
    /// Recording that it replays.
    pub replay: Option<PathBuf>,
    /// How probes are attached (`uprobe_multi`, `perf_event`).
    pub attach_method: Option<String>,
    /// Size of the ring.
    pub ring_bytes: Option<u64>,
    /// Probe sites in use.
    pub sites: u64,
    /// Journal.
    pub journal: JournalStatus,
    /// Records read.
    pub records: u64,
    /// Records lost or not understood: (cause, count).
    pub drops: Vec<(String, u64)>,
    /// Libraries with probes.
    pub libraries: Vec<LibraryStatus>,
    /// Rules.
    pub rules: Vec<RuleStatus>,
    /// Newest messages, oldest first. Shown to root only.
    pub messages: Vec<StatusMessage>,
}

/// State of the journal.
#[derive(Clone, Debug, Default)]
pub struct JournalStatus {
    /// What it does.
    pub state: JournalState,
    /// Where it lies.
    pub path: PathBuf,
    /// Its epoch.
    pub epoch: u64,
    /// Number of the last record.
    pub last_sequence: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Largest size on disk.
    pub limit_bytes: Option<u64>,
    /// Records that could not be kept.
    pub refused_records: u64,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// The first moment that can be asked for, nanoseconds since 1970.
    pub known_from_unix_ns: Option<u64>,
}

/// What the journal does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalState {
    /// There is none.
    #[default]
    Off,
    /// Records are kept.
    Writing,
    /// Its room or the disk is used up.
    Full,
    /// It cannot be written.
    Failed,
    /// A recording is read.
    Replay,
}

/// A library with probes.
#[derive(Clone, Debug, Default)]
pub struct LibraryStatus {
    /// Path as the process sees it.
    pub path: String,
    /// Build id in hexadecimal.
    pub build_id: Option<String>,
    /// Processes that map it.
    pub pids: Vec<u32>,
    /// Sites with a live probe.
    pub sites: u32,
    /// Ways into the framework's allocator in use.
    pub ways: Vec<String>,
    /// What is not probed, and why.
    pub notes: Vec<CoverageNote>,
}

/// A rule.
#[derive(Clone, Debug)]
pub struct RuleStatus {
    /// Number.
    pub rule: u64,
    /// Scope; never `Pid`.
    pub scope: AttachScope,
    /// Level.
    pub level: Level,
    /// User who made it.
    pub uid: u32,
    /// Processes attached by it so far.
    pub attached: u64,
}

/// How grave a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Something is less than it should be.
    Warning,
    /// Something failed.
    Error,
}

/// Something that the daemon has to say.
#[derive(Clone, Debug)]
pub struct StatusMessage {
    /// When, nanoseconds since 1970.
    pub unix_ns: u64,
    /// How grave.
    pub severity: Severity,
    /// The sentence.
    pub text: String,
}
