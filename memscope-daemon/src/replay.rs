//! Replays a recording: the same decoding and the same ledger, fed from a file.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use crate::frees::{Behind, Frees};
use crate::memory::{FoldRoom, NoRoom};
use memscope_common::KIND_DAEMON_FIRST;
use memscope_ledger::event::{Body, CoverageNote, Event, EventId, ProcessHandle};
use memscope_ledger::report::AsOf;
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::records::{Decoder, Header, KIND_ATTACHED, Outcome, block_address};
use memscope_log::{
    Absent, Entry, Piece, Recording, RecordingError, Records, Restored, SegmentHeader,
    SegmentPlace, Warning,
};

/// How much later than a stack its names may come, in nanoseconds: the daemon may have been busy.
const NAMED_WITHIN_NS: u64 = 5_000_000_000;
/// How far the clock may have been set between the beginning of a segment and the pair of clock readings that the
/// segment has, in nanoseconds.
const CLOCK_STEP_NS: u64 = 60_000_000_000;
/// Number of records between two checks whether names are still missing.
const RECORDS_PER_LOOK: u32 = 1000;
/// Number of records whose blocks are looked up together.
const PREFETCHED: usize = 32;
/// Number of pieces of a journal between two checks whether its fold is still wanted.
const PIECES_PER_LOOK: u64 = 1000;
/// How far the time of one of the daemon's own records may lie after the times of records that follow it, in
/// nanoseconds. While the daemon wrote its record, others came from the kernel.
const OWN_RECORDS_AHEAD_NS: u64 = 10_000_000_000;
/// The same for a record of the kernel's. A program takes its place in the ring first and reads the clock then; its processor may have to
/// wait in between, while others send theirs.
const KERNEL_AHEAD_NS: u64 = 1_000_000_000;

/// What was read of a recording.
pub struct Replayed {
    /// What decodes the records that follow.
    pub decoder: Decoder,
    /// Where the ring's reader stood after its last record.
    pub ring_position: u64,
    /// Its first records are gone, and there is no state in their place: blocks may be missing.
    pub begins_late: bool,
    /// The ledger at the end of what was read.
    pub ledger: Ledger,
    /// Epoch of the recording.
    pub epoch: u64,
    /// Moment of the last record that was applied.
    pub end: AsOf,
    /// Number of records that were read.
    pub records: u64,
    /// What could not be read, in words.
    pub warnings: Vec<String>,
    /// Processes that were traced at the end but are not in this answer.
    pub left_out: Vec<NotThere>,
    /// Which threads freed blocks behind the moment, by the blocks' addresses. Empty unless that was asked for.
    pub freed_by: HashMap<u64, u32>,
}

impl Replayed {
    /// Says of each process what could not be read of it.
    fn noted(mut self) -> Replayed {
        let mut notes = Vec::new();
        if !self.warnings.is_empty() {
            notes.push(CoverageNote {
                code: "recording_damaged".to_owned(),
                text: format!(
                    "a part of the recording could not be read, and what it told is not in this answer: {}",
                    self.warnings.join("; ")
                ),
            });
        }
        if self.begins_late {
            notes.push(CoverageNote {
                code: "journal_begins_late".to_owned(),
                text:
                    "the journal's oldest part is gone: blocks that came before what is left of it \
                       are not in this answer"
                        .to_owned(),
            });
        }
        for process in self.ledger.processes() {
            for note in &notes {
                self.ledger.apply(&Event {
                    id: self.end.event,
                    time_ns: self.end.boot_ns,
                    process: process.handle,
                    tid: 0,
                    lost_before: 0,
                    stack: memscope_ledger::event::StackRef::NotTaken,
                    sampling: 0,
                    body: Body::Coverage(note.clone()),
                });
            }
        }
        self
    }
}

/// A process of which nothing is left at a moment, because others needed the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotThere {
    /// The daemon's handle of the process.
    pub process: ProcessHandle,
    /// Process id.
    pub pid: u32,
    /// The moment from which on it is known, in nanoseconds since 1970. `None` if no later part of the recording that
    /// can be read has it, as after damage.
    pub known_from_unix_ns: Option<u64>,
}

impl Replayed {
    /// If nothing is known of a process at this moment because it had to give way, that process.
    pub fn not_there(&self, pid: u32) -> Option<NotThere> {
        let found = self.ledger.find(pid);
        let mut left_out = self.left_out.iter();
        // Of several processes with this pid, the newest one is meant.
        left_out
            .rfind(|one| one.pid == pid && found.is_none_or(|of| of <= one.process))
            .copied()
    }
}

