//! The pure heart of memscope: [`event::Event`]s in, answers out.
//!
//! Owns: the state of every traced process, and the rules by which events change it. Refuses: I/O,
//! clocks (time is an argument), threads, and any knowledge of BPF and of gRPC: answers are messages, and how they travel is not known
//! here.
//!
//! What all of it is made of lies at the top: `event` has what comes in, `report` the plain data in answers, and `wire` translates
//! what is stored or told by events into the words of answers; [`Ledger`] keeps the processes. The rest has four folders:
//!
//! * `state`: what is known of a process. `process` folds its events; `pool` follows a framework allocator's blocks and takes over what was
//!   read of them in the process' memory; `driver` follows what runtime and driver gave; `regions` follows pools that tell of themselves.
//! * `growth`: groups of blocks are watched for growth, by their floors, trends and verdicts.
//! * `steps`: where steps end, and what outlives them.
//! * `questions`: a file for each question, which builds the message that answers it; `coverage` says what limits the numbers, and
//!   `affects` which of them.
//!
//! Imports go down: `questions` use all others, `growth` and `steps` use `state`. `state` uses `growth` and `steps` in two files only:
//! `process`, which owns one of each, and `scene`, which carries them to where a block comes or goes.

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

pub use config::{KeptCounts, LedgerConfig};
pub use ledger::{Ledger, Part, RestoredPart};
pub use questions::{
    Affects, Answer, Answered, Asked, EFFECTS, Effect, Needs, PoolChange, Question, Senseless,
    effect, find_mark, inexact, is_judged,
};
pub use report::Who;
pub use state::regions::{RegionBook, RegionSink, RegionStep};
