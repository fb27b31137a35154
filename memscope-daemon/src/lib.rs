//! The parts of `memscoped`.

pub mod ingest;
pub mod probe;
