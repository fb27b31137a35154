//! The journal: every record that the daemon received or made, on disk, in order, and bounded in size. A recording has
//! the same format: it is a segment file, the directory of an epoch, or a single file made from such a directory.
//!
//! Owns: the files, their layout, the bound, and the numbering of records. Refuses: clocks (times are arguments), the
//! meaning of records (see [`crate::records`]), and trust in files.
//!
//! # Files
//!
//! ```text
//! <state-dir>/journal/lock                    epoch that is written, and next number of a journal that has stopped
//! <state-dir>/journal/<epoch>/000000.msj      segments of a fixed size, oldest first
//!                             000001.msj
//!                             000001.msc      checkpoint: the state at the beginning of segment 000001
//! segment    = header (128 bytes) + batches + zeros
//! checkpoint = batches that hold the state (see `checkpoint`); the first segment has none
//! batch      = header (40 bytes: mark, length, crc, count, first number, ring position, …) + packed records
//! ```
//!
//! In a recording of one file the segments follow one another without the zeros, each with its checkpoint after its
//! header. Every length is a multiple of 8 bytes. Integers have the byte order of the machine that wrote them; the
//! header says which one, and a reader of another byte order or of an unknown architecture refuses the file. `pack`
//! describes how records are packed.
//!
//! # Writing: `pwrite` into allocated space, not a mapping
//!
//! The alternative is a mapped file. Appends are batches here, one for each drain of the ring, so a mapping would save
//! only one system call per batch. In exchange, every failure of the disk (full disk, quota, copy-on-write file systems
//! that allocate again, a network file system that is gone) would be a SIGBUS that ends the daemon. With `pwrite` such
//! a failure is an errno and a [`State::Stopped`]. If the process is killed, both ways lose nothing: what `pwrite`
//! accepted is in the page cache. After a power cut both ways may have lost data, and the check sums show what. The
//! space of a segment is allocated when the segment is made, so a full disk is noticed then and not in the middle of a
//! batch.
//!
//! # Reading from any segment
//!
//! Old segments are removed, so each new segment begins with a checkpoint: the state after all records before it. The
//! checkpoint of the newest segment is written a little later than its first records (see `checkpoint`). Until then the
//! segment before it is kept, and a reader begins there. A reader that begins with any segment that has a checkpoint
//! gets the same state as a reader that has read all segments. After a damaged part, a reader goes on from the next
//! checkpoint, too.
//!
//! # A share for each process
//!
//! When the journal is full, the oldest segments are rewritten without the processes that use most of its space (see
//! `share`). Such a segment has, after its header, a list of the processes that are left out, and its checkpoint.
//! [`Absent`] keeps track of them while a reader goes on, and [`Recording::complete_from`] says from which segment on a
//! process is complete.
//!
//! Journals of format 1 have no checkpoints. Their segments begin with copies of the records that are needed to
//! understand the rest, marked [`crate::records::REPEATED`]. A decoder that already knows more ignores them.

mod batches;
mod checkpoint;
mod config;
mod error;
mod format;
mod learning;
mod pack;
mod parts;
mod recording;
mod reopen;

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
#[cfg(test)]
mod slow_disk;

pub use checkpoint::{CheckpointPlace, Folded, Restored};
pub use config::Config;
pub use error::{JournalError, RecordingError};
pub use format::{ClockPair, FORMAT_VERSION, SegmentHeader, boot_id};
pub use parts::{Absent, LeftOut};
pub use recording::{Entry, Exported, Piece, Recording, Records, SegmentPlace};
pub use reopen::LeftJournal;
pub use retain::{EARLIER_KEPT, EARLIER_SHARE, epochs};
pub use tally::leading;
pub use warning::Warning;
pub use writer::{Journal, State, TooSmall, ended_epochs, is_in_use};
