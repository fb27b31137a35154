//! From the kernel's ring buffer to whole records.

pub mod ring;
