//! The writing side of the journal.

use crate::journal::checkpoint::{Folded, Writing};
use crate::journal::config::Config;
use crate::journal::error::JournalError;
use crate::journal::format::{
    BATCH_HEADER, BATCH_MOST, ClockPair, FORMAT_VERSION, SEGMENT_HEADER, SegmentHeader,
};
use crate::journal::learning::Learning;
use crate::journal::pack::Packer;
use crate::journal::retain;
use crate::journal::segment::{CHECKPOINT, Disk, Segment, Space, UNFINISHED, create_anew};
use crate::journal::sharing::{Sharing, Wanted};
use crate::journal::tally::{Tally, tally};
use crate::records::Header;
use memscope_common::RECORD_VERSION;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Whether records reach the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Records are written.
    Running,
    /// Records are not written, since the error that `append` has returned.
    Stopped {
        /// The error in words.
        reason: String,
        /// Number of the first record that was not written.
        from_sequence: u64,
        /// Whether there was no room on the disk.
        is_full: bool,
    },
}

/// The state is too large for a journal of this size. Its checkpoint is not kept, so the segment cannot be read without
/// those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall {
    /// Size of the checkpoint in bytes.
    pub checkpoint_bytes: u64,
    /// Minimum size that the journal should have, in bytes.
    pub needed_bytes: u64,
}

/// A journal open for writing.
///
/// Records get numbers whether or not the disk accepts them, so a journal that has stopped counts on as
/// [`crate::records::Decoder`] does.
pub struct Journal {
    dir: PathBuf,
    pub(crate) epoch_dir: PathBuf,
    config: Config,
    space: Arc<dyn Space>,
    state: State,
    segment: Option<Segment>,
    pub(crate) next_index: u64,
    /// The checkpoint that another thread is writing.
    pub(crate) writing: Option<Writing>,
    /// Size of the last checkpoint in bytes; the next field is the number of its segment.
    pub(crate) checkpoint_bytes: u64,
    pub(crate) checkpoint_index: u64,
    /// After a resumption, until the first checkpoint is written: the oldest segment that a reader needs.
    pub(crate) keep_from: Option<u64>,
    /// The last checkpoint could not be written, as on a full disk.
    lacks_checkpoint: bool,
    /// Bytes that a checkpoint needs at least for which there was no room.
    refused_bytes: u64,
    sharing: Sharing,
    /// After a resumption: what the segments from before hold is being found out.
    pub(crate) learning: Option<Learning>,
    /// Number of the next record.
    pub(crate) next: u64,
    clock: ClockPair,
    /// Set if there was no room for the last checkpoint: how much it needs.
    too_small: Option<TooSmall>,
    dropped: u64,
    packer: Packer,
    buffer: Vec<u8>,
    /// Held until the journal is dropped. Its content says which number comes next while records are not written: see
    /// [`Journal::note_number`].
    lock: File,
    /// Number up to which an earlier writer of this epoch has counted on without writing; 0 if it has not.
    pub(crate) noted: u64,
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
    /// Begins a new epoch in `dir` (`<state-dir>/journal`), and takes the directory's lock. The directory is made if it
    /// does not exist. The first segment exists when this returns.
    pub fn create(dir: &Path, config: Config) -> Result<Self, JournalError> {
        Self::create_in(dir, config, Box::new(Disk))
    }

    pub(crate) fn create_in(
        dir: &Path,
        config: Config,
        space: Box<dyn Space>,
    ) -> Result<Self, JournalError> {
        match Self::create_or_wait_in(dir, config, space)? {
            (journal, None) => Ok(journal),
            (journal, Some(error)) => {
                let _ = std::fs::remove_dir(&journal.epoch_dir);
                Err(error)
            }
        }
    }

    /// The same, but a disk that takes no first segment is no reason to fail: then the journal begins stopped, as after an error of
    /// [`Self::append`], and the disk's error is returned beside it.
    ///
    /// # Errors
    /// Where the directory cannot be made or locked, or there is a journal with this epoch.
    pub fn create_or_wait(
        dir: &Path,
        config: Config,
    ) -> Result<(Self, Option<JournalError>), JournalError> {
        Self::create_or_wait_in(dir, config, Box::new(Disk))
    }

