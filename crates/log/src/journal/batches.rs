//! Reads the segments and batches of a recording in order, and reports what is damaged or missing between them.

use crate::journal::checkpoint::{Beginning, SegmentFile};
use crate::journal::error::RecordingError;
use crate::journal::format::{
    ALIGN, BATCH_HEADER, BATCH_MARK, BatchHeader, PLAIN_BATCH_MARK, Packing, SEGMENT_HEADER,
    SEGMENT_MARK, SegmentHeader,
};
use crate::journal::pack::Unpacker;
use crate::journal::tally::{Tally, tally};
use crate::journal::warning::Warning;
use crate::journal::window::Window;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes read at once during the search for the next batch.
const STRIDE: usize = 64 << 10;
/// Maximum number of bytes of supposed batches whose check sums are computed in one search. A file that was made to
/// look full of batches must not cost more than reading it a few times.
const SEARCH_BUDGET: u64 = 64 << 20;

/// Iterates over the segments and batches in the files of a recording.
#[derive(Debug)]
pub(crate) struct Batches {
    files: Arc<[SegmentFile]>,
    file: usize,
    open: Option<Window>,
    at: u64,
    epoch: u64,
    /// Number that the next record must have; `None` before the first segment.
    expected: Option<u64>,
    /// The current segment leaves out some processes. Then the segment after it may have been joined with it already.
    is_thinned: bool,
    /// The current segment begins with records that were already read: it was joined with the segment before it, and
    /// its file has not been removed yet.
    was_read: bool,
    warnings: Vec<Warning>,
    unpacker: Unpacker,
    /// Memory for the records of the next batch.
    spare: Vec<u8>,
}

/// The next thing in a recording.
pub(crate) enum Item {
    /// A segment begins. Given are its header, its checkpoint and its list of left-out processes.
    Segment(SegmentHeader, Beginning),
    Batch(Batch),
}

/// A batch that was read and checked.
pub(crate) struct Batch {
    pub(crate) header: BatchHeader,
    /// The unpacked records.
    pub(crate) records: Vec<u8>,
    /// Offset in the file.
    at: u64,
}

impl Batch {
    /// Bytes that the batch takes in the file, header included.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.header.header_len as u64 + u64::from(self.header.stored)
    }
}

/// What is at an offset of a file.
enum AtPlace {
    Segment(SegmentHeader),
    Batch(Batch, Tally),
    Nothing,
}

/// Result of a search for the next batch or segment header.
enum Search {
    Found(u64),
    /// There are only zeros up to the end of the file.
    Zeros,
    /// No batch was found. The last byte that is not zero is before this offset.
    Lost(u64),
}

impl Batches {
    /// Begins at an offset of one of the files.
    pub(crate) fn new(
        files: Arc<[SegmentFile]>,
        (file, at): (usize, u64),
        epoch: u64,
        warnings: Vec<Warning>,
    ) -> Self {
        Self {
            files,
            file,
            open: None,
            at,
            epoch,
            expected: None,
            is_thinned: false,
            was_read: false,
            warnings,
            unpacker: Unpacker::default(),
            spare: Vec::new(),
        }
    }

    /// The batch that was returned last, as it is in the file, header included.
    pub(crate) fn stored(&mut self, batch: &Batch) -> Result<&[u8], RecordingError> {
        let (Some(window), Some(segment)) = (&mut self.open, self.files.get(self.file)) else {
            return Ok(&[]);
        };
        let len = usize::try_from(batch.stored_bytes()).unwrap_or(usize::MAX);
        let read = window.get(batch.at, len);
        read.map_err(|error| RecordingError::of("read", &segment.path, error))
    }

    /// Takes back the memory of a batch's records, for the next batch.
    pub(crate) fn reuse(&mut self, records: Vec<u8>) {
        self.spare = records;
    }

    /// Where in the file at hand what comes next would stand.
    pub(crate) fn place_of_next(&self) -> u64 {
        self.at
    }

