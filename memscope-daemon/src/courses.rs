//! The course of a process's memory over any window: from the journal, as fine as the events themselves.
//!
//! Owns: the packed courses of the journal's parts, each made by folding that part once, in a bounded cache of which the least
//! recently used goes first; and where the fold of the newest part goes on. Refuses: to be exact where the journal has rotated: what
//! lies before it comes from the ledger's buckets, and the answer says so.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memscope_ledger::course::{Course, Cut, DeviceCourse, DeviceLevel, Grid, Sample};
use memscope_ledger::event::{CoverageNote, ProcessHandle};
use memscope_ledger::report::{AsOf, Source};
use memscope_ledger::{Ledger, LedgerConfig};
use memscope_log::{Recording, SegmentHeader, SegmentPlace};

use crate::memory::Spare;
use crate::replay::{Bounds, Left, ReplayError, Witness, witness};

/// How much of the daemon's memory the packed courses may take: one part in so many.
const SHARE: u64 = 4;

/// Number of intervals when the question does not give one.
pub const USUAL_INTERVALS: u64 = 20;

/// The question for a window of one process.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The process whose course is asked for.
    pub process: ProcessHandle,
    /// Its process id.
    pub pid: u32,
    /// Beginning and end of the window, nanoseconds of boot time.
    pub window: (u64, u64),
    /// Into how many intervals it is cut.
    pub intervals: u64,
    /// The moment up to which something is known, nanoseconds of boot time.
    pub until_ns: u64,
    /// Number of the last event that is in the answer.
    pub last: u64,
}

impl Asked {
    /// The intervals.
    pub fn grid(&self) -> Grid {
        Grid::new(self.window.0, self.window.1, self.intervals)
    }
}

/// What an answer about a window is made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The devices, in the order of their ordinals.
    pub courses: Vec<DeviceCourse>,
    /// What limits them.
    pub notes: Vec<CoverageNote>,
}

/// The packed courses.
pub struct Courses {
    limit: u64,
    kept: Mutex<Kept>,
    /// Held by whoever folds: two who ask for the same fold it once.
    folding: Mutex<()>,
}

#[derive(Default)]
struct Kept {
    columns: HashMap<Key, (Column, u64)>,
    /// The newest part, of the process that was asked about last.
    open: Option<Open>,
    bytes: u64,
    /// Counts questions, to know what was used last.
    clock: u64,
}

/// A part of the journal (numbers of its first and last record) as one process sees it.
type Key = (u32, u64, u64);

/// Where the fold of the newest part goes on.
struct Open {
    process: ProcessHandle,
    first: u64,
    left: Left,
    column: Column,
}

/// The courses of all devices over one part of the journal.
#[derive(Clone, Default)]
struct Column {
    rows: Vec<Row>,
    damaged: bool,
}

#[derive(Clone)]
struct Row {
    now: DeviceLevel,
    course: Course,
}

impl Column {
    fn bytes(&self) -> u64 {
        let rows = self.rows.iter();
        rows.map(|row| row.course.bytes() + size_of::<Row>() as u64)
            .sum()
    }
}

/// Notes what the events of one process change.
struct Watcher {
    process: ProcessHandle,
    begin_ns: u64,
    column: Column,
}

impl Watcher {
    /// The row of a device; none where nothing was ever seen on it.
    fn row(&mut self, level: DeviceLevel) -> Option<&mut Row> {
        let rows = &mut self.column.rows;
        let place = rows.iter().position(|row| row.now.device == level.device);
        if place.is_none() && !level.seen {
            return None;
        }
        let place = place.unwrap_or_else(|| {
            rows.push(Row {
                now: DeviceLevel {
                    level: None,
                    allocs: 0,
                    frees: 0,
                    ..level
                },
                course: Course::new(self.begin_ns, None),
            });
            rows.len() - 1
        });
        rows.get_mut(place)
    }
}

impl Witness for Watcher {
    fn segment(&mut self, header: &SegmentHeader, ledger: &Ledger) {
        for level in ledger.levels(self.process) {
            let rows = &mut self.column.rows;
            match rows.iter_mut().find(|row| row.now.device == level.device) {
                // The segment follows on another one. Only where that could not be read to its end is anything new in this.
                Some(row) => row.note(header.first_boot_ns, level),
                None if !level.seen => {}
                None => rows.push(Row {
                    now: level,
                    course: Course::new(header.first_boot_ns, level.level),
                }),
            }
        }
    }

