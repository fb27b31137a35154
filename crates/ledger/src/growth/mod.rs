//! Does memory grow? Blocks are watched in groups, and each group has a floor, which is judged by how it rises.
//!
//! Owns: the groups, their floors, and the verdicts on them. Refuses: the blocks themselves, which `state` keeps, and the words in which
//! a growth is reported, which `questions::leaks` finds.

pub(crate) mod floor;
pub(crate) mod group;
pub(crate) mod rate;
pub(crate) mod slope;
pub(crate) mod trend;
pub(crate) mod verdict;
