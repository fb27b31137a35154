//! The journal being written.

use crate::config::{BESIDES, Config};
use crate::error::JournalError;
use crate::format::{
    BATCH_HEADER, BATCH_MOST, BatchHeader, ClockPair, FORMAT_VERSION, SEGMENT_HEADER, SegmentHeader,
};
use crate::retain;
use crate::segment::{Disk, Segment, Space};
use crate::tally::{leading, tally};
use core::mem::offset_of;
use memscope_common::{KIND_DAEMON_FIRST, RECORD_VERSION, RecordHeader};
use memscope_decode::{Header, REPEATED, check};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Whether records reach the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// They do.
    Running,
    /// They do not, since an error that `append` has returned.
    Stopped {
        /// The error in words.
        reason: String,
        /// Number of the first record that is missing.
        from_sequence: u64,
    },
}

/// A journal open for writing.
///
/// Numbers are given whether or not the disk takes the records, so a journal that has stopped still
/// numbers as [`memscope_decode::Decoder`] does.
pub struct Journal {
    dir: PathBuf,
    epoch_dir: PathBuf,
    config: Config,
    space: Box<dyn Space>,
    state: State,
    segment: Option<Segment>,
    next_index: u64,
    /// Number of the next record.
    next: u64,
    ring_position: u64,
    clock: ClockPair,
    preamble: Vec<u8>,
    preamble_count: u32,
    dropped: u64,
    buffer: Vec<u8>,
    /// Held as long as we live.
    _lock: File,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("epoch_dir", &self.epoch_dir)
            .field("state", &self.state)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Begins a new epoch in `dir` (`<state-dir>/journal`), which is made if need be, and takes the
    /// directory's lock. The first segment is there when this returns.
    pub fn create(dir: &Path, config: Config) -> Result<Self, JournalError> {
        Self::create_in(dir, config, Box::new(Disk))
    }