    pub(crate) fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Returns the next segment or batch, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Item>, RecordingError> {
        loop {
            let Some(segment) = self.files.get(self.file).cloned() else {
                return Ok(None);
            };
            if self.open.is_none() {
                self.open = Some(Window::new(Arc::clone(&segment.file)));
            }
            let path = segment.path.clone();
            match self.place(self.at, &path)? {
                AtPlace::Segment(header) => {
                    let beginning = match Beginning::read(&segment, self.at, &header) {
                        Err(RecordingError::DamagedHeader { .. }) => {
                            self.search_on(path)?;
                            continue;
                        }
                        other => other?,
                    };
                    let state = self.at.saturating_add(SEGMENT_HEADER as u64);
                    let len = segment.len()?;
                    self.at = state.saturating_add(header.checkpoint_bytes);
                    if self.at > len {
                        self.warnings.push(Warning::Truncated {
                            path: path.clone(),
                            at: state,
                            lost_bytes: len.saturating_sub(state),
                        });
                    }
                    let repeats = self
                        .expected
                        .is_some_and(|next| header.first_sequence < next);
                    self.was_read = repeats && self.is_thinned;
                    self.is_thinned = !beginning.left_out.is_empty() || self.was_read;
                    self.begin(&header, beginning.checkpoint.is_some(), &path)?;
                    if !self.was_read {
                        return Ok(Some(Item::Segment(header, beginning)));
                    }
                }
                AtPlace::Batch(batch, tally) => {
                    let at = self.at;
                    self.at += batch.stored_bytes();
                    if self.in_order(&batch.header, &tally, at, &path) {
                        return Ok(Some(Item::Batch(batch)));
                    }
                }
                AtPlace::Nothing => self.search_on(path)?,
            }
        }
    }

    fn begin(
        &mut self,
        header: &SegmentHeader,
        has_state: bool,
        path: &Path,
    ) -> Result<(), RecordingError> {
        if header.epoch != self.epoch {
            return Err(RecordingError::MixedEpochs {
                path: path.to_path_buf(),
                epoch: self.epoch,
                found: header.epoch,
            });
        }
        match self.expected {
            None => {
                if header.first_sequence > 1 && !has_state {
                    self.warnings.push(Warning::BeginsLate {
                        first_sequence: header.first_sequence,
                    });
                }
                self.expected = Some(header.first_sequence);
            }
            Some(expected) => self.missing(expected, header.first_sequence),
        }
        Ok(())
    }

    fn missing(&mut self, expected: u64, found: u64) {
        if found > expected {
            self.warnings.push(Warning::Missing {
                from_sequence: expected,
                records: found - expected,
            });
            self.expected = Some(found);
        }
    }

    fn in_order(&mut self, header: &BatchHeader, tally: &Tally, at: u64, path: &Path) -> bool {
        let expected = self.expected.unwrap_or(header.first_sequence);
        if header.first_sequence < expected {
            let end = header.first_sequence.saturating_add(tally.numbered);
            if !self.was_read || end > expected {
                self.warnings.push(Warning::OutOfOrder {
                    path: path.to_path_buf(),
                    at,
                });
            }
            return false;
        }
        self.missing(expected, header.first_sequence);
        self.expected = Some(header.first_sequence.saturating_add(tally.numbered));
        true
    }

    /// Reads what is at an offset of the open file.
    fn place(&mut self, at: u64, path: &Path) -> Result<AtPlace, RecordingError> {
        let Some(window) = &mut self.open else {
            return Ok(AtPlace::Nothing);
        };
        let failed = |error| RecordingError::of("read", path, error);
        let head = window.get(at, SEGMENT_HEADER).map_err(failed)?;
        if head.starts_with(&SEGMENT_MARK) {
            return Ok(match SegmentHeader::decode(head) {
                Ok(header) => AtPlace::Segment(header),
                Err(_) => AtPlace::Nothing,
            });
        }
        let Some((header, crc)) = BatchHeader::decode(head) else {
            return Ok(AtPlace::Nothing);
        };
        let len = header.header_len + header.stored as usize;
        let bytes = window.get(at, len).map_err(failed)?;
        if bytes.len() < len {
            return Ok(AtPlace::Nothing);
        }
        let stored = bytes.get(header.header_len..).unwrap_or_default();
        if header.crc(stored) != crc {
            return Ok(AtPlace::Nothing);
        }
        let mut records = std::mem::take(&mut self.spare);
        let len = header.len as usize;
        let is_whole = match header.packing {
            Packing::Plain => {
                records.clear();
                let plain = stored.get(..len);
                plain
                    .map(|plain| records.extend_from_slice(plain))
                    .is_some()
            }
            Packing::Packed => self.unpacker.unpack(stored, len, &mut records).is_ok(),
            // Such a batch is only reached here if the beginning of its segment is damaged.
            Packing::Checkpoint | Packing::LeftOut => false,
        };
        if !is_whole {
            return Ok(AtPlace::Nothing);
        }
        match tally(&records) {
            Ok(tally) if tally.count == header.count => {
                let batch = Batch {
                    header,
                    records,
                    at,
                };
                Ok(AtPlace::Batch(batch, tally))
            }
            _ => Ok(AtPlace::Nothing),
        }
    }

