//! Which rank of a job is unlike the others, how sure that is, and which lines of the program make it so.
//!
//! Owns: the groups of ranks that look alike ([`groups`]), the test of a rank that looks like none of them, and the
//! comparison of its lines with those of its peers. Refuses: to ask anybody, to read a clock, and to format text.
//!
//! Healthy jobs have ranks that differ. Stages of a pipeline form groups, of which each has its own level; ranks of
//! one group differ by some per cent; rank 0 often holds a little more, and the last one a little less. So a rank is
//! odd only if no other looks like it while all others have company. How far it is away is measured by how far the
//! outermost of the others are apart, and the confidence is one minus the chance that ranks with such a spread bring
//! forth a rank so far away by themselves, times the number of comparisons that were made.

mod found;
mod groups;
mod judge;
mod layout;
mod lines;
mod rank;
mod tail;

pub use found::{Difference, Explained, Finding, Judgement, NotJudged, Odd, Why};
pub use groups::{Group, JUDGED_FROM, groups};
pub use judge::{LIKELY, SURE, judge};
pub use rank::{Growth, Line, Metric, Rank};