    fn applied(&mut self, time_ns: u64, ledger: &Ledger) {
        for level in ledger.levels(self.process) {
            if let Some(row) = self.row(level) {
                row.note(time_ns, level);
            }
        }
    }
}

impl Row {
    fn note(&mut self, time_ns: u64, level: DeviceLevel) {
        if level == self.now {
            return;
        }
        // What another source has counted is not what came with this event.
        let counts = |now: u64, before: u64| match level.source == self.now.source {
            true => now.saturating_sub(before),
            false => 0,
        };
        self.course.push(Sample {
            time_ns,
            level: level.level,
            allocs: counts(level.allocs, self.now.allocs),
            frees: counts(level.frees, self.now.frees),
        });
        self.now = level;
    }
}

/// A part of the journal that can be read without those before it.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    place: &'a SegmentPlace,
    /// Number of its last record, and when the next part begins; `None`: it is the newest one.
    end: Option<(u64, u64)>,
}

impl Stretch<'_> {
    fn first(&self) -> u64 {
        self.place.header.first_sequence
    }

    fn begin_ns(&self) -> u64 {
        self.place.header.first_boot_ns
    }

    /// Whether it has something of the time between two moments.
    fn touches(&self, (from_ns, to_ns): (u64, u64)) -> bool {
        self.begin_ns() <= to_ns && self.end.is_none_or(|(_, next_ns)| next_ns >= from_ns)
    }
}

/// The parts of a journal in which a process is complete.
fn stretches(recording: &Recording, process: ProcessHandle) -> Vec<Stretch<'_>> {
    let Some(first) = recording.complete_from(process.0) else {
        return Vec::new();
    };
    let from = first.header.first_sequence;
    let places = recording.segments().iter();
    let mut found: Vec<Stretch<'_>> = Vec::new();
    for place in places.filter(|place| place.stands_alone() && place.header.first_sequence >= from)
    {
        let begins = (place.header.first_sequence, place.header.first_boot_ns);
        if let Some(last) = found.last_mut() {
            last.end = Some((begins.0.saturating_sub(1), begins.1));
        }
        found.push(Stretch { place, end: None });
    }
    found
}

