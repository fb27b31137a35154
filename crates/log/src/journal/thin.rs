//! Rewrites a segment without some of its processes.

use crate::journal::batches::{Batches, Item};
use crate::journal::checkpoint::{Beginning, SegmentFile};
use crate::journal::error::RecordingError;
use crate::journal::format::{BATCH_MOST, FORMAT_VERSION, SEGMENT_HEADER, SegmentHeader};
use crate::journal::pack::Packer;
use crate::journal::parts::LeftOut;
use crate::journal::recording::read_header;
use crate::journal::segment::create_anew;
use crate::journal::share::Content;
use crate::journal::tally::{numbers, tally};
use crate::records::{DaemonRecord, Header, KIND_ATTACHED, RecordReader};
use memscope_common::{KIND_LEFT_OUT, RECORD_VERSION, RecordHeader};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use zerocopy::{FromZeros, IntoBytes};

/// Records are collected up to this number of bytes and packed together, because longer batches compress better.
const TOGETHER: usize = 1 << 20;

/// Why a segment was not rewritten.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotThinned {
    /// The segment cannot be read.
    #[error(transparent)]
    Unreadable(#[from] RecordingError),
    /// A part of the segment is damaged.
    #[error("{0}")]
    Damaged(crate::journal::Warning),
    /// The new segment cannot be written.
    #[error("cannot write {}", path.display())]
    Unwritable {
        /// Path of the new file.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: std::io::Error,
    },
    #[error("the thread that writes it panicked")]
    Panicked,
}

/// A segment that another thread is rewriting.
pub(crate) struct Thinning {
    /// Numbers of the segments that it is made from. It takes the place of the first.
    pub(crate) sources: Vec<u64>,
    /// Path of the new file, under a name that marks it as unfinished.
    pub(crate) new: PathBuf,
    thread: JoinHandle<Result<Content, NotThinned>>,
}

impl Thinning {
    /// Starts a thread that writes the segments at `sources`, which follow one another, as one segment without some
    /// processes.
    pub(crate) fn begin(
        sources: Vec<(u64, PathBuf)>,
        leave_out: BTreeSet<u32>,
        new: PathBuf,
    ) -> std::io::Result<Thinning> {
        let (sources, paths): (Vec<u64>, Vec<PathBuf>) = sources.into_iter().unzip();
        let path = new.clone();
        let thread = std::thread::Builder::new()
            .name("journal share".to_owned())
            .spawn(move || thin(&paths, leave_out, &path))?;
        Ok(Thinning {
            sources,
            new,
            thread,
        })
    }

    /// Whether [`Thinning::finish`] returns without waiting.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread, and returns the contents of the new segment. The file is removed if it is not complete.
    pub(crate) fn finish(self) -> Result<Content, NotThinned> {
        let written = self.thread.join().unwrap_or(Err(NotThinned::Panicked));
        if written.is_err() {
            // Return the first error, whether or not this removal succeeds.
            let _ = std::fs::remove_file(&self.new);
        }
        written
    }
}

/// Writes the records that are kept.
struct ThinWriter<'a> {
    out: BufWriter<&'a File>,
    /// Records that are not written yet.
    records: Vec<u8>,
    /// Number of the first of them; `next` is the number after the last.
    first: u64,
    next: u64,
    /// Number of records before `next` that are left out and for which no record has been written yet.
    gap: u64,
    ring_position: u64,
    packer: Packer,
    framed: Vec<u8>,
    content: Content,
    pids: BTreeMap<u32, u32>,
}

impl ThinWriter<'_> {
    /// Takes the records of a batch, except those of some processes.
    fn take(
        &mut self,
        (first, position): (u64, u64),
        records: &[u8],
        leave_out: &BTreeSet<u32>,
    ) -> std::io::Result<()> {
        // Leaving out records never makes a batch longer, so what is collected fits if the whole batches fit.
        if first != self.next || self.records.len() + records.len() > BATCH_MOST {
            self.put()?;
            (self.first, self.next) = (first, first);
        }
        for record in RecordReader::new(records).flatten() {
            let Ok(header) = Header::read(record) else {
                continue;
            };
            let count = numbers(&header);
            self.next = self.next.saturating_add(count);
            if header.kind == KIND_LEFT_OUT {
                self.gap += count;
            } else if leave_out.contains(&header.process) {
                self.gap += count;
                self.note_pid(&header, record);
            } else {
                self.close_gap();
                self.records.extend_from_slice(record);
            }
        }
        self.ring_position = position;
        if self.records.len() >= TOGETHER {
            self.put()?;
        }
        Ok(())
    }

    fn note_pid(&mut self, header: &Header, record: &[u8]) {
        if header.kind == KIND_ATTACHED
            && let Ok(Some(DaemonRecord::Attached(facts))) = DaemonRecord::decode(record)
        {
            self.pids.insert(header.process, facts.pid);
        }
    }

    /// Writes a record that stands for those that were left out.
    fn close_gap(&mut self) {
        if self.gap == 0 {
            return;
        }
        let record = RecordHeader {
            len: Header::SIZE as u16,
            kind: KIND_LEFT_OUT,
            version: RECORD_VERSION,
            sequence: self.gap,
            ..RecordHeader::new_zeroed()
        };
        self.records.extend_from_slice(record.as_bytes());
        self.gap = 0;
    }

    /// Writes the collected records as a batch.
    fn put(&mut self) -> std::io::Result<()> {
        self.close_gap();
        if self.records.is_empty() {
            return Ok(());
        }
        let Ok(tally) = tally(&self.records) else {
            return Err(std::io::ErrorKind::InvalidData.into());
        };
        self.framed.clear();
        let place = (self.first, self.ring_position);
        self.packer
            .frame(&self.records, tally.count, place, &mut self.framed);
        self.out.write_all(&self.framed)?;
        let packed = self.framed.len() as u64;
        self.content.add(self.first, &tally, packed);
        self.records.clear();
        self.first = self.next;
        Ok(())
    }
}

