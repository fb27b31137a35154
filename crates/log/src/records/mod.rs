//! Decodes records into events, and encodes events as records.
//!
//! Owns: the reading of every record kind of `memscope-common`, the JSON records that the daemon writes
//! ([`DaemonRecord`]), and the numbering of events ([`Decoder`]). Refuses: I/O, clocks, and trust. The bytes of a
//! record may come from anywhere: they are copied into the structs of `memscope-common` or read at their offsets, never
//! cast in place. Anything unexpected is an [`Outcome`] with a reason, never a panic.
//!
//! ```text
//! Decoded(Event)    for the ledger
//! Notice(Notice)    for the code that runs the decoder (exec, exit, changed mappings, sites)
//! Skipped(reason)   a whole record that this version cannot or need not use
//! Malformed(reason) the content does not fit the record's kind
//! ```
//!
//! # Numbering
//!
//! Every whole record gets the next number of its journal, decoded or not, so that the live daemon and a replay give
//! the same [`memscope_ledger::event::EventId`] to the same record. Two things have no number: bytes that fail
//! [`check`] (the journal cannot hold them), and repeated records ([`REPEATED`]), with which a segment of a journal of
//! format 1 begins so that it can be read without those before it.

mod begun;
mod bytes;
mod calibration;
mod daemon;
mod decoder;
mod encode;
mod hal;
mod held;
mod kernel;
mod launch;
mod outcome;
mod reader;
mod region;
mod said;
mod site;
mod trim;

pub use bytes::{Header, REPEATED, check, is_repeated};
pub use calibration::{Calibration, calibration, is_expected_to_complete, totals_on_trial};
pub use daemon::{
    Clock, DaemonRecord, EncodeError, KIND_ALLOCATOR, KIND_ATTACHED, KIND_BACKEND, KIND_CLOCK,
    KIND_CODE_NAME, KIND_COVERAGE, KIND_DETACHED, KIND_DEVICE_TOTAL, KIND_EXITED, KIND_HELD,
    KIND_LOST, KIND_NATIVE_NAME, KIND_PLACED, KIND_READING_COST, KIND_REPLACED, KIND_SITE_DEFINED,
    KIND_STACK_WHOLE, Launches, Stamp,
};
pub use decoder::Decoder;
pub use encode::encode;
pub use held::held_parts;
pub use kernel::{DyingCode, StackCopy, block_address, call_op, dying_code, stack_copy};
pub use outcome::{Malformed, Notice, Outcome, Skipped, What};
pub use reader::RecordReader;
pub use site::SiteDefined;
pub use trim::MAX_JSON;