impl Courses {
    /// Courses that take at most their share of a budget of so many bytes.
    pub fn new(budget: u64) -> Courses {
        Courses {
            limit: budget / SHARE,
            kept: Mutex::default(),
            folding: Mutex::default(),
        }
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.kept().bytes
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers from the journal or recording at `path`, of which only what is not known yet is folded. `None`: nothing of it has the
    /// process.
    ///
    /// # Errors
    /// The recording cannot be read, there is no room for the fold, or nobody waits any more.
    pub fn find(
        &self,
        path: &Path,
        config: &LedgerConfig,
        asked: &Asked,
        bounds: &Bounds<'_>,
    ) -> Result<Option<Found>, ReplayError> {
        let recording = Recording::open(path)?;
        let stretches = stretches(&recording, asked.process);
        let Some(first) = stretches.first() else {
            return Ok(None);
        };
        let (from_ns, to_ns) = asked.window;
        let grid = asked.grid();
        let fine_ns = first.begin_ns();
        let mut found = Found::default();
        // At the very beginning of a journal there is nothing before it.
        let is_begun = first.place.header.first_sequence > 1;
        if from_ns < fine_ns && is_begun {
            self.coarse(&recording, first.place, asked, &grid, &mut found)?;
        }
        if to_ns < fine_ns {
            return Ok(Some(found));
        }
        let fine = match from_ns < fine_ns && is_begun {
            // The first of these intervals begins within one of the window's.
            true => grid.begun_at(fine_ns),
            false => grid,
        };
        let mut cuts: Vec<(DeviceLevel, Cut)> = Vec::new();
        let mut damaged = false;
        for stretch in stretches.iter().filter(|one| one.touches((from_ns, to_ns))) {
            let mut add = |column: &Column| {
                damaged |= column.damaged;
                for row in &column.rows {
                    let known = cuts.iter_mut().find(|(of, _)| of.device == row.now.device);
                    match known {
                        Some((of, cut)) => {
                            of.source = row.now.source;
                            cut.add(&row.course);
                        }
                        None => {
                            let mut cut = Cut::new(fine);
                            cut.add(&row.course);
                            cuts.push((row.now, cut));
                        }
                    }
                }
            };
            self.with_column(&recording, stretch, config, asked, bounds, &mut add)?;
        }
        for (of, cut) in cuts {
            let intervals = cut.finish(asked.until_ns);
            found.add(of.device, of.source, intervals);
        }
        found.courses.retain(|one| !one.intervals.is_empty());
        let order = |one: &DeviceCourse| (one.device.is_none(), one.device);
        found.courses.sort_by_key(order);
        if damaged {
            found.notes.push(CoverageNote {
                code: "recording_damaged".to_owned(),
                text: "a part of the recording could not be read, and what it told is not in this answer"
                    .to_owned(),
            });
        }
        Ok(Some(found))
    }

    /// What the buckets say of the time before the journal's oldest part.
    fn coarse(
        &self,
        recording: &Recording,
        place: &SegmentPlace,
        asked: &Asked,
        grid: &Grid,
        found: &mut Found,
    ) -> Result<(), ReplayError> {
        let Some(checkpoint) = place.checkpoint() else {
            return Ok(());
        };
        let ledger = recording.restore(checkpoint, Some(asked.pid))?.ledger;
        let fine_ns = place.header.first_boot_ns;
        found.take_coarse(&ledger, asked, grid, fine_ns);
        Ok(())
    }

    /// Calls `see` with the courses over a part of the journal.
    fn with_column(
        &self,
        recording: &Recording,
        stretch: &Stretch<'_>,
        config: &LedgerConfig,
        asked: &Asked,
        bounds: &Bounds<'_>,
        see: &mut dyn FnMut(&Column),
    ) -> Result<(), ReplayError> {
        let process = asked.process;
        let Some((last, _)) = stretch.end else {
            return self.with_newest(recording, stretch, config, asked, bounds, see);
        };
        let key = (process.0, stretch.first(), last);
        if self.kept().see(key, see) {
            return Ok(());
        }
        let _alone = self.folding.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have folded it meanwhile.
        if self.kept().see(key, see) {
            return Ok(());
        }
        let within = Bounds {
            last: Some(last),
            ..*bounds
        };
        // What was the newest part until now may have been folded almost to its end.
        let begun = self.kept().take_open(process, stretch.first(), last);
        let (_, mut column) = fold(recording, stretch, config, asked, &within, begun)?;
        column.rows.iter_mut().for_each(|row| row.course.shrink());
        see(&column);
        self.kept().put(key, column, self.limit);
        Ok(())
    }

    /// The same of the newest part, whose fold goes on where it ended.
    fn with_newest(
        &self,
        recording: &Recording,
        stretch: &Stretch<'_>,
        config: &LedgerConfig,
        asked: &Asked,
        bounds: &Bounds<'_>,
        see: &mut dyn FnMut(&Column),
    ) -> Result<(), ReplayError> {
        let process = asked.process;
        let is_known = |open: &Open| {
            open.process == process
                && open.first == stretch.first()
                && open.left.sequence() >= asked.last
        };
        if let Some(open) = self.kept().open.as_ref().filter(|open| is_known(open)) {
            see(&open.column);
            return Ok(());
        }
        let _alone = self.folding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = self.kept().open.as_ref().filter(|open| is_known(open)) {
            see(&open.column);
            return Ok(());
        }
        let begun = self.kept().take_open(process, stretch.first(), u64::MAX);
        let (left, column) = fold(recording, stretch, config, asked, bounds, begun)?;
        see(&column);
        let open = Open {
            process,
            first: stretch.first(),
            left,
            column,
        };
        let mut kept = self.kept();
        kept.replace_open(Some(open));
        kept.shrink(self.limit);
        Ok(())
    }
}

impl Spare for Courses {
    fn give_back(&self) {
        let mut kept = self.kept();
        kept.columns = HashMap::new();
        kept.open = None;
        kept.bytes = 0;
    }
}

impl Kept {
    /// Calls `see` with a column, if it is there.
    fn see(&mut self, key: Key, see: &mut dyn FnMut(&Column)) -> bool {
        self.clock += 1;
        let Some((column, used)) = self.columns.get_mut(&key) else {
            return false;
        };
        *used = self.clock;
        see(column);
        true
    }

    fn put(&mut self, key: Key, column: Column, limit: u64) {
        self.clock += 1;
        self.bytes += column.bytes();
        if let Some((old, _)) = self.columns.insert(key, (column, self.clock)) {
            self.bytes = self.bytes.saturating_sub(old.bytes());
        }
        self.shrink(limit);
    }

