//! Does memory grow? Live blocks are watched in groups. Each group has a floor, and a verdict says whether the floor
//! keeps rising.
//!
//! Owns: the groups, their floors, and the verdicts on them. Refuses: the blocks themselves, which `state` keeps, and
//! the wording of a report on growth, which is in `questions::leaks`.

pub(crate) mod floor;
pub(crate) mod group;
pub(crate) mod rate;
pub(crate) mod slope;
pub(crate) mod trend;
pub(crate) mod verdict;
