//! The trait that a daemon implements so that the server can serve it, and the plain types of its methods.

use crate::{Caller, EventItem, Refusal, Triggers, Wanted, kinds};
use memscope_ledger::event::{EventId, Level, Mark, ProcessHandle};
use memscope_ledger::report::{SnapshotReport, StackReport};
use memscope_ledger::{Answered, Asked, Who};
use memscope_proto::v1;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Answers the questions that the server passes on.
///
/// The server checks who may see what: it calls [`Daemon::who`] first, and then asks only about the processes that the
/// caller may see. So the methods for questions do not get the caller. `attach` and `detach` change something and do
/// get it: they must check [`Caller::may_see`]. Every call runs to its end even if the client goes away, so that what
/// limits the calls is held as long as their work goes on. Calls whose work may take long get a [`Wanted`], and should
/// end early when the client is gone.
#[tonic::async_trait]
pub trait Daemon: Triggers + Send + Sync + 'static {
    /// Attaches, and returns once the probes in the processes that are already running are live.
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

    /// Handle, user ids and state of the processes that can be asked about. With a pid: the newest memory image that
    /// had this pid. Without one: all processes, also those that have ended, until their retention is over.
    async fn who(&self, pid: Option<u32>) -> Result<Vec<Who>, Refusal>;

    /// Answers a question about the processes `of`. Drains the ring first.
    async fn ask(&self, asked: Asked, of: Vec<ProcessHandle>) -> Result<Answered, Refusal>;

    /// How the memory of a process went up and down over a window: from the journal, as fine as its events, as far as it has them. Drains
    /// the ring first.
    async fn course(
        &self,
        window: Window,
        wanted: &Wanted,
    ) -> Result<v1::FluctuationResponse, Refusal>;

    /// The moment from which ages are counted back, in nanoseconds of boot time: now, or the end of a recording.
    async fn end(&self) -> Result<u64, Refusal>;

    /// Adds a mark at the present moment of a process. Returns the id of the mark's event. What counts is the
    /// process's handle: if another process has got its pid in the meantime, that one gets no mark.
    async fn mark(&self, of: Who, mark: Mark) -> Result<EventId, Refusal>;

    /// The whole journal up to now, as one file.
    async fn recording(&self) -> Result<RecordingWriter, Refusal>;

    /// Segments, blocks and trace of a process. Drains the ring first. The report is a copy: the server holds it for
    /// as long as the client takes to read it.
    /// With `at`, the report describes that earlier moment, as the journal has it.
    async fn snapshot(
        &self,
        pid: u32,
        at: Option<Moment>,
        wanted: &Wanted,
    ) -> Result<Arc<SnapshotReport>, Refusal>;

    /// What each stack of a process allocated. Drains the ring first. The server compares two reports itself, so `from`
    /// and `before` stay empty here. With `at`, the report describes that earlier moment, as the journal has it.
    async fn stacks(
        &self,
        pid: u32,
        at: Option<Moment>,
        wanted: &Wanted,
    ) -> Result<StackReport, Refusal>;

    /// Which Python objects keep the blocks of a process alive. `before` is the process as it was when the question came: only what it has
    /// still afterwards is held by anything.
    async fn holders(
        &self,
        request: v1::HoldersRequest,
        before: Arc<SnapshotReport>,
    ) -> Result<v1::HoldersResponse, Refusal>;

    /// What the blocks of a process are for, now or at an earlier moment, as the journal has it; and whose the answer is, which at an
    /// earlier moment may have been another user's. `before` is the process as it was when the question came.
    async fn owners(
        &self,
        request: v1::OwnersRequest,
        before: Arc<SnapshotReport>,
        at: Option<Moment>,
        wanted: &Wanted,
    ) -> Result<(v1::OwnersResponse, Who), Refusal>;

    /// Events from now on that `filter` accepts. The channel is bounded, and the daemon must never wait for room in it:
    /// [`crate::EventHub`] implements this.
    async fn events(&self, filter: EventFilter) -> Result<crate::EventReader, Refusal>;

    /// State of the daemon itself, as root sees it. The server fills in how many processes are traced.
    async fn status(&self) -> Result<v1::StatusResponse, Refusal>;
}

/// Function that writes a recording to the given writer, and returns in words what could not be read for it.
pub type RecordingWriter =
    Box<dyn FnOnce(&mut dyn std::io::Write) -> std::io::Result<Vec<String>> + Send>;

/// A window of the course of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Process id.
    pub pid: u32,
    /// The process that has it.
    pub of: ProcessHandle,
    /// Its beginning; `None`: as far back as something is known.
    pub from: Option<Moment>,
    /// Its end; `None`: the present moment.
    pub to: Option<Moment>,
    /// Into how many intervals it is cut.
    pub intervals: u32,
}

/// A moment within the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nanoseconds since 1970.
    Unix(u64),
    /// Nanoseconds before now, or before the end of a recording.
    Ago(u64),
    /// Nanoseconds of boot time, the kernel's clock by which events are ordered.
    Boot(u64),
    /// Right after the event with this running number.
    Event(u64),
    /// At the end of the step with this number.
    Step(u64),
}

