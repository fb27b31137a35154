//! Everything that the keeper's thread owns.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use memscope_ledger::Ledger;
use memscope_ledger::event::{CodeName, ProcessHandle, StackSeen};
use memscope_log::Journal;
use memscope_log::records::Decoder;
use memscope_rpc::EventHub;

use super::command::{Command, KeeperMessage};
use super::frees::Frees;
use super::naming::PutOff;
use super::rest::Rest;
use super::shedding::Shedding;
use super::taking::{Picture, Taking};
use super::watching::{Said, Watching};
use crate::ingest::ring::Ring;
use crate::native::Jobs;
use crate::probe::calibrate::Calibrator;
use crate::probe::slot::Slot;
use crate::python::Names;
use crate::triggers::Firing;
use crate::watchdog::Pulse;
use crate::works::Hurried;

pub(super) struct Watched {
    pub(super) pid: u32,
    pub(super) uids: [u32; 3],
    pub(super) namespace: Option<Arc<str>>,
    pub(super) slot: Slot,
    /// Number of lost records that has been reported to the tracer.
    pub(super) lost_told: u64,
    /// Finds the names of code objects, where Python stacks are taken.
    pub(super) names: Option<Box<Names>>,
    /// Unwinds and names stacks of compiled code, where they are taken.
    pub(super) native: Option<Jobs>,
}

/// The state of the keeper's thread.
pub struct Keeper {
    pub(super) commands: Receiver<Command>,
    /// Beats as the thread goes on.
    pub(super) pulse: Pulse,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) epoll: OwnedFd,
    pub(super) ring: Option<Ring>,
    pub(super) journal: Option<Journal>,
    pub(super) journal_problem: Option<String>,
    pub(super) decoder: Decoder,
    pub(super) ledger: Ledger,
    pub(super) hub: Arc<EventHub>,
    pub(super) tracer: Option<Sender<KeeperMessage>>,
    pub(super) taking: Option<Taking>,
    /// Firings that were not acted on yet.
    pub(super) due: Vec<Firing>,
    /// Pictures that wait until names were read.
    pub(super) pictures: Vec<Picture>,
    pub(super) watched: HashMap<ProcessHandle, Watched>,
    /// Bytes of the ring that each process's records took in the piece that is being read. It is empty between pieces.
    pub(super) shares_read: HashMap<ProcessHandle, u64>,
    pub(super) frees: Frees,
    pub(super) calibrating: HashMap<ProcessHandle, Calibrating>,
    pub(super) rest: Rest,
    pub(super) naming: Naming,
    pub(super) native: Natives,
    pub(super) findings: Findings,
    /// Keeps the daemon within its memory; `None` for a recording.
    pub(super) shedding: Option<Shedding>,
    /// Number of records that were read.
    pub(super) records: u64,
    /// Number of commands that were carried out.
    pub(super) obeyed: u64,
    /// Number of records that were of no use, by cause.
    pub(super) skipped: HashMap<&'static str, u64>,
    pub(super) batch: Vec<u8>,
    pub(super) last_housekeeping: u64,
    /// Writes down triggers and findings for the daemon that comes next.
    pub(super) watching: Option<Watching>,
    pub(super) epoch: u64,
}

/// The search for the allocator's layout in one process.
pub(super) struct Calibrating {
    pub(super) pid: u32,
    pub(super) search: Calibrator,
    pub(super) memory: Option<Hurried>,
    pub(super) slot: Slot,
}

/// What has to be named when the records at hand have been applied.
#[derive(Default)]
pub(super) struct Naming {
    pub(super) stacks: Vec<(ProcessHandle, Box<StackSeen>)>,
    pub(super) dying: Vec<(ProcessHandle, CodeName)>,
    /// Stacks whose code could not be read, until the next try.
    pub(super) put_off: PutOff,
    /// Names are being appended. What has to be named because of that waits for the next round.
    pub(super) busy: bool,
}

/// Stacks of compiled code that are being unwound or named.
#[derive(Default)]
pub(super) struct Natives {
    /// Addresses that were handed over to be named.
    pub(super) told: HashMap<ProcessHandle, HashSet<u64>>,
    /// Inner frames of the stacks that wait for their outer frames.
    pub(super) waiting: HashMap<(ProcessHandle, u64), Vec<u64>>,
    /// The same stacks in the order in which they came. The oldest is dropped when there are too many, because its
    /// piece may never have been handed over.
    pub(super) waited: VecDeque<(ProcessHandle, u64)>,
}

/// What was reported of each process, and when the next check is due.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) said: HashMap<ProcessHandle, (u64, Vec<Said>)>,
    pub(super) next_ns: u64,
    /// The next event's number at a check that found nothing that lives in any process: before that event there is nothing to find.
    pub(super) nothing_before: Option<u64>,
}
