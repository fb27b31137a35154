//! The reading side: a recording is a segment file, the directory of an epoch, or an exported file.

use crate::journal::batches::{Batches, Item};
use crate::journal::checkpoint::{self, Beginning, CheckpointPlace, Restored, SegmentFile};
use crate::journal::error::RecordingError;
use crate::journal::format::{
    BatchHeader, FORMAT_VERSION, HeaderFault, SEGMENT_HEADER, SEGMENT_MARK, SegmentHeader,
};
use crate::journal::parts::LeftOut;
use crate::journal::retain;
use crate::journal::tally::numbers;
use crate::journal::warning::Warning;
use crate::journal::window::Window;
use crate::records::Header;
use memscope_common::{KIND_LEFT_OUT, RECORD_VERSION};
use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How often a directory is read before giving up, if it changes while it is read.
const OPENED_AGAIN: u32 = 100;

/// A recording. Opening it reads only the headers; [`Recording::records`] reads the rest.
#[derive(Clone, Debug)]
pub struct Recording {
    path: PathBuf,
    files: Arc<[SegmentFile]>,
    /// The segments, from the first that can be read without those before it. Never empty.
    segments: Vec<SegmentPlace>,
    header: SegmentHeader,
    warnings: Vec<Warning>,
    /// Number of the last warnings that are about segments behind all that can be read.
    unread_end: usize,
}

/// A segment of a recording.
#[derive(Clone, Debug)]
pub struct SegmentPlace {
    /// The segment's header.
    pub header: SegmentHeader,
    beginning: Beginning,
    file: usize,
    at: u64,
}

impl SegmentPlace {
    /// Whether the segment can be read without those before it.
    pub fn stands_alone(&self) -> bool {
        self.beginning.checkpoint.is_some() || self.header.first_sequence <= 1
    }

    /// The processes that are left out of the segment: their records, and their part of the state at its beginning.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.beginning.left_out
    }

    /// Where the state at the beginning of the segment is stored, if it is.
    pub fn checkpoint(&self) -> Option<&CheckpointPlace> {
        self.beginning.checkpoint.as_ref()
    }

    /// Time of the segment's first record as nanoseconds since 1970, computed with the pair of clock readings in its
    /// header.
    pub fn first_unix_ns(&self) -> u64 {
        let header = &self.header;
        let unix = i128::from(header.clock.unix_ns) + i128::from(header.first_boot_ns)
            - i128::from(header.clock.boot_ns);
        u64::try_from(unix).unwrap_or(0)
    }
}

