//! The journal being written.

use crate::journal::checkpoint::{Folded, Writing};
use crate::journal::config::Config;
use crate::journal::error::JournalError;
use crate::journal::format::{
    BATCH_HEADER, BATCH_MOST, ClockPair, FORMAT_VERSION, SEGMENT_HEADER, SegmentHeader,
};
use crate::journal::pack::frame;
use crate::journal::retain;
use crate::journal::segment::{CHECKPOINT, Disk, Segment, Space, UNFINISHED};
use crate::journal::sharing::{Sharing, Wanted};
use crate::journal::tally::{Tally, tally};
use crate::records::Header;
use memscope_common::RECORD_VERSION;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// The state is too large for a journal of this size: its segments cannot be understood alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall {
    /// Bytes of the checkpoint.
    pub checkpoint_bytes: u64,
    /// Bytes that the journal should have at least.
    pub needed_bytes: u64,
}

/// A journal open for writing.
///
/// Numbers are given whether or not the disk takes the records, so a journal that has stopped still
/// numbers as [`crate::records::Decoder`] does.
pub struct Journal {
    dir: PathBuf,
    epoch_dir: PathBuf,
    config: Config,
    space: Box<dyn Space>,
    state: State,
    segment: Option<Segment>,
    next_index: u64,
    /// The checkpoint that is being written.
    writing: Option<Writing>,
    /// Bytes of the last one, and the number of its segment.
    checkpoint_bytes: u64,
    checkpoint_index: u64,
    sharing: Sharing,
    /// Number of the next record.
    next: u64,
    clock: ClockPair,
    /// The last checkpoint found no room, and how much it needs.
    too_small: Option<TooSmall>,
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
            writing: None,
            checkpoint_bytes: 0,
            checkpoint_index: 0,
            sharing: Sharing::default(),
            next: 1,
            clock: config.clock,
            too_small: None,
            dropped: 0,
            buffer: Vec::new(),
            config,
            _lock: lock,
        };
        if let Err(error) = journal.rotate(config.clock.boot_ns, 0, None) {
            let _ = std::fs::remove_dir(&journal.epoch_dir);
            return Err(error);
        }
        Ok(journal)
    }

    /// Appends whole records, one behind the other, at most [`Self::most_bytes`], and gives the number of the first.
    /// `ring_position` is where the ring's reader stands after them. `state` is what all records before them have come to: if a new
    /// segment begins here, a copy of it becomes its checkpoint a little later. Without it only the whole journal can be read.
    ///
    /// On an error from the disk the journal stops: the error is returned once, later calls count
    /// what they drop and succeed. Bytes that are not whole records ([`JournalError::NotRecords`])
    /// change nothing: the caller checks each record with [`crate::records::check`].
    pub fn append(
        &mut self,
        records: &[u8],
        ring_position: u64,
        state: Option<Folded<'_>>,
    ) -> Result<u64, JournalError> {
        let first = self.next;
        let tally = tally(records)?;
        if records.len() > self.most_bytes() {
            return Err(JournalError::TooMany {
                bytes: records.len() as u64,
                most: self.most_bytes() as u64,
            });
        }
        if let State::Stopped { .. } = self.state {
            self.next += tally.numbered;
            self.dropped += tally.numbered;
            return Ok(first);
        }
        let written = match records {
            [] => self.take_checkpoint(false),
            records => self
                .take_checkpoint(false)
                .and_then(|()| self.write(records, &tally, ring_position, state)),
        };
        if let Err(error) = written {
            self.dropped += tally.numbered;
            self.stop(&error);
            self.next += tally.numbered;
            return Err(error);
        }
        self.next += tally.numbered;
        self.share(false);
        Ok(first)
    }

    /// Makes room before it is needed: the loudest processes give way.
    fn share(&mut self, wait: bool) {
        let header_bytes = SEGMENT_HEADER as u64;
        let (besides, records) = self.next_size(0);
        let wanted = Wanted {
            dir: &self.dir,
            epoch_dir: &self.epoch_dir,
            newest: self.checkpoint_index,
            // Twice: while a segment is written anew another one fills, and checkpoints grow.
            needed: (besides + records).saturating_mul(2),
            most: self.config.total_bytes,
            small: (self.config.segment_bytes - header_bytes) / 16,
        };
        self.sharing.go_on(wanted, wait);
    }

    /// Waits until the checkpoint that is being written, if one is, can be read, and the loudest processes have made room.
    ///
    /// # Errors
    /// Those of [`Self::append`], after which the journal has stopped.
    pub fn settle(&mut self) -> Result<(), JournalError> {
        let taken = self.take_checkpoint(true);
        if let Err(error) = &taken {
            self.stop(error);
        }
        self.share(true);
        taken
    }

    /// Most bytes of records that can be appended at once: any so many fit into a segment.
    pub fn most_bytes(&self) -> usize {
        let segment = usize::try_from(self.config.segment_bytes).unwrap_or(BATCH_MOST);
        (segment - SEGMENT_HEADER - BATCH_HEADER).min(BATCH_MOST)
    }

    /// Whether the last checkpoint found no room, and what would help.
    pub fn too_small(&self) -> Option<TooSmall> {
        self.too_small
    }

    /// Why a segment could not be written anew without the loudest processes, if one could not: their records go with those of the others then.
    pub fn unshared(&self) -> Option<&str> {
        self.sharing.problem()
    }

    /// The pair of clock readings that the next segment's header gets.
    pub fn set_clock(&mut self, clock: ClockPair) {
        self.clock = clock;
    }

    /// Whether records reach the disk.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Records that a stopped journal did not take.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The number that the next record will have.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Where this epoch's segments lie: what [`crate::journal::Recording::open`] takes.
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

    /// Writes one batch, at the beginning of a new segment if the one at hand has no room.
    fn write(
        &mut self,
        records: &[u8],
        tally: &Tally,
        ring_position: u64,
        state: Option<Folded<'_>>,
    ) -> Result<(), JournalError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        frame(
            records,
            tally.count,
            (self.next, ring_position),
            &mut buffer,
        );
        let room = self.segment.as_ref().map_or(0, Segment::room);
        let written = if buffer.len() > room {
            self.rotate(first_time(records), buffer.len() as u64, state)
        } else {
            Ok(())
        };
        let written = written.and_then(|()| match &mut self.segment {
            Some(segment) => segment.write(&buffer),
            None => Ok(()),
        });
        let index = self.next_index.saturating_sub(1);
        self.sharing.written(index, tally, buffer.len() as u64);
        self.buffer = buffer;
        written
    }

    /// Ends the current segment and begins the next, with room for so many bytes at least.
    fn rotate(
        &mut self,
        first_boot_ns: u64,
        needed: u64,
        state: Option<Folded<'_>>,
    ) -> Result<(), JournalError> {
        // Only the newest segment is without a checkpoint: what cannot be read alone is of no use when those before it are gone.
        self.take_checkpoint(true)?;
        if let Some(segment) = self.segment.take() {
            segment.finish();
        }
        let mut segment =
            Segment::begin(&self.epoch_dir, self.next_index, self.config.segment_bytes)?;
        let opened = self.open(&mut segment, first_boot_ns, needed);
        if let Err(error) = opened {
            // The error that counts is the first one.
            segment.discard();
            return Err(error);
        }
        self.segment = Some(segment);
        // The first segment begins with nothing.
        if let Some(state) = state.filter(|_| self.next_index > 0) {
            let new = self.checkpoint_path().with_added_extension(UNFINISHED);
            self.writing = Some(Writing::begin(state, self.next_index, new)?);
        }
        self.next_index += 1;
        Ok(())
    }

    /// Where the checkpoint of the next segment belongs.
    fn checkpoint_path(&self) -> PathBuf {
        let name = format!("{:06}.{CHECKPOINT}", self.next_index);
        self.epoch_dir.join(name)
    }

    /// Puts a checkpoint that has been written into its place, and waits for that if it must.
    fn take_checkpoint(&mut self, wait: bool) -> Result<(), JournalError> {
        let is_due = |writing: &mut Writing| wait || writing.is_finished();
        let Some(writing) = self.writing.take_if(is_due) else {
            return Ok(());
        };
        let (index, new) = (writing.index, writing.new.clone());
        let shares = writing.finish()?;
        let bytes = shares.values().sum();
        self.checkpoint_bytes = bytes;
        let most = self.config.total_bytes;
        let smallest = SEGMENT_HEADER as u64 + bytes + self.config.segment_bytes;
        self.too_small = (smallest > most / 2).then(|| TooSmall {
            checkpoint_bytes: bytes,
            // Four segments of which a third is checkpoint.
            needed_bytes: (bytes + bytes.saturating_mul(2).max(self.config.segment_bytes)) * 4,
        });
        if self.too_small.is_some() {
            return std::fs::remove_file(&new)
                .map_err(|error| JournalError::of("remove", &new, 0, error));
        }
        // Without the last ending. From now on nobody needs the segments before it.
        std::fs::rename(&new, new.with_extension(""))
            .map_err(|error| JournalError::of("rename", &new, bytes, error))?;
        self.checkpoint_index = index;
        self.sharing.got_checkpoint(index, shares);
        let gone = retain::make_room(&self.dir, (&self.epoch_dir, index), 0, most)?;
        self.sharing.removed(&gone);
        Ok(())
    }

    /// Bytes of the next segment's header and checkpoint, and of its records, which are at least so many.
    fn next_size(&self, needed: u64) -> (u64, u64) {
        let header_bytes = SEGMENT_HEADER as u64;
        // The next checkpoint will be about as large as the last one.
        let besides = header_bytes + self.checkpoint_bytes;
        let most = (self.config.total_bytes / 4).saturating_sub(besides);
        let records = self
            .checkpoint_bytes
            .saturating_mul(2)
            .min(most)
            .max(self.config.segment_bytes - header_bytes)
            .max(needed);
        (besides, records)
    }

    /// Makes room for a segment, and gives it its header and its name.
    fn open(
        &mut self,
        segment: &mut Segment,
        first_boot_ns: u64,
        needed: u64,
    ) -> Result<(), JournalError> {
        let (besides, records) = self.next_size(needed);
        let size = SEGMENT_HEADER as u64 + records;
        // Until there is a checkpoint, whoever reads this segment begins with the one before it.
        let open = (self.epoch_dir.as_path(), self.next_index.saturating_sub(1));
        let most = self.config.total_bytes;
        let gone = retain::make_room(&self.dir, open, besides + records, most)?;
        self.sharing.removed(&gone);
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
            // It comes beside.
            checkpoint_bytes: 0,
            left_out: 0,
        };
        segment.open(&header, self.space.as_ref())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // What cannot be written now cannot be told either.
        let _ = self.take_checkpoint(true);
        self.sharing.finish(&self.epoch_dir);
        if let Some(segment) = &self.segment {
            segment.finish();
        }
    }
}

/// How often the lock is tried: whoever looks at it holds it for a moment ([`is_in_use`]).
const LOCK_TRIES: u32 = 5;
/// Between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Whether somebody writes a journal in this directory now.
pub fn is_in_use(dir: &Path) -> std::io::Result<bool> {
    match File::open(dir.join("lock")) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
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
    let mut tries = LOCK_TRIES;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if tries > 1 => tries -= 1,
            Err(TryLockError::WouldBlock) => {
                return Err(JournalError::InUse {
                    path: dir.to_path_buf(),
                });
            }
            Err(TryLockError::Error(error)) => {
                return Err(JournalError::of("lock", &path, 0, error));
            }
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

fn first_time(records: &[u8]) -> u64 {
    Header::read(records).map_or(0, |header| header.time_ns)
}