/// Shortest time between two readings that may be asked for at level `read`.
pub const SHORTEST_READ_EVERY: Duration = Duration::from_millis(200);

/// A request to attach: which processes, and how much of them is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// Which processes.
    pub scope: AttachScope,
    /// How much of the processes is watched.
    pub options: AttachOptions,
}

/// How much of a process is watched. A rule applies its options to the processes that it attaches; a process passes its
/// own on to its children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachOptions {
    /// Level that was asked for.
    pub level: Level,
    /// Time between two readings at level `read`; `None`: readings are made on demand only. Other levels do not use it.
    pub read_every: Option<Duration>,
    /// Which frames of an allocation's stack are taken, and how often.
    pub stacks: StackKinds,
    /// Name of the marks that end a step; `None`: the daemon finds the steps by itself.
    pub step_name: Option<String>,
    /// Whether kernel launches are counted.
    pub launches: bool,
    /// Whether each launch is told, with the kernel's name.
    #[serde(default)]
    pub kernels: bool,
    /// Whether it is followed which operators use which memory.
    #[serde(default)]
    pub accesses: bool,
    /// Share of one processor that walking stacks may take; `None`: what holds for all processes.
    #[serde(default)]
    pub stack_budget: Option<Share>,
}

/// A share of one processor, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share(u32);

impl Share {
    /// From percent; `None` unless it is above 0 and at most 100.
    #[must_use]
    pub fn of_percent(percent: f64) -> Option<Share> {
        let is_share = percent > 0.0 && percent <= 100.0;
        // Less than a millionth would be nothing.
        is_share.then(|| Share(((percent * 1e4) as u32).max(1)))
    }

    /// The share as a fraction of 1.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

/// Which frames are taken of an allocation's stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackKinds {
    /// Frames of Python code.
    pub python: bool,
    /// Frames of compiled code.
    pub native: bool,
    /// Largest number of frames of each kind.
    pub depth: u32,
    /// Sampling interval as a power of two: a stack is taken of one allocation in `2^sampling` bytes; 0: of every
    /// allocation.
    pub sampling: u8,
}

impl StackKinds {
    /// Largest number of frames that may be asked for.
    pub const DEEPEST: u32 = 1024;
    /// No stacks.
    pub const NONE: StackKinds = StackKinds {
        python: false,
        native: false,
        depth: StackKinds::DEEPEST,
        sampling: 0,
    };
    /// Frames of Python code only, of every allocation.
    pub const PYTHON: StackKinds = StackKinds {
        python: true,
        native: false,
        depth: StackKinds::DEEPEST,
        sampling: 0,
    };
    /// Frames of compiled code only, of every allocation.
    pub const NATIVE: StackKinds = StackKinds {
        python: false,
        native: true,
        depth: StackKinds::DEEPEST,
        sampling: 0,
    };
    /// Frames of Python code and of compiled code, of every allocation.
    pub const ALL: StackKinds = StackKinds {
        python: true,
        native: true,
        depth: StackKinds::DEEPEST,
        sampling: 0,
    };
}

/// Which processes to attach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachScope {
    /// The process with this pid, if it is running.
    Pid {
        /// Process id.
        pid: u32,
        /// Whether children that it forks from now on are attached, too.
        children: bool,
        /// Whether to attach even if the process maps no device library yet.
        wait: bool,
    },
    /// A rule: every process with this short name (`/proc/PID/comm`, 1 to 15 bytes), now and later.
    Comm(String),
    /// A rule: every process in this control group or below it, now and later. The path is absolute, beneath the cgroup
    /// root, without `..`.
    Cgroup(String),
    /// A rule: every process that maps a device library, now and later.
    All,
}

/// What to detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachScope {
    /// The process with this pid, whether a rule or a request attached it.
    Pid(u32),
    /// The rule with this number, and the processes that it attached.
    Rule(u64),
    /// Every rule and process that the caller may see.
    All,
}

/// Which events a reader gets.
#[derive(Clone, Debug)]
pub struct EventFilter {
    /// Only events of this process; `None`: of all processes.
    pub pid: Option<u32>,
    /// Only events that this caller may see; `None`: everything.
    pub caller: Option<Caller>,
    /// Only events of these kinds, by their names on the wire or `framework_mark`; empty: all kinds.
    pub kinds: Vec<&'static str>,
}

impl EventFilter {
    /// Whether the reader gets `item`. Events that belong to no process go only to readers who may see everything.
    #[must_use]
    pub fn accepts(&self, item: &EventItem) -> bool {
        let wanted = self.pid.is_none() || self.pid == item.pid;
        let namespace = item.namespace.as_deref();
        let may_see = |caller: &Caller| caller.may_see_in(item.uids.as_ref(), namespace);
        let allowed = self.caller.as_ref().is_none_or(may_see);
        let of_kind = kinds::is_of(&self.kinds, &item.event.body);
        wanted && allowed && of_kind
    }
}