fn thin(paths: &[PathBuf], leave_out: BTreeSet<u32>, new: &Path) -> Result<Content, NotThinned> {
    let failed = |source| NotThinned::Unwritable {
        path: new.to_owned(),
        source,
    };
    let mut sources: Vec<(SegmentFile, SegmentHeader)> = Vec::new();
    for path in paths {
        sources.push(read_header(path)?);
    }
    let Some((first, header)) = sources.first() else {
        return Ok(Content::default());
    };
    let beginning = Beginning::read(first, 0, header)?;
    let mut pids: BTreeMap<u32, u32> = BTreeMap::new();
    for (file, header) in &sources {
        let list = Beginning::read(file, 0, header)?.left_out;
        pids.extend(list.iter().map(|one| (one.process, one.pid)));
    }
    for process in &leave_out {
        pids.entry(*process).or_insert(0);
    }
    let leave_out: BTreeSet<u32> = pids.keys().copied().collect();
    let file = create_anew(new).map_err(failed)?;
    let list_bytes = LeftOut::list_bytes(leave_out.len());
    let mut kept = ThinWriter {
        out: BufWriter::new(&file),
        records: Vec::new(),
        first: header.first_sequence,
        next: header.first_sequence,
        gap: 0,
        ring_position: 0,
        packer: Packer::default(),
        framed: Vec::new(),
        content: Content {
            left_out: leave_out.clone(),
            ..Content::default()
        },
        pids,
    };
    // The header and the list are written last, because some pids are only known when the records have been read.
    let begin = SEGMENT_HEADER as u64 + list_bytes;
    kept.out.seek(SeekFrom::Start(begin)).map_err(failed)?;
    if let Some(place) = &beginning.checkpoint {
        for part in place.parts()? {
            if leave_out.contains(&part.process) {
                kept.pids.insert(part.process, part.pid);
                continue;
            }
            part.copy_to(&place.file, &mut kept.out).map_err(failed)?;
            kept.content.checkpoint.insert(part.process, part.bytes);
        }
    }
    let state_bytes: u64 = kept.content.checkpoint.values().sum();
    for (file, header) in &sources {
        let files: Arc<[SegmentFile]> = [file.clone()].into();
        let mut batches = Batches::new(files, (0, 0), header.epoch, Vec::new());
        while let Some(item) = batches.next()? {
            if let Item::Batch(batch) = item {
                let place = (batch.header.first_sequence, batch.header.ring_position);
                kept.take(place, &batch.records, &leave_out)
                    .map_err(failed)?;
            }
        }
        if let Some(warning) = batches.warnings().iter().find(|warning| is_damage(warning)) {
            return Err(NotThinned::Damaged(warning.clone()));
        }
    }
    kept.put().map_err(failed)?;
    kept.out.flush().map_err(failed)?;
    let list: Vec<LeftOut> = leave_out
        .iter()
        .map(|process| LeftOut {
            process: *process,
            pid: kept.pids.get(process).copied().unwrap_or(0),
        })
        .collect();
    let header = SegmentHeader {
        format_version: FORMAT_VERSION,
        segment_bytes: begin + state_bytes + kept.content.packed,
        checkpoint_bytes: list_bytes + state_bytes,
        left_out: list.len() as u64,
        ..header.clone()
    };
    let front = [header.encode(), LeftOut::encode(&list)].concat();
    file.write_all_at(&front, 0).map_err(failed)?;
    file.sync_data().map_err(failed)?;
    Ok(kept.content)
}

/// Whether a part of the segment could not be read. That it begins late is no damage: each segment is read here without
/// those before it.
fn is_damage(warning: &crate::journal::Warning) -> bool {
    !matches!(warning, crate::journal::Warning::BeginsLate { .. })
}
