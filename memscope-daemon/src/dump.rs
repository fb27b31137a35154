//! msMemScope's files made of a recording: `memscoped --replay FILE --dump csv --output DIR`.
//!
//! The recording is folded twice, because the record that names the frames of a stack may come after the events that
//! have that stack.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memscope_dump::rows::Rows;
use memscope_dump::{DumpError, Format, Row, Settings, Tree};
use memscope_ledger::event::{Body, Event, EventId, ProcessHandle, StackRef};
use memscope_ledger::report::ProcessSummary;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::{Decoder, Outcome};
use memscope_log::{Absent, Piece, Recording, RecordingError, SegmentPlace, Warning};
use serde::Serialize;

/// What [`dump`] has written.
#[derive(Debug, Clone, Serialize)]
pub struct Made {
    /// The folders that were written, one for each process.
    pub folders: Vec<PathBuf>,
    /// Number of rows in these folders.
    pub rows: u64,
    /// Number of events for which msMemScope's files have no row.
    pub events_left_out: u64,
    /// Number of records of these processes that were lost, and of uses by operators that could not be told: of these there is no row.
    pub lost_records: u64,
    /// If the older part of the recording is missing: the moment from which on the rows of all processes are
    /// complete, in nanoseconds since 1970. A block that was allocated before that moment may have no row for its
    /// allocation.
    pub known_from_unix_ns: Option<u64>,
    /// What could not be read of the recording, or is missing in it, in words: of what was there, there is no row.
    pub warnings: Vec<String>,
}

/// Why msMemScope's files could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpingError {
    /// The recording cannot be read.
    #[error("the recording cannot be read")]
    Recording(#[from] RecordingError),
    /// The files cannot be written.
    #[error("the files cannot be written ({})", source.hint())]
    Files {
        /// The error of the format or of the file system.
        #[source]
        source: DumpError,
    },
    /// The recording has no event of the process that was asked for, or of any process.
    #[error("the recording has no event of {}", pid.map_or("any process".to_owned(), |pid| format!("process {pid}")))]
    Nothing {
        /// The process that was asked for; `None`: all processes.
        pid: Option<u32>,
    },
}

