//! Reads whole records from the kernel's ring buffer.

pub mod ring;