/// Why a recording cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The moment lies before the part of the recording that is left.
    #[error("the older part of the recording is gone: it can be asked from {} on", first_moment(*known_from_unix_ns))]
    TooEarly {
        /// The first moment that can be asked about, in nanoseconds since 1970.
        known_from_unix_ns: u64,
    },
    /// The ledger has no room in the daemon's memory.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// Whoever asked is gone.
    #[error("nobody waits for the answer any more")]
    NotWanted,
}

/// The first whole millisecond from which on something is known, as people can ask for it. A millisecond that had begun
/// before would be refused.
pub fn first_moment(known_from_unix_ns: u64) -> String {
    let up = known_from_unix_ns.checked_next_multiple_of(1_000_000);
    memscope_units::moment_ms(up.unwrap_or(known_from_unix_ns))
}

/// Reads a recording to its end.
pub fn replay(path: &Path, config: LedgerConfig) -> Result<Replayed, ReplayError> {
    fold(path, config, None, None, &Bounds::NONE, None).map(Replayed::noted)
}

/// Reads a journal to its end, to go on with it. What could not be read is not said of the processes: whoever goes on counts what is
/// missing as lost, and reads the processes anew.
pub fn replay_left(path: &Path, config: LedgerConfig) -> Result<Replayed, ReplayError> {
    fold(path, config, None, None, &Bounds::NONE, None)
}

/// Reads a recording up to a moment: to the first event after it. With a pid only the records about that process are
/// looked at, and the ledger must not be asked about others.
pub fn replay_until(
    path: &Path,
    config: LedgerConfig,
    until: Until,
    pid: Option<u32>,
) -> Result<Replayed, ReplayError> {
    fold(path, config, Some(until), pid, &Bounds::NONE, None).map(Replayed::noted)
}

/// The same of one process within bounds, which are looked at now and then. If it is said which blocks are `still` there (address and
/// boot time of the allocation), it reads on for who freed the others.
pub fn replay_within(
    path: &Path,
    config: LedgerConfig,
    until: Until,
    pid: u32,
    bounds: &Bounds<'_>,
    still: Option<&HashSet<(u64, u64)>>,
) -> Result<Replayed, ReplayError> {
    fold(path, config, Some(until), Some(pid), bounds, still).map(Replayed::noted)
}

/// What ends the reading of a recording early.
pub struct Bounds<'a> {
    /// Whether it is still wanted; else it ends with [`ReplayError::NotWanted`].
    pub wanted: &'a dyn Fn() -> bool,
    /// Room for the ledger; if it does not suffice, the reading ends with [`ReplayError::NoRoom`]. `None`: no limit.
    pub room: Option<&'a FoldRoom>,
    /// Number of the last record that is read. Behind it a journal may just be written to, and half a batch would look like damage.
    /// `None`: to the end of the recording.
    pub last: Option<u64>,
}

impl Bounds<'_> {
    /// Nothing ends it.
    pub const NONE: Bounds<'static> = Bounds {
        wanted: &|| true,
        room: None,
        last: None,
    };

    /// Whether nothing is read behind this record.
    fn end_at(&self, entry: &Entry<'_>) -> bool {
        !entry.repeated && self.last.is_some_and(|last| last <= entry.sequence)
    }

    fn check(&self, ledger: &Ledger) -> Result<(), ReplayError> {
        if !(self.wanted)() {
            return Err(ReplayError::NotWanted);
        }
        if let Some(room) = self.room {
            let bytes = ledger.bytes();
            if !room.holds(bytes) {
                return Err(room.refused(bytes).into());
            }
        }
        Ok(())
    }
}

/// Reads a recording up to an event, and sets the moment of the answer to `boot_ns`, which lies after that event. The
/// result answers what the daemon answered at that moment.
pub fn replay_as_of(
    path: &Path,
    config: LedgerConfig,
    event: u64,
    boot_ns: u64,
) -> Result<Replayed, ReplayError> {
    let mut replayed = replay_until(path, config, Until::Event(event), None)?;
    replayed.end.boot_ns = boot_ns;
    replayed.end.unix_ns = replayed.ledger.unix_ns(boot_ns);
    Ok(replayed)
}

/// Where reading stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After this boot time, in nanoseconds.
    Boot(u64),
    /// After this time, in nanoseconds since 1970: the first such time, where the clock was set back.
    Unix(u64),
    /// After the event with this number.
    Event(u64),
}