impl Recording {
    /// Opens a segment file, an exported file, or the directory of an epoch, which may belong to a journal that is
    /// being written.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let facts = fs::metadata(path).map_err(|error| RecordingError::of("open", path, error))?;
        if facts.is_dir() {
            return Self::open_dir(path);
        }
        if !facts.is_file() {
            return Err(RecordingError::NotARecording {
                path: path.to_path_buf(),
                looks: "is neither a file nor a directory",
            });
        }
        let (file, header) = read_header(path)?;
        let mut warnings = Vec::new();
        let segments = segments_of(&file, &header, &mut warnings)?;
        Self::begin(path, [file].into(), segments, (warnings, 0))
    }

    /// Leaves out the segments before the first one that can be read without those before it.
    fn begin(
        path: &Path,
        files: Arc<[SegmentFile]>,
        mut segments: Vec<SegmentPlace>,
        (warnings, unread_end): (Vec<Warning>, usize),
    ) -> Result<Self, RecordingError> {
        // Format 1 has no checkpoints: what is left of such a journal is read as far as possible, with the warning that
        // it begins late.
        let begins = |place: &SegmentPlace| place.stands_alone() || place.header.format_version < 2;
        let first =
            segments
                .iter()
                .position(begins)
                .ok_or_else(|| RecordingError::NoBeginning {
                    path: path.to_owned(),
                })?;
        segments.drain(..first);
        let header = segments.first().map(|place| place.header.clone());
        Ok(Self {
            path: path.to_path_buf(),
            files,
            header: header.ok_or_else(|| RecordingError::NoBeginning {
                path: path.to_owned(),
            })?,
            segments,
            warnings,
            unread_end,
        })
    }

    fn open_dir(path: &Path) -> Result<Self, RecordingError> {
        // A journal that is being written may be joining two segments, so that a file vanishes while the directory is
        // read. Joining takes longer than reading the directory again, so another try succeeds.
        for _ in 0..OPENED_AGAIN {
            if let Some(recording) = Self::open_segments(path)? {
                return Ok(recording);
            }
        }
        Err(RecordingError::Changing {
            path: path.to_path_buf(),
        })
    }

    /// Opens the segments that are there. Returns `None` if a segment between others vanished in the meantime.
    fn open_segments(path: &Path) -> Result<Option<Self>, RecordingError> {
        let found =
            retain::segments(path).map_err(|error| RecordingError::of("read", path, error))?;
        let mut files = Vec::new();
        let mut segments = Vec::new();
        let mut warnings = Vec::new();
        let mut unread_end = 0;
        let mut failure = None;
        for segment in found {
            let begun = read_header(&segment.path).and_then(|(file, header)| {
                let beginning = Beginning::read(&file, 0, &header)?;
                Ok((file, header, beginning))
            });
            match begun {
                Ok((file, header, beginning)) => {
                    segments.push(SegmentPlace {
                        beginning,
                        header,
                        file: files.len(),
                        at: 0,
                    });
                    files.push(file);
                    unread_end = 0;
                }
                // The running daemon has just removed it to keep the journal within its bound.
                Err(RecordingError::NotFound { .. }) if segments.is_empty() => {}
                Err(RecordingError::NotFound { .. }) => return Ok(None),
                // One unreadable segment does not prevent reading the others.
                Err(
                    error @ (RecordingError::Empty { .. }
                    | RecordingError::ShortHeader { .. }
                    | RecordingError::DamagedHeader { .. }
                    | RecordingError::NotARecording { .. }),
                ) => {
                    warnings.push(Warning::SegmentUnreadable {
                        path: segment.path,
                        reason: error.to_string(),
                    });
                    unread_end += 1;
                    failure.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        match (segments.is_empty(), failure) {
            (false, _) => {
                let warnings = (warnings, unread_end);
                Self::begin(path, files.into(), segments, warnings).map(Some)
            }
            (true, Some(failure)) => Err(failure),
            (true, None) => Err(RecordingError::NoSegments {
                path: path.to_path_buf(),
            }),
        }
    }

    /// The header of the first segment.
    pub fn header(&self) -> &SegmentHeader {
        &self.header
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The segments, from the first that can be read without those before it.
    pub fn segments(&self) -> &[SegmentPlace] {
        &self.segments
    }

    /// Returns the last segment that can be read without those before it and for which `is_before` holds, or the first
    /// segment if there is none.
    pub fn segment_before(&self, is_before: impl Fn(&SegmentPlace) -> bool) -> &SegmentPlace {
        let mut found = &self.segments[0];
        for place in &self.segments {
            if place.stands_alone() && is_before(place) {
                found = place;
            }
        }
        found
    }

    /// Returns the last segment before `place` that can be read without those before it: where to begin if the state
    /// of `place` cannot be read.
    pub fn before(&self, place: &SegmentPlace) -> Option<&SegmentPlace> {
        let key = |place: &SegmentPlace| (place.file, place.at);
        let mut before = self.segments.iter().rev();
        before.find(|one| key(one) < key(place) && one.stands_alone())
    }

    /// Returns the first segment that can be read without those before it and from which on no segment leaves out
    /// `process`.
    pub fn complete_from(&self, process: u32) -> Option<&SegmentPlace> {
        let is_left_out = |place: &SegmentPlace| {
            let mut left_out = place.left_out().iter();
            left_out.any(|one| one.process == process)
        };
        let last = self.segments.iter().rposition(is_left_out);
        let mut rest = self.segments.iter().skip(last.map_or(0, |last| last + 1));
        rest.find(|place| place.stands_alone())
    }

    /// Returns all records, from the first segment on.
    pub fn records(&self) -> Records {
        self.records_from(&self.segments[0])
    }

    /// Returns the records from the beginning of a segment on.
    pub fn records_from(&self, place: &SegmentPlace) -> Records {
        Records {
            batches: self.batches(place),
            batch: Vec::new(),
            at: 0,
            sequence: 0,
            ring_position: 0,
        }
    }

    fn batches(&self, place: &SegmentPlace) -> Batches {
        Batches::new(
            Arc::clone(&self.files),
            (place.file, place.at),
            self.header.epoch,
            self.warnings.clone(),
        )
    }

    /// Reads a checkpoint: the state of all processes, or only of those with the given pid. A checkpoint of format 2 is
    /// not divided by process, so its state may contain others, too.
    pub fn restore(
        &self,
        place: &CheckpointPlace,
        pid: Option<u32>,
    ) -> Result<Restored, RecordingError> {
        checkpoint::read(place, pid)
    }

    /// What is said of segments behind the last one that can be read. No later state makes up for them.
    pub fn unread_end(&self) -> &[Warning] {
        let from = self.warnings.len().saturating_sub(self.unread_end);
        self.warnings.get(from..).unwrap_or_default()
    }

    /// Writes the recording as a single file. An existing file is not overwritten. A file that cannot be written
    /// completely is removed.
    pub fn export(&self, to: &Path) -> Result<Exported, RecordingError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(to)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => RecordingError::ExportExists {
                    path: to.to_path_buf(),
                },
                _ => RecordingError::of("create", to, error),
            })?;
        let mut out = BufWriter::new(file);
        let exported = self.copy(&mut out, to);
        if exported.is_err() {
            // Return the first error, whether or not this removal succeeds.
            let _ = fs::remove_file(to);
        }
        exported
    }

    /// Writes the recording in the format of a single file.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<Exported, RecordingError> {
        self.copy(out, Path::new("the export"))
    }

    fn copy(&self, out: &mut dyn Write, to: &Path) -> Result<Exported, RecordingError> {
        let failed = |error| RecordingError::Io {
            doing: "write",
            path: to.to_path_buf(),
            source: error,
        };
        let mut batches = self.batches(&self.segments[0]);
        let mut exported = Exported::default();
        while let Some(item) = batches.next()? {
            let (bytes, checkpoint) = match item {
                Item::Segment(mut header, beginning) => {
                    let list = LeftOut::encode(&beginning.left_out);
                    let state = beginning.checkpoint.as_ref().map_or(0, |place| place.bytes);
                    header.checkpoint_bytes = list.len() as u64 + state;
                    ([header.encode(), list].concat(), beginning.checkpoint)
                }
                Item::Batch(batch) => {
                    exported.records += u64::from(batch.header.count);
                    let stored = batches.stored(&batch)?;
                    out.write_all(stored).map_err(failed)?;
                    exported.bytes += stored.len() as u64;
                    batches.reuse(batch.records);
                    continue;
                }
            };
            out.write_all(&bytes).map_err(failed)?;
            exported.bytes += bytes.len() as u64;
            if let Some(place) = checkpoint {
                exported.bytes += place.copy_to(out)?;
            }
        }
        out.flush().map_err(failed)?;
        exported.warnings = batches.warnings().to_vec();
        Ok(exported)
    }
}