    pub(crate) fn create_or_wait_in(
        dir: &Path,
        config: Config,
        space: Box<dyn Space>,
    ) -> Result<(Self, Option<JournalError>), JournalError> {
        let mut journal = Self::prepare(dir, config, space)?;
        if journal.epoch_dir.exists() {
            return Err(JournalError::EpochTaken {
                path: journal.epoch_dir.clone(),
            });
        }
        let failed = journal.rotate(config.clock.boot_ns, 0, None).err();
        if let Some(error) = &failed {
            journal.stop(error);
        }
        Ok((journal, failed))
    }

    /// Takes the directory's lock and removes unfinished files. The journal has no segment yet.
    pub(crate) fn prepare(
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
        let noted = noted_number(&lock, config.epoch);
        let journal = Self {
            dir: dir.to_path_buf(),
            epoch_dir: epoch_dir(dir, config.epoch),
            space: space.into(),
            state: State::Running,
            segment: None,
            next_index: 0,
            writing: None,
            checkpoint_bytes: 0,
            checkpoint_index: 0,
            keep_from: None,
            lacks_checkpoint: false,
            refused_bytes: 0,
            sharing: Sharing::default(),
            learning: None,
            next: 1,
            clock: config.clock,
            too_small: None,
            dropped: 0,
            packer: Packer::default(),
            buffer: Vec::new(),
            config,
            lock,
            noted,
        };
        // On a disk that is full later, what is there can be written over.
        journal.write_number(noted);
        Ok(journal)
    }

    /// Writes down which number comes next. While the journal is stopped, readers of events are told of records that are in no
    /// segment. If the daemon is killed then, the next one must not give their numbers to others.
    fn note_number(&self) {
        self.write_number(self.next);
    }

    fn write_number(&self, next: u64) {
        let bytes: Vec<u8> = [self.config.epoch, next]
            .into_iter()
            .flat_map(u64::to_ne_bytes)
            .collect();
        // If this fails there is no other place: the disk takes nothing at all.
        let _ = self.lock.write_all_at(&bytes, 0);
    }