impl Until {
    /// A time since 1970. Where the clock was set back, the last such time is meant, as far as this ledger, which is that of the present,
    /// still knows how the clock was set.
    pub fn at_unix(ns: u64, ledger: &Ledger) -> Until {
        let boot_ns = ledger.known_boot_ns(ns);
        boot_ns.map_or(Until::Unix(ns), Until::Boot)
    }

    /// Whether an event lies after the moment.
    fn is_over(self, ledger: &Ledger, time_ns: u64, sequence: u64) -> bool {
        match self {
            Until::Boot(ns) => time_ns > ns,
            Until::Unix(ns) => ledger.unix_ns(time_ns) > ns,
            Until::Event(number) => sequence > number,
        }
    }

    /// Whether an event lies so far after the moment that no event from before the moment can follow. Records of one allocator come in the
    /// order of their times, since it holds its lock meanwhile; those of several threads may not. A record of the daemon's own has the time
    /// at which it was written, and may be followed by records that the kernel sent just before that time.
    fn is_past(self, ledger: &Ledger, header: &Header) -> bool {
        let ahead = |ns: u64| {
            ns.saturating_add(match header.kind < KIND_DAEMON_FIRST {
                true => KERNEL_AHEAD_NS,
                false => OWN_RECORDS_AHEAD_NS,
            })
        };
        match self {
            Until::Event(_) => true,
            Until::Boot(ns) => header.time_ns > ahead(ns),
            Until::Unix(ns) => ledger.unix_ns(header.time_ns) > ahead(ns),
        }
    }

    /// Whether a segment begins before the moment. Its state may have a record from just behind its beginning, and clocks may have been
    /// set: a segment that begins just before the moment counts as a later one, so that reading starts with the segment before it.
    fn is_behind(self, place: &SegmentPlace) -> bool {
        match self {
            Until::Boot(ns) => place.header.first_boot_ns.saturating_add(KERNEL_AHEAD_NS) <= ns,
            Until::Unix(ns) => place.first_unix_ns().saturating_add(CLOCK_STEP_NS) <= ns,
            Until::Event(number) => place.header.first_sequence <= number.saturating_add(1),
        }
    }

    /// Whether the moment lies before the state with which a segment begins.
    fn is_too_early(self, header: &SegmentHeader, ledger: &Ledger) -> bool {
        match self {
            Until::Boot(ns) => ns < header.first_boot_ns,
            Until::Unix(ns) => ns < ledger.unix_ns(header.first_boot_ns),
            Until::Event(number) => number.saturating_add(1) < header.first_sequence,
        }
    }
}

/// The processes that a question is about.
enum About {
    All,
    /// The processes with this pid, and those of their handles that are known.
    Pid(u32, HashSet<u32>),
}

impl About {
    fn new(pid: Option<u32>) -> About {
        pid.map_or(About::All, |pid| About::Pid(pid, HashSet::new()))
    }

    fn pid(&self) -> Option<u32> {
        match self {
            About::All => None,
            About::Pid(pid, _) => Some(*pid),
        }
    }

    /// Takes the handles from a state that was read.
    fn restored(&mut self, ledger: &mut Ledger) {
        if let About::Pid(pid, handles) = self {
            ledger.forget_before(*pid);
            let theirs = ledger
                .processes()
                .into_iter()
                .filter(|one| one.facts.pid == *pid);
            handles.extend(theirs.map(|one| one.handle.0));
        }
    }

    /// Whether a record has to be decoded: those of the machine, those of the processes, and every record of an
    /// attach.
    fn wants(&self, header: &Header) -> bool {
        match self {
            About::All => true,
            About::Pid(_, handles) => {
                header.process == 0
                    || header.kind == KIND_ATTACHED
                    || handles.contains(&header.process)
            }
        }
    }

    /// Nobody asks about a trace of the same process that ended before another one began, and it may be large.
    fn attached(&self, event: &Event, ledger: &mut Ledger) {
        if let (About::Pid(pid, _), Body::Attached(_)) = (self, &event.body) {
            ledger.forget_before(*pid);
        }
    }

    /// Whether an event concerns the processes, now that it is decoded.
    fn is_theirs(&mut self, event: &Event) -> bool {
        match (self, &event.body) {
            (About::Pid(pid, handles), Body::Attached(facts)) => {
                let is_theirs = facts.pid == *pid;
                if is_theirs {
                    handles.insert(event.process.0);
                }
                is_theirs || handles.contains(&event.process.0)
            }
            _ => true,
        }
    }
}