/// Result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Bytes written.
    pub bytes: u64,
    /// Number of records written, repeated ones included.
    pub records: u64,
    /// What could not be read, and is therefore not in the export.
    pub warnings: Vec<Warning>,
}

/// One record of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Number of the record. A repeated record has no number; for it, this is the number of the next record. Pass it to
    /// [`crate::records::Decoder::seek`] before decoding the record.
    pub sequence: u64,
    /// The record is a copy in the preamble of a segment of format 1, and has no number.
    pub repeated: bool,
    /// Header of the record.
    pub header: Header,
    /// Position of the ring's reader after the record's batch.
    pub ring_position: u64,
    /// Bytes of the record.
    pub record: &'a [u8],
}

/// The next thing in a recording.
#[derive(Debug)]
pub enum Piece<'a> {
    /// A segment begins.
    Segment {
        /// Header of the segment.
        header: SegmentHeader,
        /// The state after all records before the segment, without the processes that are left out.
        checkpoint: Option<CheckpointPlace>,
        /// Processes that are left out of the segment.
        left_out: Arc<[LeftOut]>,
    },
    /// A record.
    Record(Entry<'a>),
}

/// What [`Records::read_on`] has read.
enum ReadOn {
    Segment(SegmentHeader, Beginning),
    Batch,
    End,
}