    /// Drops what was not used for longest, until the rest is within the limit.
    fn shrink(&mut self, limit: u64) {
        while self.bytes > limit {
            let all = self.columns.iter();
            let Some(oldest) = all.min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key) else {
                self.replace_open(None);
                return;
            };
            if let Some((gone, _)) = self.columns.remove(&oldest) {
                self.bytes = self.bytes.saturating_sub(gone.bytes());
            }
        }
    }

    /// Takes the fold of a part of the journal out, for whoever goes on with it up to the record `last`. A part stays the newest one until
    /// the checkpoint of the next segment has its name, so its fold may have gone further: then it is dropped, because the next part
    /// has those records.
    fn take_open(
        &mut self,
        process: ProcessHandle,
        first: u64,
        last: u64,
    ) -> Option<(Left, Column)> {
        let is_it = |open: &mut Open| open.process == process && open.first == first;
        let open = self.open.take_if(is_it)?;
        self.bytes = self.bytes.saturating_sub(open.bytes());
        (open.left.sequence() <= last).then_some((open.left, open.column))
    }

    fn replace_open(&mut self, open: Option<Open>) {
        let bytes = open.as_ref().map_or(0, Open::bytes);
        let old = std::mem::replace(&mut self.open, open);
        self.bytes += bytes;
        self.bytes = self
            .bytes
            .saturating_sub(old.as_ref().map_or(0, Open::bytes));
    }
}

impl Open {
    fn bytes(&self) -> u64 {
        self.left.bytes() + self.column.bytes()
    }
}

impl Found {
    fn add(
        &mut self,
        device: Option<i32>,
        source: Source,
        intervals: Vec<memscope_proto::v1::Interval>,
    ) {
        match self.courses.iter_mut().find(|one| one.device == device) {
            Some(known) => {
                known.source = source;
                known.intervals.extend(intervals);
            }
            None => self.courses.push(DeviceCourse {
                device,
                source,
                intervals,
            }),
        }
    }

    /// The answer with what was found of process `of`. `now` is the process that has its pid by now: `None` where that is another one, which
    /// the asker may not be allowed to see.
    pub fn told(
        self,
        ledger: &Ledger,
        now: ProcessHandle,
        of: ProcessHandle,
        as_of: AsOf,
    ) -> Option<memscope_proto::v1::FluctuationResponse> {
        (now == of)
            .then(|| ledger.fluctuation(of, as_of, self.courses, self.notes))
            .flatten()
    }

    /// Takes from a ledger's buckets what they say of a window, up to `until_ns`, which is the ledger's own moment.
    pub fn take_coarse(&mut self, ledger: &Ledger, asked: &Asked, grid: &Grid, until_ns: u64) {
        let (from_ns, to_ns) = asked.window;
        let window = (from_ns, to_ns.min(until_ns));
        let count = usize::try_from(grid.before(until_ns)).unwrap_or(usize::MAX);
        let courses = ledger.coarse(asked.process, window, count.max(1), until_ns);
        let widths = courses.iter().flat_map(|course| &course.intervals);
        let widest = widths.filter_map(|one| one.detail_ns).max();
        if let Some(widest) = widest {
            self.notes.push(CoverageNote {
                code: "course_coarse".to_owned(),
                text: format!(
                    "of the time before {} single events are not in the journal: there the intervals are {} wide or a multiple of it",
                    memscope_units::moment_ms(ledger.unix_ns(until_ns)),
                    memscope_units::nanoseconds(widest)
                ),
            });
        }
        for course in courses {
            self.add(course.device, course.source, course.intervals);
        }
    }
}