/// Reads on behind the moment. For the names of stacks that are there until a time: records after the moment may name code
/// that ran before it. And for frees, where they are wanted.
fn read_on(
    records: &mut Records,
    fold: &mut Fold,
    about: &About,
    named_until_ns: u64,
    frees: &mut Option<Frees>,
    bounds: &Bounds<'_>,
    mut is_at_end: bool,
) -> Result<(), ReplayError> {
    let mut left = 0;
    let mut wants_names = true;
    loop {
        if left == 0 {
            bounds.check(&fold.ledger)?;
            wants_names = wants_names && fold.ledger.has_unnamed();
            left = RECORDS_PER_LOOK;
        }
        left -= 1;
        let wants_frees = frees.as_mut().is_some_and(Frees::goes_on);
        if is_at_end || !wants_names && !wants_frees {
            return Ok(());
        }
        let Some(entry) = records.next_record()? else {
            return Ok(());
        };
        is_at_end = bounds.end_at(&entry);
        let header = entry.header;
        wants_names = wants_names && header.time_ns <= named_until_ns;
        if about.wants(&header) {
            fold.decoder.seek(entry.sequence);
            if let Outcome::Decoded(event) = fold.decoder.decode_read(&header, entry.record) {
                if wants_names {
                    fold.ledger.learn(&event);
                }
                let frees = frees.as_mut().filter(|_| !entry.repeated);
                if let Some((frees, behind)) = frees.zip(Behind::of(&event)) {
                    frees.see(&behind);
                }
            }
        }
    }
}

/// Sees a fold while it goes on.
pub trait Witness {
    /// A segment begins, and the ledger is as it is before its first record.
    fn segment(&mut self, header: &SegmentHeader, ledger: &Ledger);
    /// An event about the process was applied; its record was made at `time_ns` of boot time.
    fn applied(&mut self, time_ns: u64, ledger: &Ledger);
}

/// Where a fold ended that goes on later.
pub struct Left {
    decoder: Decoder,
    ledger: Ledger,
    sequence: u64,
}

impl Left {
    /// Number of the last record in it.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.ledger.bytes()
    }
}

/// Reads what a recording has of one process from the beginning of a segment on, within bounds, and lets somebody see it. `left` is
/// where an earlier fold from the same segment on has ended. Returns where this one ended, and whether a part of the recording could not
/// be read.
pub fn witness(
    recording: &Recording,
    place: &SegmentPlace,
    config: LedgerConfig,
    pid: u32,
    left: Option<Left>,
    bounds: &Bounds<'_>,
    witness: &mut dyn Witness,
) -> Result<(Left, bool), ReplayError> {
    let course = Course {
        place,
        config,
        until: None,
        pid: Some(pid),
        left,
    };
    let replayed = fold_from(recording, course, bounds, None, Some(witness))?;
    let damaged = !replayed.warnings.is_empty() || replayed.begins_late;
    let left = Left {
        decoder: replayed.decoder,
        sequence: replayed.end.event.sequence,
        ledger: replayed.ledger,
    };
    Ok((left, damaged))
}

/// When an event of a recording was recorded, in nanoseconds of boot time; `None` if the recording does not have it.
pub fn time_of(recording: &Recording, event: u64) -> Result<Option<u64>, RecordingError> {
    let place = recording.segment_before(|place| Until::Event(event).is_behind(place));
    let mut records = recording.records_from(place);
    while let Some(entry) = records.next_record()? {
        if entry.repeated || entry.sequence < event {
            continue;
        }
        let found = entry.sequence == event;
        return Ok(found.then_some(entry.header.time_ns));
    }
    Ok(None)
}

/// Number of the last record of a recording, and when it was recorded, in nanoseconds of boot time; `None` if none is in its last segment.
pub fn last_record(recording: &Recording) -> Result<Option<(u64, u64)>, RecordingError> {
    let mut records = recording.records_from(recording.segment_before(|_| true));
    let mut last = None;
    while let Some(entry) = records.next_record()? {
        if !entry.repeated {
            last = Some((entry.sequence, entry.header.time_ns));
        }
    }
    Ok(last)
}

/// Which part of a recording is folded.
struct Course<'a> {
    /// The segment with which it begins.
    place: &'a SegmentPlace,
    config: LedgerConfig,
    until: Option<Until>,
    pid: Option<u32>,
    left: Option<Left>,
}

/// State of a fold, and how far it has come.
struct Fold {
    decoder: Decoder,
    ledger: Ledger,
    /// Number of the last record that was applied.
    sequence: u64,
}

