//! Progress of an export.

/// Called from time to time with the number of blocks and trace entries written so far, and with their total number.
pub type Progress<'a> = &'a dyn Fn(u64, u64);
