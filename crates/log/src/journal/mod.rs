//! The journal: every record that the daemon got or made, on disk, in order, within a bound. A
//! recording is the same thing: a segment file, an epoch's directory, or a single file made of one.
//!
//! Owns: the files, their layout, the bound, and the numbering of records. Refuses: clocks (times
//! are arguments), the meaning of records (that is [`crate::records`]), and trust in files.
//!
//! # Files
//!
//! ```text
//! <state-dir>/journal/lock
//! <state-dir>/journal/<epoch>/000000.msj      segments of a fixed size, oldest first
//!                             000001.msj
//!                             000001.msc      the state that its segment begins with
//! segment    = header (128 bytes) + batches + zeros
//! checkpoint = batches that hold the state (see `checkpoint`); the first segment has none
//! batch      = header (40 bytes: mark, length, crc, count, first number, ring position, …) + packed records
//! ```
//!
//! A single-file recording is segments one behind the other, without the zeros, each with its checkpoint behind its header. Everything is a
//! multiple of 8 bytes long. Integers have the byte order of the machine that wrote them; the
//! header says which, and a reader of another order or architecture refuses the file. How records are packed is
//! described in `pack`.
//!
//! # Writing: `pwrite` into allocated space, not a mapping
//!
//! The house plan was a mapped file. Appends are batches here, one per drain of the ring, so a
//! mapping would save one system call per batch and no more; for that, every failure of the disk
//! (full, quota, copy-on-write file systems that allocate again, a network file system gone) would
//! be a SIGBUS that ends the daemon. With `pwrite` it is an errno and a [`State::Stopped`]. Against
//! a kill both are the same: what `pwrite` took lies in the page cache. Against a power cut both
//! are the same too: the check sums tell. Space is allocated when a segment is made, so a full disk
//! shows there and not in the middle of a batch.
//!
//! # Reading alone
//!
//! Old segments are removed, so each new one begins with a checkpoint: the state that all records before it have come to.
//! The checkpoint of the newest segment comes a little later than its first records (see `checkpoint`); until then a reader begins with the
//! segment before it, which is kept for so long. A reader begins with any segment and gets the same state as one that has read all of them. Behind a damaged part, too,
//! it goes on from the next checkpoint.
//!
//! # A share for each process
//!
//! Where the journal is full, the oldest segments are written anew without the processes that take the most of it (see `share`):
//! such a segment has its checkpoint, and a list of those who are left out, behind its header. [`Absent`] follows who they are
//! while a reader goes on, and [`Recording::complete_from`] says from where on a process is there.
//!
//! Journals of format 1 have no checkpoints. Their segments begin with copies of the records without which the rest cannot be
//! understood, marked [`crate::records::REPEATED`]; a decoder ignores them where it knows better.

mod batches;
mod checkpoint;
mod config;
mod error;
mod format;
mod pack;
mod parts;
mod recording;
mod retain;
mod segment;
mod share;
mod sharing;
mod tally;
mod thin;
mod warning;
mod window;
mod writer;

#[cfg(test)]
mod full_disk;

pub use checkpoint::{CheckpointPlace, Folded, Restored};
pub use config::Config;
pub use error::{JournalError, RecordingError};
pub use format::{ClockPair, FORMAT_VERSION, SegmentHeader, boot_id};
pub use parts::{Absent, LeftOut};
pub use recording::{Entry, Exported, Piece, Recording, Records, SegmentPlace};
pub use retain::{EARLIER_KEPT, EARLIER_SHARE, epochs};
pub use tally::leading;
pub use warning::Warning;
pub use writer::{Journal, State, TooSmall, is_in_use};
