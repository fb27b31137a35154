//! memscope's numbers for monitoring systems.
//!
//! Owns: which metrics there are, with their names, units and meanings (`family`), how they follow from the daemon's answers (`fold`),
//! and how they are written for whoever fetches them (`text`). Refuses: I/O, and to compute anything that an answer has already.
//!
//! The number of series is bounded. There are no addresses and no stacks in labels; at most [`Limits::processes`] processes have series
//! of their own, those that hold most, and the others are summed up under the pid `other`. A number that is not known is left out, it is
//! never zero.

mod family;
mod fold;
mod text;

pub use family::{FAMILIES, Family, Kind, Of, Unit};
pub use fold::{
    Filling, Labels, Limits, Metric, Pushed, Sample, Taken, TakenProcess, filling, fold, of_process,
};
pub use text::{CONTENT_TYPE, open_metrics};