/// Writes msMemScope's files of a recording into the folder `output`: of all processes, or of the process `pid`.
///
/// # Errors
/// The recording cannot be read, the files cannot be written, or there is nothing to write.
pub fn dump(
    recording: &Path,
    format: Format,
    output: &Path,
    pid: Option<u32>,
) -> Result<Made, DumpingError> {
    let config = LedgerConfig {
        // This ledger is only asked for names and times.
        trace_entries: 0,
        retention_ns: u64::MAX,
        ..LedgerConfig::default()
    };
    let mut named = Ledger::new(config);
    let Read {
        known_from_unix_ns,
        warnings,
    } = each(recording, |heard| match heard {
        Heard::State(state, Of::All) => named = state,
        Heard::State(mut state, of) => {
            let processes = state.processes().into_iter();
            let processes = processes.map(|one| one.handle).filter(|one| of.names(*one));
            // Those that are not in it ended before, and are still asked for.
            for process in processes.collect::<Vec<_>>() {
                named.take_over(process, &mut state);
            }
        }
        Heard::Event(event) => named.apply(event),
    })?;
    let text = |process: ProcessHandle, stack: StackRef| {
        let frames = named.frames(process, stack);
        let lines: Vec<String> = frames
            .iter()
            .map(|frame| format!("{}({}): {}\n", frame.file, frame.line, frame.name))
            .collect();
        (!lines.is_empty()).then(|| lines.concat())
    };
    let begun: BTreeMap<u32, u64> = named
        .processes()
        .into_iter()
        .map(|process| (process.facts.pid, named.unix_ns(process.attached_ns)))
        .collect();
    let mut trees: BTreeMap<u32, Tree> = BTreeMap::new();
    let mut made = Made {
        folders: Vec::new(),
        rows: 0,
        events_left_out: 0,
        lost_records: 0,
        known_from_unix_ns,
        warnings,
    };
    let mut failed: Option<DumpError> = None;
    let mut write = |row: Row| {
        let Some(of) = row.pid.filter(|of| pid.is_none_or(|pid| pid == *of)) else {
            return;
        };
        if failed.is_some() {
            return;
        }
        let written = match trees.entry(of) {
            std::collections::btree_map::Entry::Occupied(mut tree) => tree.get_mut().write(&row),
            std::collections::btree_map::Entry::Vacant(place) => {
                let settings = Settings {
                    pid: of,
                    begun_unix_ns: begun.get(&of).copied().unwrap_or(0),
                    format,
                    config: vec![("collected_by".to_owned(), "memscope".to_owned())],
                };
                Tree::create(output, &settings).and_then(|tree| place.insert(tree).write(&row))
            }
        };
        match written {
            Ok(()) => made.rows += 1,
            Err(error) => failed = Some(error),
        }
    };
    let mut rows = Rows::new();
    // Of each process, records that were lost, uses that could not be told, and events that have no row.
    let mut lost: BTreeMap<ProcessHandle, u64> = BTreeMap::new();
    let mut untold: BTreeMap<ProcessHandle, u64> = BTreeMap::new();
    let mut left_out: BTreeMap<ProcessHandle, u64> = BTreeMap::new();
    let mut known: BTreeSet<ProcessHandle> = BTreeSet::new();
    each(recording, |heard| match heard {
        Heard::State(state, of) => {
            for process in state.processes() {
                let is_new = known.insert(process.handle);
                // Behind a gap, the rows of those that are known go on.
                if is_new && of.names(process.handle) || of.came_back(process.handle) {
                    rows.apply_late(&attached(&process), &text, &mut write);
                }
            }
        }
        Heard::Event(event) => {
            if let Body::Attached(_) = event.body {
                known.insert(event.process);
            }
            let before = lost.entry(event.process).or_default();
            *before = event.lost_before.max(*before);
            if let Body::Operator(operator) = &event.body {
                *untold.entry(event.process).or_default() += u64::from(operator.unknown);
            }
            let before = rows.left_out();
            rows.apply(event, &text, &mut write);
            *left_out.entry(event.process).or_default() += rows.left_out() - before;
        }
    })?;
    let sum = |of: &BTreeMap<ProcessHandle, u64>| {
        named
            .processes()
            .into_iter()
            .filter(|process| pid.is_none_or(|pid| pid == process.facts.pid))
            .filter_map(|process| of.get(&process.handle))
            .sum()
    };
    made.lost_records = sum(&lost) + sum(&untold);
    made.events_left_out = match pid {
        None => rows.left_out(),
        Some(_) => sum(&left_out),
    };
    rows.finish(&mut write);
    let files = |source| DumpingError::Files { source };
    if let Some(source) = failed {
        return Err(files(source));
    }
    for tree in trees.into_values() {
        made.folders.push(tree.finish().map_err(files)?);
    }
    if made.folders.is_empty() {
        return Err(DumpingError::Nothing { pid });
    }
    Ok(made)
}

/// What [`each`] passes on of a recording.
enum Heard<'a> {
    /// The state with which a segment begins, and whose state counts.
    State(Ledger, Of),
    /// The next event.
    Event(&'a Event),
}

/// Whose state counts at the beginning of a segment.
enum Of {
    /// That of all processes, because the segments before it are missing.
    All,
    /// That of all processes, because records before it are missing. The segments before it leave out those of the list.
    AllBehindGap(Vec<ProcessHandle>),
    /// That of these processes, because the segments before it leave them out.
    These(Vec<ProcessHandle>),
}

impl Of {
    fn names(&self, process: ProcessHandle) -> bool {
        match self {
            Of::All | Of::AllBehindGap(_) => true,
            Of::These(back) => back.contains(&process),
        }
    }

    /// Whether the segments before leave out the process, and this one does not.
    fn came_back(&self, process: ProcessHandle) -> bool {
        match self {
            Of::All => false,
            Of::AllBehindGap(back) | Of::These(back) => back.contains(&process),
        }
    }
}

/// What [`each`] has read.
struct Read {
    /// If events are missing (older ones, or those of some processes), the moment from which on all are there, in
    /// nanoseconds since 1970.
    known_from_unix_ns: Option<u64>,
    /// What could not be read, or is missing in between, in words.
    warnings: Vec<String>,
}