    fn next_file(&mut self) {
        self.open = None;
        self.file += 1;
        self.at = 0;
    }

    /// Called when nothing can be read at `self.at`: goes to the next readable place in this file, or to the next file.
    fn search_on(&mut self, path: PathBuf) -> Result<(), RecordingError> {
        let at = self.at;
        let found = self.search(at, &path)?;
        // A journal may be written to while it is read: what follows may have come after this place was looked at.
        if !matches!(found, Search::Zeros) {
            let segment = self.files.get(self.file).cloned();
            let file = segment.as_ref().map(|segment| Arc::clone(&segment.file));
            self.open = file.map(Window::new);
            let is_there = match self.place(at, &path)? {
                AtPlace::Nothing => false,
                AtPlace::Batch(..) => true,
                // A right header with a damaged list behind it is no way on: the search would end here again and again.
                AtPlace::Segment(header) => segment.is_some_and(|segment| {
                    let beginning = Beginning::read(&segment, at, &header);
                    !matches!(beginning, Err(RecordingError::DamagedHeader { .. }))
                }),
            };
            if is_there {
                return Ok(());
            }
        }
        match found {
            Search::Found(next) => {
                self.warnings.push(Warning::Damaged {
                    path,
                    at,
                    lost_bytes: next - at,
                });
                self.at = next;
                return Ok(());
            }
            Search::Zeros => {}
            Search::Lost(end) => self.warnings.push(Warning::Truncated {
                path,
                at,
                lost_bytes: end - at,
            }),
        }
        self.next_file();
        Ok(())
    }

    fn search(&mut self, from: u64, path: &Path) -> Result<Search, RecordingError> {
        let mut budget = SEARCH_BUDGET;
        let mut end_of_data = None;
        let mut at = from;
        while let Some(window) = &mut self.open {
            let bytes = window
                .get(at, STRIDE)
                .map_err(|error| RecordingError::of("read", path, error))?;
            if bytes.is_empty() {
                break;
            }
            let read = bytes.len() as u64;
            if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
                end_of_data = Some(at + last as u64 + 1);
            }
            let marked = |word: &[u8]| {
                word.starts_with(&BATCH_MARK)
                    || word.starts_with(&PLAIN_BATCH_MARK)
                    || word == SEGMENT_MARK
            };
            let candidates: Vec<u64> = bytes
                .chunks(ALIGN)
                .zip((at..).step_by(ALIGN))
                .filter(|(word, place)| *place > from && marked(word))
                .map(|(_, place)| place)
                .collect();
            for place in candidates {
                if budget == 0 {
                    break;
                }
                if !matches!(self.place(place, path)?, AtPlace::Nothing) {
                    return Ok(Search::Found(place));
                }
                budget = budget.saturating_sub(self.claimed(place, path)?);
            }
            if read < STRIDE as u64 {
                break;
            }
            at += read;
        }
        Ok(end_of_data.map_or(Search::Zeros, Search::Lost))
    }

    /// Bytes that were read to examine a supposed batch: the length that its header claims, and the header.
    fn claimed(&mut self, at: u64, path: &Path) -> Result<u64, RecordingError> {
        let Some(window) = &mut self.open else {
            return Ok(0);
        };
        let head = window
            .get(at, BATCH_HEADER)
            .map_err(|error| RecordingError::of("read", path, error))?;
        let records = BatchHeader::decode(head).map_or(0, |(header, _)| u64::from(header.stored));
        Ok(records + BATCH_HEADER as u64)
    }
}
