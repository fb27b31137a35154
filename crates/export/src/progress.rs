//! How far an export is.

/// Is told, from time to time, how many blocks and trace entries are written, and of how many.
pub type Progress<'a> = &'a dyn Fn(u64, u64);