    /// Appends whole records that follow one another, at most [`Self::most_bytes`], and returns the number of the
    /// first. `ring_position` is the position of the ring's reader after them. `state` is the state after all records
    /// before them: if a new segment begins here, another thread writes a copy of it as the segment's checkpoint.
    /// Without a state, the segment can only be read together with those before it.
    ///
    /// On an error from the disk the journal stops: the error is returned once, and later calls succeed but only count
    /// the records that they drop. Bytes that are not whole records ([`JournalError::NotRecords`]) change nothing; the
    /// caller should check each record with [`crate::records::check`].
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
            self.note_number();
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
            self.note_number();
            return Err(error);
        }
        self.next += tally.numbered;
        self.share(false);
        Ok(first)
    }

    /// Makes room before it is needed, at the cost of the processes with the most records.
    fn share(&mut self, wait: bool) {
        if let Some(learning) = self.learning.take_if(|one| wait || one.is_finished()) {
            self.sharing.learnt(learning.finish());
        }
        // Who takes how much is not known yet: until then whole segments go, the oldest first.
        if self.learning.is_some() {
            return;
        }
        let header_bytes = SEGMENT_HEADER as u64;
        let (besides, records) = self.next_size(0);
        let wanted = Wanted {
            dir: &self.dir,
            epoch_dir: &self.epoch_dir,
            newest: self.checkpoint_index,
            // Twice the size of the next segment: while one segment is rewritten another one fills, and checkpoints
            // grow.
            needed: (besides + records).saturating_mul(2),
            most: self.config.total_bytes,
            small: (self.config.segment_bytes - header_bytes) / 16,
        };
        self.sharing.go_on(wanted, wait);
    }

    /// Waits until a checkpoint that is being written can be read, and until the processes with the most records have
    /// made room.
    ///
    /// # Errors
    /// The errors of [`Self::append`], after which the journal has stopped.
    pub fn settle(&mut self) -> Result<(), JournalError> {
        let taken = self.take_checkpoint(true);
        if let Err(error) = &taken {
            self.stop(error);
        }
        self.share(true);
        taken
    }

    /// Maximum number of bytes of records that can be appended at once. Any records of this size fit into one segment.
    pub fn most_bytes(&self) -> usize {
        let segment = usize::try_from(self.config.segment_bytes).unwrap_or(BATCH_MOST);
        (segment - SEGMENT_HEADER - BATCH_HEADER).min(BATCH_MOST)
    }

    /// Whether a copy of the state exists while another thread writes it down as a checkpoint.
    pub fn is_writing_checkpoint(&self) -> bool {
        self.writing
            .as_ref()
            .is_some_and(|writing| !writing.is_finished())
    }

    /// Set if there was no room for the last checkpoint: how large the journal should be.
    pub fn too_small(&self) -> Option<TooSmall> {
        self.too_small
    }

    /// Why a segment could not be rewritten without the processes with the most records, if that failed. Such a segment
    /// is later removed as a whole, with the records of all its processes.
    pub fn unshared(&self) -> Option<&str> {
        self.sharing.problem()
    }

    /// Sets the pair of clock readings for the header of the next segment.
    pub fn set_clock(&mut self, clock: ClockPair) {
        self.clock = clock;
    }

    /// Whether records reach the disk.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Number of records that the journal has dropped while it was stopped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Number that the next record will get.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Directory of this epoch's segments, as [`crate::journal::Recording::open`] accepts it.
    pub fn epoch_dir(&self) -> &Path {
        &self.epoch_dir
    }

    /// Tries to go on after a stop. The next append begins a new segment with the state of then, and a reader sees the
    /// gap. If the disk still takes nothing, that append stops the journal again.
    pub fn resume(&mut self) {
        self.state = State::Running;
    }

    pub(crate) fn stop(&mut self, error: &JournalError) {
        if let Some(segment) = self.segment.take() {
            segment.finish();
        }
        self.state = State::Stopped {
            reason: error.to_string(),
            from_sequence: self.next,
            is_full: matches!(error, JournalError::NoSpace { .. }),
        };
    }

    /// Writes one batch. If the current segment has no room for it, a new segment begins.
    fn write(
        &mut self,
        records: &[u8],
        tally: &Tally,
        ring_position: u64,
        state: Option<Folded<'_>>,
    ) -> Result<(), JournalError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        self.packer.frame(
            records,
            tally.count,
            (self.next, ring_position),
            &mut buffer,
        );
        let room = self.segment.as_ref().map_or(0, Segment::room);
        let missing = buffer.len().saturating_sub(room);
        let written = if missing > 0 && !self.lengthen(missing as u64) {
            // A record may be of an earlier moment than those before it, and the state that the segment begins with is not.
            let state_ns = state.map_or(0, |state| state.ledger.last_ns());
            let begins_ns = first_time(records).max(state_ns);
            self.rotate(begins_ns, buffer.len() as u64, state)
        } else {
            Ok(())
        };
        let written = written.and_then(|()| match &mut self.segment {
            Some(segment) => segment.write(&buffer),
            None => Ok(()),
        });
        if written.is_ok() {
            let index = self.next_index.saturating_sub(1);
            let packed = buffer.len() as u64;
            self.sharing.written(index, self.next, tally, packed);
        }
        self.buffer = buffer;
        written
    }

    /// Gives the current segment at least `missing` more bytes, if the next one cannot begin yet because the checkpoint of this one is
    /// still being written: on a slow disk that takes long, and meanwhile the ring would fill. Returns whether there is room now. A segment
    /// takes at most half of the journal.
    fn lengthen(&mut self, missing: u64) -> bool {
        let more = self.config.segment_bytes.max(missing);
        let most = self.config.total_bytes;
        let needed_from = self.needed_from().min(self.checkpoint_index);
        let (Some(writing), Some(segment)) = (&self.writing, &mut self.segment) else {
            return false;
        };
        if segment.size() + more > most / 2 || writing.finishes_soon() {
            return false;
        }
        let open = (self.epoch_dir.as_path(), needed_from);
        // If it cannot be lengthened, the next segment begins, which says why there is no room.
        let Ok(gone) = retain::make_room(&self.dir, open, more, most) else {
            return false;
        };
        self.sharing.removed(&gone);
        segment.lengthen(more, self.space.as_ref()).is_ok()
    }

    /// Ends the current segment and begins the next, with room for at least `needed` bytes.
    fn rotate(
        &mut self,
        first_boot_ns: u64,
        needed: u64,
        state: Option<Folded<'_>>,
    ) -> Result<(), JournalError> {
        // Only the newest segment may be without a checkpoint: a segment that needs those before it is useless when
        // they are gone.
        self.take_checkpoint(true)?;
        if let Some(segment) = self.segment.take() {
            segment.finish();
        }
        self.find_room_for_state(needed)?;
        let segment = loop {
            match self.begin(first_boot_ns, needed) {
                Ok(segment) => break segment,
                // What is written now is worth more than what is oldest.
                Err(error) if error.is_full() && self.remove_oldest()? => {}
                Err(error) => return Err(error),
            }
        };
        self.segment = Some(segment);
        // The first segment needs no checkpoint, unless records came before it that were not written.
        if let Some(state) = state.filter(|_| self.next_index > 0 || self.next > 1) {
            let new = self.checkpoint_path().with_added_extension(UNFINISHED);
            self.lacks_checkpoint = true;
            let space = Arc::clone(&self.space);
            self.writing = Some(Writing::begin(state, self.next_index, new, space)?);
            self.lacks_checkpoint = false;
        }
        self.next_index += 1;
        Ok(())
    }

    /// Makes the file of the next segment.
    fn begin(&mut self, first_boot_ns: u64, needed: u64) -> Result<Segment, JournalError> {
        if self.next_index == 0 {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.epoch_dir)
                .map_err(|error| JournalError::of("make", &self.epoch_dir, 0, error))?;
        }
        let mut segment =
            Segment::begin(&self.epoch_dir, self.next_index, self.config.segment_bytes)?;
        match self.open(&mut segment, first_boot_ns, needed) {
            Ok(()) => Ok(segment),
            // The first error counts, whether or not this removal succeeds.
            Err(error) => {
                segment.discard();
                Err(error)
            }
        }
    }

    /// Number of the oldest segment that a reader of the newest records needs.
    fn needed_from(&self) -> u64 {
        // Until the next segment has a checkpoint, a reader begins with the segment before it, so that one must stay. If
        // that one's own could not be written, a reader begins with the last one that has any.
        let before = self.next_index.saturating_sub(1);
        let before = if self.lacks_checkpoint {
            self.checkpoint_index
        } else {
            before
        };
        self.keep_from.unwrap_or(before)
    }

    /// Removes the segment that goes first, whatever the bound of the journal is, because the disk is full. Returns
    /// whether there was one.
    fn remove_oldest(&mut self) -> Result<bool, JournalError> {
        let needed_from = self.needed_from().min(self.checkpoint_index);
        let open = (self.epoch_dir.as_path(), needed_from);
        let Some(gone) = retain::remove_first(&self.dir, open)? else {
            return Ok(false);
        };
        self.sharing.removed(&gone);
        Ok(true)
    }

    /// Path of the checkpoint of the segment that begins next.
    fn checkpoint_path(&self) -> PathBuf {
        let name = format!("{:06}.{CHECKPOINT}", self.next_index);
        self.epoch_dir.join(name)
    }

    /// Where the last segment has no checkpoint because there was no room for it: whether there is room now. Without this look, each try
    /// to go on would leave one more segment that cannot be read without those before it, and nothing before them could go any more.
    fn find_room_for_state(&mut self, needed: u64) -> Result<(), JournalError> {
        if !self.lacks_checkpoint || self.refused_bytes == 0 {
            return Ok(());
        }
        let path = self.checkpoint_path().with_added_extension(UNFINISHED);
        loop {
            let found = self.try_room(&path, needed);
            // What is found is given back for the checkpoint. If that fails, the checkpoint's own file cannot be made either.
            let _ = std::fs::remove_file(&path);
            match found {
                Err(error) if error.is_full() && self.remove_oldest()? => {}
                found => return found,
            }
        }
    }

    fn try_room(&self, path: &Path, records: u64) -> Result<(), JournalError> {
        // The segment takes its room first.
        let (_, records) = self.next_size(records);
        let segment = SEGMENT_HEADER as u64 + records;
        let needed = segment + self.refused_bytes.max(self.checkpoint_bytes);
        let failed = |error| JournalError::of("allocate", path, needed, error);
        let file = create_anew(path).map_err(failed)?;
        self.space.allocate(&file, needed).map_err(failed)
    }

    /// Renames a finished checkpoint to its final name. With `wait`, waits until it is finished.
    fn take_checkpoint(&mut self, wait: bool) -> Result<(), JournalError> {
        let is_due = |writing: &mut Writing| wait || writing.is_finished();
        let (index, new, shares) = loop {
            let Some(writing) = self.writing.take_if(is_due) else {
                return Ok(());
            };
            let (index, new) = (writing.index, writing.new.clone());
            self.lacks_checkpoint = true;
            match writing.finish() {
                Ok(shares) => break (index, new, shares),
                Err(unwritten) => {
                    self.refused_bytes = unwritten.bytes + 1;
                    // The state of now is worth more than what is oldest.
                    if !unwritten.error.is_full() || !self.remove_oldest()? {
                        return Err(unwritten.error);
                    }
                    self.writing = Some(unwritten.again()?);
                }
            }
        };
        let bytes = shares.values().sum();
        self.checkpoint_bytes = bytes;
        let most = self.config.total_bytes;
        let smallest = SEGMENT_HEADER as u64 + bytes + self.config.segment_bytes;
        self.too_small = (smallest > most / 2).then(|| TooSmall {
            checkpoint_bytes: bytes,
            // Room for four segments that consist of checkpoint and records to equal parts.
            needed_bytes: (bytes + bytes.max(self.config.segment_bytes)) * 4,
        });
        if self.too_small.is_some() {
            self.lacks_checkpoint = false;
            self.refused_bytes = 0;
            // No checkpoint will ever take the place of what an earlier writer has left, and the bound holds nevertheless.
            self.keep_from = None;
            return std::fs::remove_file(&new)
                .map_err(|error| JournalError::of("remove", &new, 0, error));
        }
        // `with_extension` removes the ending that marks the file as unfinished. From now on no reader needs the
        // segments before it.
        std::fs::rename(&new, new.with_extension(""))
            .map_err(|error| JournalError::of("rename", &new, bytes, error))?;
        self.checkpoint_index = index;
        self.lacks_checkpoint = false;
        self.refused_bytes = 0;
        self.keep_from = None;
        self.sharing.got_checkpoint(index, shares);
        let gone = retain::make_room(&self.dir, (&self.epoch_dir, index), 0, most)?;
        self.sharing.removed(&gone);
        Ok(())
    }

    /// Bytes of the next segment's header and checkpoint, and bytes of its records, which are at least `needed`.
    fn next_size(&self, needed: u64) -> (u64, u64) {
        let header_bytes = SEGMENT_HEADER as u64;
        // The next checkpoint will be about as large as the last one.
        let besides = header_bytes + self.checkpoint_bytes;
        let most = (self.config.total_bytes / 4).saturating_sub(besides);
        let records = self
            .checkpoint_bytes
            .min(most)
            .max(self.config.segment_bytes - header_bytes)
            .max(needed);
        (besides, records)
    }

    /// Makes room for a segment, writes its header, and renames it to its final name.
    fn open(
        &mut self,
        segment: &mut Segment,
        first_boot_ns: u64,
        needed: u64,
    ) -> Result<(), JournalError> {
        let (besides, records) = self.next_size(needed);
        let size = SEGMENT_HEADER as u64 + records;
        let open = (self.epoch_dir.as_path(), self.needed_from());
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
            // The checkpoint is written to a file beside the segment.
            checkpoint_bytes: 0,
            left_out: 0,
        };
        segment.open(&header, self.space.as_ref())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // An error can no longer be reported here.
        let _ = self.take_checkpoint(true);
        if let Some(learning) = self.learning.take() {
            learning.give_up();
        }
        self.sharing.finish(&self.epoch_dir);
        if let Some(segment) = &self.segment {
            segment.finish();
        }
    }
}