/// Folds a part of the journal, or what is new in it.
fn fold(
    recording: &Recording,
    stretch: &Stretch<'_>,
    config: &LedgerConfig,
    asked: &Asked,
    bounds: &Bounds<'_>,
    begun: Option<(Left, Column)>,
) -> Result<(Left, Column), ReplayError> {
    let (left, column) = match begun {
        Some((left, column)) => (Some(left), column),
        None => (None, Column::default()),
    };
    let mut watcher = Watcher {
        process: asked.process,
        begin_ns: stretch.begin_ns(),
        column,
    };
    let (left, damaged) = witness(
        recording,
        stretch.place,
        config.clone(),
        asked.pid,
        left,
        bounds,
        &mut watcher,
    )?;
    watcher.column.damaged |= damaged;
    Ok((left, watcher.column))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_ledger::event::{
        Backend, Body, Call, CallOp, Event, EventId, Layer, PoolTrace, ProcessFacts, StackRef,
        TraceAction, Vendor,
    };

    fn event(sequence: u64, body: Body) -> Event {
        Event {
            id: EventId { epoch: 1, sequence },
            time_ns: sequence * 100,
            process: ProcessHandle(1),
            tid: 0,
            lost_before: 0,
            stack: StackRef::NotTaken,
            sampling: 0,
            body,
        }
    }

    fn call(op: CallOp, ptr: u64, size: u64) -> Body {
        Body::Call(Call {
            function: "cudaMalloc".into(),
            layer: Layer::Runtime,
            vendor: Vendor::Cuda,
            op,
            status: 0,
            device: None,
            ptr,
            size,
            stream: None,
            handle: 0,
            context: 0,
            of_host: false,
            hal: None,
            extra: 0,
            nested: 0,
            duration_ns: 1,
        })
    }

    /// A segment of the pool counts to an unknown device until the pool says where it is: then it was never there.
    #[test]
    fn what_was_moved_to_its_device_stays_on_no_unknown_one() {
        let of = ProcessHandle(1);
        let mut ledger = Ledger::new(LedgerConfig::default());
        let mut watcher = Watcher {
            process: of,
            begin_ns: 0,
            column: Column::default(),
        };
        let facts = ProcessFacts {
            level: Some(memscope_ledger::event::Level::Trace),
            ..ProcessFacts::default()
        };
        let segment = PoolTrace {
            action: TraceAction::SegmentAlloc,
            allocator: 7,
            device: Some(0),
            addr: 0x1000,
            size: 500,
            stream: 0,
            block_size: None,
            total_allocated: None,
            total_reserved: None,
            pool: None,
        };
        let mut all = vec![
            Body::Attached(Box::new(facts)),
            Body::Backend(Backend::Native),
            call(CallOp::Alloc, 0x1000, 500),
            Body::Trace(segment),
            // Only this is the program's own, and of it nobody says where it is.
            call(CallOp::Alloc, 0x9000, 30),
        ];
        let asked = Grid::new(0, 1000, 10);
        let course = |watcher: &Watcher| {
            let rows = &watcher.column.rows;
            let row = rows.iter().find(|row| row.now.device.is_none()).unwrap();
            let mut cut = Cut::new(asked);
            cut.add(&row.course);
            cut.finish(1000)
        };
        let as_of = AsOf {
            boot_ns: 1000,
            unix_ns: 1000,
            event: EventId::default(),
        };
        let told = |ledger: &Ledger, watcher: &Watcher| {
            let mut found = Found::default();
            found.add(None, Source::Driver, course(watcher));
            let answer = found.told(ledger, of, of, as_of).unwrap();
            answer
                .devices
                .first()
                .map(|one| one.overall.unwrap().last_allocated_bytes)
        };
        for (sequence, body) in (1..).zip(all.drain(..)) {
            let event = event(sequence, body);
            ledger.apply(&event);
            watcher.applied(event.time_ns, &ledger);
            match sequence {
                3 => assert_eq!(told(&ledger, &watcher), Some(Some(500))),
                4 => assert_eq!(told(&ledger, &watcher), None),
                _ => {}
            }
        }
        assert_eq!(told(&ledger, &watcher), Some(Some(30)));
        let levels: Vec<_> = course(&watcher)
            .iter()
            .map(|one| (one.from_boot_ns, one.last_allocated_bytes))
            .collect();
        assert!(levels.contains(&(400, Some(0))), "{levels:?}");
    }

    /// While the journal is read, the process may end, and its pid become that of somebody else's.
    #[test]
    fn a_process_that_has_the_pid_now_is_not_told_of() {
        let (of, later) = (ProcessHandle(1), ProcessHandle(2));
        let mut ledger = Ledger::new(LedgerConfig::default());
        for (sequence, process, body) in [(1, of, true), (2, of, false), (3, later, true)] {
            let facts = ProcessFacts {
                pid: 4242,
                ..ProcessFacts::default()
            };
            ledger.apply(&Event {
                id: EventId { epoch: 1, sequence },
                time_ns: sequence,
                process,
                tid: 0,
                lost_before: 0,
                stack: StackRef::NotTaken,
                sampling: 0,
                body: match body {
                    true => Body::Attached(Box::new(facts)),
                    false => Body::Exited,
                },
            });
        }
        assert_eq!(ledger.find(4242), Some(later));
        let as_of = AsOf {
            boot_ns: 9,
            unix_ns: 9,
            event: EventId::default(),
        };
        let told = |now| Found::default().told(&ledger, now, of, as_of).is_some();
        assert!(told(of));
        assert!(!told(later));
    }
}
