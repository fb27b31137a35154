//! The core of memscope, without I/O: it applies [`event::Event`]s to a state and answers questions from that state.
//!
//! Owns: the state of every traced process, and the rules by which events change it. Refuses: I/O, clocks (time is an
//! argument), threads, and any knowledge of BPF and of gRPC: answers are messages, and this crate does not know how
//! they are sent.
//!
//! The modules at the top are used by all others: `event` has the input, `report` the plain data in answers, and
//! `course` has the packed samples of what a device held, `wire` translates stored values and values of events into the messages of answers, `workload` says whose process one is; [`Ledger`] keeps the processes.
//! The rest is in four folders:
//!
//! * `state`: what is known of a process. `process` folds its events; `pool` follows the blocks of a framework's
//!   allocator and takes over readings of the process's memory; `driver` follows the memory that runtime and driver
//!   handed out; `regions` follows pools that report their own memory.
//! * `growth`: groups of blocks, their floors, trends and verdicts.
//! * `steps`: where steps end, and which blocks outlive them.
//! * `questions`: a file for each question, which builds the message that answers it; `coverage` says what limits the
//!   numbers, and `affects` which numbers each coverage note makes inexact.
//!
//! Modules import in one direction: `questions` use all others, `growth` and `steps` use `state`. `state` uses `growth`
//! and `steps` in two files only: `process`, which owns one of each, and `scene`, which carries them to the code that
//! adds and removes blocks.

pub mod course;
pub mod event;
pub mod report;

mod clock;
mod config;
mod fast_hash;
mod growth;
mod ledger;
mod notes;
mod questions;
mod state;
mod steps;
mod wire;
mod workload;

pub use config::{KeptBytes, KeptCounts, LedgerConfig};
pub use ledger::{Ledger, Part, RestoredPart};
pub use questions::{
    Affects, Answer, Answered, Asked, EFFECTS, Effect, Needs, PoolChange, Question, Senseless,
    Unnamed, effect, find_mark, inexact, is_judged, numbered_mark,
};
pub use report::Who;
pub use state::device::FREE_HOLDS_NS;
pub use state::regions::{RegionBook, RegionSink, RegionStep};