/// How often taking the lock is tried. [`is_in_use`] holds it for a moment, so one failure proves nothing.
const LOCK_TRIES: u32 = 5;
/// Pause between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Whether a daemon is writing a journal in this directory.
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

/// Directories of the epochs in a journal's directory that have segments and that no daemon is writing now, in the order in which they
/// were written to last.
pub fn ended_epochs(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = retain::epochs(dir)?;
    if is_in_use(dir)? {
        let mut epoch = [0; 8];
        match File::open(dir.join("lock"))?.read_exact_at(&mut epoch, 0) {
            // It may have no segment, as on a full disk, and times of files follow a clock that may have been set back.
            Ok(()) => {
                let running = epoch_dir(dir, u64::from_ne_bytes(epoch));
                found.retain(|path| *path != running);
            }
            // On a disk that took nothing it could not be written down.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                found.pop();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn epoch_dir(dir: &Path, epoch: u64) -> PathBuf {
    dir.join(format!("{epoch:020}"))
}

fn lock(dir: &Path) -> Result<File, JournalError> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .read(true)
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

/// The number that the writer of this epoch has noted in the lock; 0 if there is none.
fn noted_number(lock: &File, epoch: u64) -> u64 {
    let mut bytes = [0; 16];
    if lock.read_exact_at(&mut bytes, 0).is_err() {
        return 0;
    }
    let word = |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk);
    let words = [word(0), word(8)].map(|word| word.map_or(0, |word| u64::from_ne_bytes(*word)));
    if words[0] == epoch { words[1] } else { 0 }
}

fn first_time(records: &[u8]) -> u64 {
    Header::read(records).map_or(0, |header| header.time_ns)
}