impl Fold {
    /// The state before the first record of a segment.
    fn begin(header: &SegmentHeader, config: LedgerConfig) -> Fold {
        let epoch = header.epoch;
        let mut ledger = Ledger::new(config);
        ledger.apply(&Event {
            id: EventId { epoch, sequence: 0 },
            time_ns: header.clock.boot_ns,
            process: ProcessHandle(0),
            tid: 0,
            lost_before: 0,
            stack: memscope_ledger::event::StackRef::NotTaken,
            sampling: 0,
            body: Body::Clock {
                unix_ns: header.clock.unix_ns,
            },
        });
        Fold {
            decoder: Decoder::new(epoch),
            ledger,
            sequence: 0,
        }
    }

    fn restore(&mut self, restored: Restored) {
        self.sequence = restored.decoder.next_sequence().saturating_sub(1);
        self.decoder = restored.decoder;
        // It has the limits of the daemon that wrote it, so that an earlier moment is as it was.
        self.ledger = restored.ledger;
    }
}

fn fold(
    path: &Path,
    config: LedgerConfig,
    until: Option<Until>,
    pid: Option<u32>,
    bounds: &Bounds<'_>,
    still: Option<&HashSet<(u64, u64)>>,
) -> Result<Replayed, ReplayError> {
    let recording = Recording::open(path)?;
    let is_behind = |place: &SegmentPlace| until.is_none_or(|until| until.is_behind(place));
    let mut place = recording.segment_before(is_behind);
    loop {
        let course = Course {
            place,
            config: config.clone(),
            until,
            pid,
            left: None,
        };
        match fold_from(&recording, course, bounds, still, None) {
            Err(ReplayError::Recording(error @ RecordingError::Checkpoint { .. })) => {
                // The records from an earlier segment on lead to the same state.
                let earlier = recording.before(place);
                place = earlier.ok_or(ReplayError::Recording(error))?;
            }
            folded => return folded,
        }
    }
}