    pub(crate) fn create_in(
        dir: &Path,
        config: Config,
        space: Box<dyn Space>,
    ) -> Result<Self, JournalError> {
        config.check()?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|error| JournalError::of("make", dir, 0, error))?;
        let lock = lock(dir)?;
        retain::clear_unfinished(dir)?;
        let epoch_dir = dir.join(format!("{:020}", config.epoch));
        match DirBuilder::new().mode(0o700).create(&epoch_dir) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(JournalError::EpochTaken { path: epoch_dir });
            }
            Err(error) => return Err(JournalError::of("make", &epoch_dir, 0, error)),
        }
        let mut journal = Self {
            dir: dir.to_path_buf(),
            epoch_dir,
            space,
            state: State::Running,
            segment: None,
            next_index: 0,
            next: 1,
            ring_position: 0,
            clock: config.clock,
            preamble: Vec::new(),
            preamble_count: 0,
            dropped: 0,
            buffer: Vec::new(),
            config,
            _lock: lock,
        };
        if let Err(error) = journal.rotate(config.clock.boot_ns) {
            let _ = std::fs::remove_dir(&journal.epoch_dir);
            return Err(error);
        }
        Ok(journal)
    }

    /// Appends whole records, one behind the other, and gives the number of the first.
    /// `ring_position` is where the ring's reader stands after them; where more than 4 MiB come at
    /// once, all batches but the last carry the position before.
    ///
    /// On an error from the disk the journal stops: the error is returned once, later calls count
    /// what they drop and succeed. Bytes that are not whole records ([`JournalError::NotRecords`])
    /// change nothing: the caller checks each record with [`memscope_decode::check`].
    pub fn append(&mut self, records: &[u8], ring_position: u64) -> Result<u64, JournalError> {
        let first = self.next;
        let after = first + tally(records)?.numbered;
        if let State::Stopped { .. } = self.state {
            self.next = after;
            self.dropped += after - first;
            return Ok(first);
        }
        let written = self.write(records, ring_position);
        if let Err(error) = written {
            self.dropped += after - self.next;
            self.stop(&error);
            self.next = after;
            return Err(error);
        }
        self.ring_position = ring_position;
        Ok(first)
    }

    /// The records that every new segment begins with: definitions and what is attached. Only the
    /// daemon's own kinds; they are marked as repeated here. To be called *before* the
    /// record that makes the difference is appended, as that append may begin a segment.
    pub fn set_preamble<R: AsRef<[u8]>>(
        &mut self,
        records: impl IntoIterator<Item = R>,
    ) -> Result<(), JournalError> {
        let mut preamble = Vec::new();
        let mut count = 0;
        for record in records {
            let record = record.as_ref();
            let header = check(record).map_err(|source| JournalError::NotRecords {
                at: preamble.len(),
                source,
            })?;
            if header.kind < KIND_DAEMON_FIRST {
                return Err(JournalError::NotRepeatable { kind: header.kind });
            }
            let flags = preamble.len() + offset_of!(RecordHeader, flags);
            preamble.extend_from_slice(record);
            if let Some(flags) = preamble.get_mut(flags) {
                *flags |= REPEATED;
            }
            count += 1;
        }
        let bytes = preamble.len() as u64;
        let most = (self.config.segment_bytes - BESIDES).min(BATCH_MOST as u64);
        if bytes > most {
            return Err(JournalError::PreambleTooLong { bytes, most });
        }
        self.preamble = preamble;
        self.preamble_count = count;
        Ok(())
    }

    /// The pair of clock readings that the next segment's header gets.
    pub fn set_clock(&mut self, clock: ClockPair) {
        self.clock = clock;
    }

    /// Whether records reach the disk.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Segments begun so far. When it changes, what a later segment must tell again is due.
    pub fn segments(&self) -> u64 {
        self.next_index
    }

    /// Records that a stopped journal did not take.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The number that the next record will have.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Where this epoch's segments lie: what [`crate::Recording::open`] takes.
    pub fn epoch_dir(&self) -> &Path {
        &self.epoch_dir
    }

    /// Goes on after a stop, with a new segment at the next append. A reader sees the gap.
    pub fn resume(&mut self) {
        self.state = State::Running;
    }

    fn stop(&mut self, error: &JournalError) {
        if let Some(segment) = self.segment.take() {
            segment.finish();
        }
        self.state = State::Stopped {
            reason: error.to_string(),
            from_sequence: self.next,
        };
    }

    /// Writes records; `next` and the segment tell how far it came.
    fn write(&mut self, records: &[u8], ring_position: u64) -> Result<(), JournalError> {
        let mut rest = records;
        let mut fresh = false;
        while !rest.is_empty() {
            let room = self.segment.as_ref().map_or(0, Segment::room);
            let room = room.saturating_sub(BATCH_HEADER).min(BATCH_MOST);
            let part = if rest.len() <= room {
                rest
            } else if !fresh && rest.len() <= self.fresh_room() {
                &[]
            } else {
                leading(rest, room)
            };
            if part.is_empty() {
                if fresh {
                    // `set_preamble` leaves room for the longest record, so this cannot be.
                    return Err(JournalError::PreambleTooLong {
                        bytes: self.preamble.len() as u64,
                        most: 0,
                    });
                }
                self.rotate(first_time(rest))?;
                fresh = true;
                continue;
            }
            fresh = false;
            let tally = tally(part)?;
            rest = rest.get(part.len()..).unwrap_or_default();
            let position = if rest.is_empty() {
                ring_position
            } else {
                self.ring_position
            };
            self.write_batch(part, tally.count, position)?;
            self.next += tally.numbered;
        }
        Ok(())
    }

    /// Bytes of records that fit into the first batch behind a new segment's preamble.
    fn fresh_room(&self) -> usize {
        let besides = (SEGMENT_HEADER + 2 * BATCH_HEADER + self.preamble.len()) as u64;
        let room = self.config.segment_bytes.saturating_sub(besides);
        usize::try_from(room).map_or(BATCH_MOST, |room| room.min(BATCH_MOST))
    }

    fn write_batch(
        &mut self,
        records: &[u8],
        count: u32,
        position: u64,
    ) -> Result<(), JournalError> {
        let header = BatchHeader {
            // At most `BATCH_MOST`.
            len: records.len() as u32,
            count,
            first_sequence: self.next,
            ring_position: position,
        };
        self.buffer.clear();
        header.encode(records, &mut self.buffer);
        match &mut self.segment {
            Some(segment) => segment.write(&self.buffer),
            None => Ok(()),
        }
    }

    /// Ends the current segment and begins the next.
    fn rotate(&mut self, first_boot_ns: u64) -> Result<(), JournalError> {
        if let Some(segment) = self.segment.take() {
            segment.finish();
        }
        let size = self.config.segment_bytes;
        retain::make_room(&self.dir, &self.epoch_dir, size, self.config.total_bytes)?;
        let header = SegmentHeader {
            format_version: FORMAT_VERSION,
            record_version: RECORD_VERSION,
            architecture: std::env::consts::ARCH.to_owned(),
            boot_id: self.config.boot_id,
            epoch: self.config.epoch,
            index: self.next_index,
            first_sequence: self.next,
            first_boot_ns,
            clock: self.clock,
            segment_bytes: size,
        };
        self.segment = Some(Segment::create(
            &self.epoch_dir,
            &header,
            self.space.as_ref(),
        )?);
        self.next_index += 1;
        // The first segment holds the originals.
        if header.index > 0 && !self.preamble.is_empty() {
            let preamble = std::mem::take(&mut self.preamble);
            let written = self.write_batch(&preamble, self.preamble_count, self.ring_position);
            self.preamble = preamble;
            written?;
        }
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(segment) = &self.segment {
            segment.finish();
        }
    }
}

fn lock(dir: &Path) -> Result<File, JournalError> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|error| JournalError::of("open", &path, 0, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse {
            path: dir.to_path_buf(),
        }),
        Err(TryLockError::Error(error)) => Err(JournalError::of("lock", &path, 0, error)),
    }
}

fn first_time(records: &[u8]) -> u64 {
    Header::read(records).map_or(0, |header| header.time_ns)
}