/// The records of a recording, in order.
#[derive(Debug)]
pub struct Records {
    batches: Batches,
    batch: Vec<u8>,
    at: usize,
    sequence: u64,
    ring_position: u64,
}

impl Records {
    /// Returns the next record, or `None` at the end. What cannot be read is skipped and listed in
    /// [`Records::warnings`]. Errors are those of the system, and a segment of another recording.
    pub fn next_record(&mut self) -> Result<Option<Entry<'_>>, RecordingError> {
        loop {
            if let Some(header) = self.at_record() {
                return Ok(self.entry(header));
            }
            if let ReadOn::End = self.read_on()? {
                return Ok(None);
            }
        }
    }

    /// Returns the next record, or the beginning of the next segment.
    pub fn next_piece(&mut self) -> Result<Option<Piece<'_>>, RecordingError> {
        let header = loop {
            if let Some(header) = self.at_record() {
                break header;
            }
            match self.read_on()? {
                ReadOn::Segment(header, beginning) => {
                    return Ok(Some(Piece::Segment {
                        header,
                        checkpoint: beginning.checkpoint,
                        left_out: beginning.left_out,
                    }));
                }
                ReadOn::Batch => {}
                ReadOn::End => return Ok(None),
            }
        };
        Ok(self.entry(header).map(Piece::Record))
    }

    /// Header of the next record in the batch, if there is another one. Skips the records that stand for left-out ones,
    /// and counts their numbers.
    fn at_record(&mut self) -> Option<Header> {
        loop {
            // A batch is only returned if its bytes are whole records.
            let header = Header::read(self.batch.get(self.at..)?).ok()?;
            if header.kind != KIND_LEFT_OUT {
                return Some(header);
            }
            self.at += header.len;
            self.sequence = self.sequence.saturating_add(header.sequence);
        }
    }

    fn read_on(&mut self) -> Result<ReadOn, RecordingError> {
        Ok(match self.batches.next()? {
            Some(Item::Segment(header, beginning)) => ReadOn::Segment(header, beginning),
            Some(Item::Batch(batch)) => {
                let read = std::mem::replace(&mut self.batch, batch.records);
                self.batches.reuse(read);
                self.at = 0;
                self.sequence = batch.header.first_sequence;
                self.ring_position = batch.header.ring_position;
                ReadOn::Batch
            }
            None => ReadOn::End,
        })
    }

    fn entry(&mut self, header: Header) -> Option<Entry<'_>> {
        let from = self.at;
        self.at = from.saturating_add(header.len);
        let record = self.batch.get(from..self.at)?;
        let repeated = header.is_repeated();
        let sequence = self.sequence;
        self.sequence = self.sequence.saturating_add(numbers(&header));
        Some(Entry {
            sequence,
            repeated,
            header,
            ring_position: self.ring_position,
            record,
        })
    }

    /// The records that come next in the batch at hand, which may be none.
    pub fn upcoming(&self) -> impl Iterator<Item = (Header, &[u8])> {
        let mut rest = self.batch.get(self.at..).unwrap_or_default();
        std::iter::from_fn(move || {
            let header = Header::read(rest).ok()?;
            let (record, behind) = rest.split_at_checked(header.len)?;
            rest = behind;
            Some((header, record))
        })
    }

    /// What was missing or could not be read so far.
    pub fn warnings(&self) -> &[Warning] {
        self.batches.warnings()
    }
}