fn fold_from(
    recording: &Recording,
    course: Course<'_>,
    bounds: &Bounds<'_>,
    still: Option<&HashSet<(u64, u64)>>,
    mut witness: Option<&mut dyn Witness>,
) -> Result<Replayed, ReplayError> {
    let Course {
        place,
        config,
        until,
        pid,
        left,
    } = course;
    // What happened to blocks behind the moment, and when the first record came that lies past it.
    let mut behind = Vec::new();
    let mut past_ns = None;
    let mut about = About::new(pid);
    let epoch = place.header.epoch;
    let begins_late = !place.stands_alone();
    let mut fold = Fold::begin(&place.header, config);
    let mut records = recording.records_from(place);
    let mut count = 0;
    // Up to here everything is in the state already.
    let known = left.as_ref().map(|left| left.sequence);
    let mut began = left.is_some();
    if let Some(left) = left {
        (fold.decoder, fold.ledger, fold.sequence) = (left.decoder, left.ledger, left.sequence);
        about.restored(&mut fold.ledger);
    }
    let mut ring_position = 0;
    // Number of warnings when the state was last known for certain. Only later ones count.
    let mut known_warnings = records.warnings().len();
    let mut absent = Absent::default();
    let mut pieces = 0u64;
    let mut is_at_end = false;
    let mut unread_end: &[Warning] = &[];
    while !is_at_end {
        if pieces.is_multiple_of(PREFETCHED as u64) {
            let blocks = records.upcoming().take(PREFETCHED);
            fold.ledger.prefetch(blocks.filter_map(|(header, record)| {
                let addr = block_address(&header, record)?;
                Some((ProcessHandle(header.process), addr))
            }));
        }
        let Some(piece) = records.next_piece()? else {
            unread_end = recording.unread_end();
            break;
        };
        // A segment's state may be large, so it is asked before each of them as well.
        let is_time =
            pieces.is_multiple_of(PIECES_PER_LOOK) || matches!(piece, Piece::Segment { .. });
        if is_time {
            bounds.check(&fold.ledger)?;
        }
        pieces += 1;
        let entry = match piece {
            Piece::Segment {
                header,
                checkpoint,
                left_out,
            } => {
                // The part that is asked for ends here, although its last record was not there.
                let ends = bounds.last.is_some_and(|last| header.first_sequence > last);
                if began && ends {
                    break;
                }
                let damaged = records.warnings().len() > known_warnings;
                // A state from after the moment is of no use. The first one is restored anyway, because it says how
                // the clocks were set.
                let is_early = |ledger: &Ledger| {
                    until.is_some_and(|until| until.is_too_early(&header, ledger))
                };
                let checkpoint = checkpoint.filter(|_| !began || !is_early(&fold.ledger));
                let mut then = absent.clone();
                let back = then.segment(&left_out, checkpoint.is_some());
                let is_needed = !began || damaged || !back.is_empty();
                let restored = match checkpoint.filter(|_| is_needed) {
                    Some(checkpoint) => match recording.restore(&checkpoint, about.pid()) {
                        // Without it, what is missing stays missing.
                        Err(RecordingError::Checkpoint { .. }) if began => {
                            then = absent.clone();
                            then.segment(&left_out, false);
                            None
                        }
                        restored => Some(restored?),
                    },
                    None => None,
                };
                absent = then;
                if let Some(restored) = restored {
                    fold.restore(restored);
                    about.restored(&mut fold.ledger);
                    known_warnings = records.warnings().len();
                }
                if !began && header.first_sequence > 1 && is_early(&fold.ledger) {
                    return Err(ReplayError::TooEarly {
                        known_from_unix_ns: fold.ledger.unix_ns(header.first_boot_ns),
                    });
                }
                if let Some(witness) = witness.as_mut().filter(|_| known.is_none()) {
                    witness.segment(&header, &fold.ledger);
                }
                began = true;
                continue;
            }
            Piece::Record(entry) => entry,
        };
        is_at_end = bounds.end_at(&entry);
        if known.is_some_and(|known| entry.repeated || entry.sequence <= known) {
            continue;
        }
        let header = entry.header;
        fold.decoder.seek(entry.sequence);
        ring_position = entry.ring_position;
        count += 1;
        let is_over = |until: &Until| {
            !entry.repeated && until.is_over(&fold.ledger, header.time_ns, entry.sequence)
        };
        let over = until.filter(is_over);
        if about.wants(&header) {
            match fold.decoder.decode_read(&header, entry.record) {
                Outcome::Decoded(event) if over.is_some() => {
                    fold.ledger.learn(&event);
                    behind.extend(Behind::of(&event).filter(|_| still.is_some()));
                }
                Outcome::Decoded(event) if about.is_theirs(&event) => {
                    fold.ledger.apply(&event);
                    about.attached(&event, &mut fold.ledger);
                    if let Some(witness) = &mut witness {
                        witness.applied(event.time_ns, &fold.ledger);
                    }
                }
                Outcome::Decoded(event) => {
                    fold.ledger.pass(header.time_ns);
                    if let Body::Attached(facts) = &event.body {
                        fold.ledger.pass_attached(facts);
                    }
                }
                _ => {}
            }
        } else if over.is_none() {
            fold.ledger.pass(header.time_ns);
        }
        if let Some(until) = over {
            if !until.is_past(&fold.ledger, &header) {
                continue;
            }
            past_ns = Some(header.time_ns);
            break;
        }
        if !entry.repeated {
            fold.sequence = entry.sequence;
        }
    }
    let process = pid.and_then(|pid| fold.ledger.find(pid));
    let begin = |(still, process)| Frees::begin(&fold.ledger, process, still);
    let mut frees = still.zip(process).map(begin);
    if let Some(frees) = &mut frees {
        behind.iter().for_each(|one| frees.see(one));
    }
    if let Some(past_ns) = past_ns {
        read_on(
            &mut records,
            &mut fold,
            &about,
            past_ns.saturating_add(NAMED_WITHIN_NS),
            &mut frees,
            bounds,
            is_at_end,
        )?;
    }
    let freed_by = frees.map(Frees::threads).unwrap_or_default();
    let ledger = fold.ledger;
    let warnings: Vec<String> = records
        .warnings()
        .iter()
        .skip(known_warnings)
        .chain(unread_end)
        .map(ToString::to_string)
        .collect();
    let end = AsOf {
        boot_ns: ledger.last_ns(),
        unix_ns: ledger.unix_ns(ledger.last_ns()),
        event: EventId {
            epoch,
            sequence: fold.sequence,
        },
    };
    let left_out = absent.all().map(|one| NotThere {
        process: ProcessHandle(one.process),
        pid: one.pid,
        known_from_unix_ns: recording
            .complete_from(one.process)
            .map(SegmentPlace::first_unix_ns),
    });
    Ok(Replayed {
        decoder: fold.decoder,
        ring_position,
        begins_late,
        left_out: left_out.collect(),
        freed_by,
        ledger,
        epoch,
        end,
        records: count,
        warnings,
    })
}