/// An event for the attach of a process that was attached before the recording begins.
fn attached(process: &ProcessSummary) -> Event {
    Event {
        time_ns: process.attached_ns,
        process: process.handle,
        body: Body::Attached(Box::new(process.facts.clone())),
        ..of_the_machine(0)
    }
}

/// An event of no process. Callers replace the fields that they know.
fn of_the_machine(epoch: u64) -> Event {
    Event {
        id: EventId { epoch, sequence: 0 },
        time_ns: 0,
        process: ProcessHandle(0),
        tid: 0,
        lost_before: 0,
        stack: StackRef::NotTaken,
        sampling: 0,
        body: Body::Lost,
    }
}

/// Passes every event of a recording to `take`, in order. Behind a part that cannot be read it goes on with the next state.
fn each(path: &Path, mut take: impl FnMut(Heard<'_>)) -> Result<Read, RecordingError> {
    let recording = Recording::open(path)?;
    let header = recording.header();
    let mut decoder = Decoder::new(header.epoch);
    let mut records = recording.records();
    take(Heard::Event(&Event {
        time_ns: header.clock.boot_ns,
        body: Body::Clock {
            unix_ns: header.clock.unix_ns,
        },
        ..of_the_machine(header.epoch)
    }));
    let mut began = false;
    // Number of the first record that was read.
    let mut first_sequence = header.first_sequence;
    let mut absent = Absent::default();
    // States that cannot be read.
    let mut unread: Vec<RecordingError> = Vec::new();
    // Number of warnings when the state was last known for certain.
    let mut known_warnings = 0;
    while let Some(piece) = records.next_piece()? {
        match piece {
            Piece::Segment {
                header,
                checkpoint,
                left_out,
            } => {
                let damaged = records.warnings().len() > known_warnings;
                let mut then = absent.clone();
                let back = then.segment(&left_out, checkpoint.is_some());
                let back = back.iter().map(|one| ProcessHandle(one.process));
                let back: Vec<ProcessHandle> = back.collect();
                let is_needed = !began || damaged || !back.is_empty();
                let Some(checkpoint) = checkpoint.filter(|_| is_needed) else {
                    absent = then;
                    began = began || unread.is_empty();
                    continue;
                };
                match recording.restore(&checkpoint, None) {
                    Ok(restored) => {
                        absent = then;
                        known_warnings = records.warnings().len();
                        decoder = restored.decoder;
                        let of = match (began, damaged) {
                            (false, _) => Of::All,
                            (true, true) => Of::AllBehindGap(back),
                            (true, false) => Of::These(back),
                        };
                        if !began {
                            first_sequence = header.first_sequence;
                        }
                        began = true;
                        take(Heard::State(restored.ledger, of));
                    }
                    // What is missing stays missing. Where nothing has begun yet, the next segment may begin.
                    Err(error @ RecordingError::Checkpoint { .. }) => {
                        if began {
                            absent.segment(&left_out, false);
                        }
                        unread.push(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            Piece::Record(_) if !began && !unread.is_empty() => {}
            Piece::Record(entry) => {
                decoder.seek(entry.sequence);
                if let Outcome::Decoded(event) = decoder.decode(entry.record) {
                    take(Heard::Event(&event));
                }
            }
        }
    }
    if !began && let Some(error) = unread.pop() {
        return Err(error);
    }
    let read = records.warnings().iter();
    let read = read.filter(|warning| !matches!(warning, Warning::BeginsLate { .. }));
    let unread = unread.iter().map(|error| crate::error_chain(error));
    let warnings = read.map(ToString::to_string).chain(unread).collect();
    let begins = |place: &&SegmentPlace| place.header.first_sequence == first_sequence;
    let first = recording.segments().iter().find(begins);
    let first = first.filter(|_| first_sequence > 1);
    let left_out = recording.segments().iter().flat_map(SegmentPlace::left_out);
    let known = left_out.filter_map(|one| recording.complete_from(one.process));
    // From the last of these moments on, the rows of all processes are complete.
    Ok(Read {
        known_from_unix_ns: first
            .into_iter()
            .chain(known)
            .map(SegmentPlace::first_unix_ns)
            .max(),
        warnings,
    })
}

#[cfg(test)]
#[path = "dump/tests.rs"]
mod tests;
