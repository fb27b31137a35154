//! The pure heart of memscope: [`event::Event`]s in, [`report`]s out.
//!
//! Owns: the state of every traced process, and the rules by which events change it. Refuses: I/O,
//! clocks (time is an argument), threads, and any knowledge of BPF or of the wire.
//!
//! The rooms, from the outside in: [`Ledger`] keeps the processes and answers; `process` folds one
//! process' events; `pool` follows a framework allocator's blocks and `totals` its sums; `reading`, `held`
//! and `pool_read` take over what was read of a pool in the process' memory; `driver`,
//! `vmm` and `host` follow runtime and driver allocations; `regions` follows pools that tell of themselves; `group`, `floor`, `verdict` and `trend` watch
//! groups of blocks for growth; `marks` keeps the moments that have a name; `steps`, `cycle` and `survivors` know where steps end and what outlives them; `coverage` says what limits the numbers, and `affects` which of them; one file per question builds its report.

pub mod event;
pub mod report;

mod affects;
mod allocation;
mod block;
mod changes;
mod clock;
mod component;
mod coverage;
mod cycle;
mod deferred;
mod device;
mod distribution;
mod driver;
mod fast_hash;
mod floor;
mod fluctuation;
mod gauge;
mod given_back;
mod group;
mod held;
mod host;
mod leak_exact;
mod leak_items;
mod leak_judge;
mod leak_lines;
mod leak_returned;
mod leaks;
mod ledger;
mod loss;
mod mark_report;
mod marks;
mod pool;
mod pool_read;
mod pool_trace;
mod process;
mod rate;
mod reading;
mod regions;
mod replaced;
mod rooms;
mod scene;
mod segment;
mod series;
mod slope;
mod snapshot;
mod stack_report;
mod stacks;
mod stats;
mod step_levels;
mod step_lines;
mod step_report;
mod steps;
mod survivors;
mod suspects;
mod totals;
mod trace_ring;
mod trend;
mod verdict;
mod vmm;
mod words;

pub use affects::{Affects, Answer, EFFECTS, Effect, effect, inexact, is_judged};
pub use changes::PoolChange;
pub use ledger::{Kept, Ledger, LedgerConfig, Part, RestoredPart};
pub use regions::{RegionBook, RegionStep, Told};
