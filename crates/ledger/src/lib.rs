//! The pure heart of memscope: [`event::Event`]s in, answers out.
//!
//! Owns: the state of every traced process, and the rules by which events change it. Refuses: I/O,
//! clocks (time is an argument), threads, and any knowledge of BPF and of gRPC: answers are messages, and how they travel is not known here.
//!
//! The rooms, from the outside in: [`Ledger`] keeps the processes and answers; `process` folds one
//! process' events; `pool` follows a framework allocator's blocks and `totals` its sums; `reading`, `held`
//! and `pool_read` take over what was read of a pool in the process' memory; `driver`,
//! `vmm` and `host` follow runtime and driver allocations; `regions` follows pools that tell of themselves; `group`, `floor`, `verdict` and `trend` watch
//! groups of blocks for growth; `marks` keeps the moments that have a name; `steps`, `cycle` and `survivors` know where steps end and what outlives them; `questions` has a file for each question, which builds the message that
//! answers it, what limits the numbers (`coverage`), and which of them (`affects`); `wire` translates what is stored or told by events.

pub mod event;
pub mod report;

mod allocation;
mod block;
mod clock;
mod component;
mod config;
mod cycle;
mod deferred;
mod device;
mod distribution;
mod driver;
mod fast_hash;
mod floor;
mod given_back;
mod group;
mod held;
mod host;
mod ledger;
mod loss;
mod marks;
mod notes;
mod pool;
mod pool_read;
mod pool_trace;
mod process;
mod questions;
mod rate;
mod reading;
mod regions;
mod rooms;
mod scene;
mod segment;
mod series;
mod slope;
mod stacks;
mod step_levels;
mod step_lines;
mod steps;
mod survivors;
mod suspects;
mod totals;
mod trace_ring;
mod trend;
mod verdict;
mod vmm;
mod wire;
mod words;

pub use config::{Kept, LedgerConfig};
pub use ledger::{Ledger, Part, RestoredPart};
pub use questions::{
    Affects, Answer, Answered, Asked, EFFECTS, Effect, Needs, PoolChange, Question, Senseless,
    effect, find_mark, inexact, is_judged,
};
pub use regions::{RegionBook, RegionStep, Told};
pub use report::Who;