pub(crate) fn read_header(path: &Path) -> Result<(SegmentFile, SegmentHeader), RecordingError> {
    let failed = |error| RecordingError::of("read", path, error);
    let segment = SegmentFile::open(path).map_err(failed)?;
    let mut window = Window::new(Arc::clone(&segment.file));
    let bytes = window.get(0, SEGMENT_HEADER).map_err(failed)?;
    let path = path.to_path_buf();
    if bytes.is_empty() {
        return Err(RecordingError::Empty { path });
    }
    let header = SegmentHeader::decode(bytes).map_err(|fault| match fault {
        HeaderFault::NotOurs => RecordingError::NotARecording {
            path,
            looks: looks(bytes),
        },
        HeaderFault::Short => RecordingError::ShortHeader {
            path,
            len: bytes.len() as u64,
        },
        HeaderFault::ByteOrder => RecordingError::ForeignByteOrder { path },
        HeaderFault::Damaged => RecordingError::DamagedHeader { path },
        HeaderFault::NewerFormat(found) => RecordingError::Newer {
            path,
            what: "format",
            found: u32::from(found),
            known: u32::from(FORMAT_VERSION),
        },
        HeaderFault::NewerRecords(found) => RecordingError::Newer {
            path,
            what: "record",
            found: u32::from(found),
            known: u32::from(RECORD_VERSION),
        },
        HeaderFault::OlderRecords(found) => RecordingError::Older {
            path,
            found: u32::from(found),
            known: u32::from(RECORD_VERSION),
        },
        HeaderFault::Architecture(found) => RecordingError::ForeignArchitecture {
            path,
            found,
            here: std::env::consts::ARCH,
        },
    })?;
    Ok((segment, header))
}

/// Finds the segments of a single file by going from header to header. One whose list of left-out processes is damaged is passed over.
fn segments_of(
    segment: &SegmentFile,
    first: &SegmentHeader,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<SegmentPlace>, RecordingError> {
    let failed = |error| RecordingError::of("read", &segment.path, error);
    let mut window = Window::new(Arc::clone(&segment.file));
    let mut segments = Vec::new();
    let mut at = 0;
    loop {
        let head = window.get(at, SEGMENT_HEADER).map_err(failed)?;
        if head.starts_with(&SEGMENT_MARK) {
            let Ok(header) = SegmentHeader::decode(head) else {
                break;
            };
            let bytes = header.checkpoint_bytes;
            match Beginning::read(segment, at, &header) {
                Ok(beginning) => segments.push(SegmentPlace {
                    beginning,
                    header,
                    file: 0,
                    at,
                }),
                Err(error @ RecordingError::DamagedHeader { .. }) => {
                    // Whoever reads on from a segment before it meets the damage.
                    if segments.is_empty() {
                        warnings.push(Warning::SegmentUnreadable {
                            path: segment.path.clone(),
                            reason: error.to_string(),
                        });
                    }
                }
                Err(error) => return Err(error),
            }
            at = at
                .saturating_add(SEGMENT_HEADER as u64)
                .saturating_add(bytes);
        } else if let Some((batch, _)) = BatchHeader::decode(head) {
            at += batch.header_len as u64 + u64::from(batch.stored);
        } else {
            // The end of the file, or damage. Segments after the damage are found when the records are read.
            break;
        }
    }
    if segments.is_empty() {
        segments.push(SegmentPlace {
            beginning: Beginning::read(segment, 0, first)?,
            header: first.clone(),
            file: 0,
            at: 0,
        });
    }
    Ok(segments)
}

/// What a file that is not a recording looks like.
fn looks(bytes: &[u8]) -> &'static str {
    let begins = |mark: &[u8]| bytes.starts_with(mark);
    match bytes {
        [0x80, 2..=5, ..] => "looks like a pickle (a PyTorch snapshot?)",
        _ if begins(&[0x1f, 0x8b]) => "is compressed with gzip",
        _ if begins(&[0x28, 0xb5, 0x2f, 0xfd]) => "is compressed with zstd",
        _ if begins(b"PK\x03\x04") => "is a zip archive",
        _ if begins(b"\x7fELF") => "is a program or library",
        _ if begins(b"SQLite format 3") => "is a SQLite database",
        _ if bytes.iter().all(|byte| *byte == 0) => "begins with zeros",
        _ if begins(b"{") || begins(b"[") => "looks like JSON",
        _ if std::str::from_utf8(bytes).is_ok_and(|text| !text.contains('\0')) => "looks like text",
        _ => "does not begin as one",
    }
}
