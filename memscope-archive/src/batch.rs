//! Asks the daemon and makes a batch: the rows that are new, and the cursor of after them.

use crate::cursor::{Cursor, Seen, key, of_key};
use crate::daemon::{Daemon, DaemonError};
use crate::ear::{self, Sound};
use memscope_archive_rows::rows::{self, Gap, Node, Origin};
use memscope_archive_rows::{OomRow, PeakRow, Record as _, Row, SnapshotRow, StackRow, StepRow};
use memscope_proto::v1;
use memscope_proto::v1::event::Body;
use std::collections::{BTreeMap, BTreeSet};

/// Rows after which a batch is closed.
const ROWS: usize = 400_000;
/// Bytes of snapshots in one batch; one that is larger is left out, and a row in `gaps` tells of it.
pub const SNAPSHOT_BYTES: u64 = 64 << 20;

/// The same where the spool takes at most so many bytes: half of it, because there are other rows in a batch, and others wait.
fn snapshot_bytes(spool: u64) -> u64 {
    SNAPSHOT_BYTES.min(spool / 2)
}

/// Stacks of a process in an hour, and at its end.
pub const STACKS: u32 = 100;
const HOUR_NS: u64 = 3_600_000_000_000;

/// What a batch will have.
#[derive(Debug, Default)]
pub struct Batch {
    /// Its rows.
    pub rows: Vec<Row>,
    /// What is archived after it.
    pub cursor: Cursor,
    /// There is more than one batch takes.
    pub more: bool,
    /// The process that the next batch begins with, by its handle; 0: with all.
    pub next: u32,
}

/// What a batch may have, and where it begins.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Rows after which it is closed; what is left comes with the next one.
    pub rows: usize,
    /// Most bytes of snapshots.
    pub snapshot_bytes: u64,
    /// The process that it begins with, by its handle; 0: with all.
    pub first: u32,
}

impl Room {
    /// In a spool that takes at most so many bytes.
    #[must_use]
    pub fn of(spool: u64) -> Room {
        Room {
            rows: ROWS,
            snapshot_bytes: snapshot_bytes(spool),
            first: 0,
        }
    }

    /// What is left for the next batch after one that is closed.
    #[must_use]
    pub fn after(self, batch: &Batch) -> Room {
        Room {
            rows: if batch.more { self.rows } else { ROWS },
            first: batch.next,
            ..self
        }
    }

    /// Less of it, after a batch with so many rows that even an empty spool does not take; `None`: it cannot be less.
    #[must_use]
    pub fn less(self, rows: usize) -> Option<Room> {
        let rows = self.rows.min(rows) / 2;
        (rows > 0).then_some(Room { rows, ..self })
    }
}

/// What was heard of events.
#[derive(Clone, Debug, Default)]
pub struct Ears {
    /// What was heard of findings alone.
    pub alerts: ear::Heard,
    /// All events, where they are wanted.
    pub events: Option<ear::Heard>,
}

/// Makes a batch.
struct Maker<'a> {
    daemon: &'a Daemon,
    node: &'a Node,
    number: u64,
    room: Room,
    epoch: u64,
    now_ns: u64,
    processes: BTreeMap<u32, v1::Process>,
    batch: Batch,
}

/// Asks the daemon for what is not in the archive yet: of the node, for the batch with the number, and for so much of it as there is room.
///
/// # Errors
/// If the daemon does not answer. What it refuses about one process only is asked again with the next batch.
pub async fn make(
    daemon: &Daemon,
    (node, number, room): (&Node, u64, Room),
    cursor: &Cursor,
    ears: &Ears,
) -> Result<Batch, DaemonError> {
    let status = daemon.status().await?;
    let processes = daemon.list().await?;
    let mut maker = Maker {
        daemon,
        node,
        number,
        room,
        epoch: status.journal.map_or(0, |journal| journal.epoch),
        now_ns: status.now_unix_ns,
        processes: processes.into_iter().map(|it| (it.handle, it)).collect(),
        batch: Batch {
            cursor: cursor.clone(),
            ..Batch::default()
        },
    };
    maker.alerts(&ears.alerts);
    if let Some(heard) = &ears.events {
        maker.events(heard);
    }
    maker.over(&ears.alerts.standing);
    let asked = maker.processes.range(room.first..);
    for handle in asked.map(|(handle, _)| *handle).collect::<Vec<u32>>() {
        if !maker.batch.more && maker.rows_left() == 0 {
            (maker.batch.more, maker.batch.next) = (true, handle);
        }
        if maker.batch.more {
            break;
        }
        match maker.process(handle).await {
            Err(error @ DaemonError::Refused { .. }) => {
                tracing::warn!(
                    handle,
                    error = &error as &dyn std::error::Error,
                    "a process"
                );
            }
            other => other?,
        }
    }
    maker.forgotten();
    maker.snapshots().await?;
    Ok(maker.batch)
}

/// The rows about files with events that had to be dropped for lack of room: their names, and how many rows they had.
#[must_use]
pub fn dropped(node: &Node, number: u64, files: &[(String, u64)]) -> Vec<Row> {
    let now = ear::now_ns();
    let origin = Origin {
        node,
        batch: number,
        epoch: 0,
    };
    let rows = files.iter().map(|(object, rows)| {
        let gap = Gap {
            of_table: crate::spool::MAY_BE_DROPPED.to_owned(),
            reason: "dropped",
            missing: Some(*rows),
            object: Some(object.clone()),
            ..Gap::default()
        };
        rows::gap(&origin, &gap, None, now)
    });
    rows.collect()
}

impl Maker<'_> {
    fn origin(&self, epoch: u64) -> Origin<'_> {
        Origin {
            node: self.node,
            batch: self.number,
            epoch,
        }
    }

    /// How many rows it takes yet.
    fn rows_left(&self) -> usize {
        self.room.rows.saturating_sub(self.batch.rows.len())
    }

    fn seen(&mut self, handle: u32) -> &mut Seen {
        self.seen_in(self.epoch, handle)
    }

    fn seen_in(&mut self, epoch: u64, handle: u32) -> &mut Seen {
        let key = key(epoch, handle);
        self.batch.cursor.processes.entry(key).or_default()
    }

    fn gap(&mut self, gap: &Gap, handle: Option<u32>) {
        let process = handle.and_then(|handle| self.processes.get(&handle));
        let row = rows::gap(&self.origin(self.epoch), gap, process, self.now_ns);
        self.batch.rows.push(row);
    }

    /// The epoch of an event. It is not the present one if the daemon was started anew since the event was heard.
    fn epoch_of(&self, event: &v1::Event) -> u64 {
        event.id.as_ref().map_or(self.epoch, |id| id.epoch)
    }

    /// The process of an event. Of one that is not listed any more nothing but its numbers is known. A daemon that was
    /// started anew counts its handles anew, so those of an earlier epoch are not among the listed ones.
    fn process_of(&self, event: &v1::Event) -> Option<v1::Process> {
        let is_present = self.epoch_of(event) == self.epoch;
        let known = self.processes.get(&event.process);
        known.filter(|_| is_present).cloned().or_else(|| {
            Some(v1::Process {
                handle: event.process,
                facts: Some(v1::ProcessFacts {
                    pid: event.pid?,
                    ..v1::ProcessFacts::default()
                }),
                ..v1::Process::default()
            })
        })
    }

    /// Adds a row for each finding that is new, or is no longer told as it was.
    fn alerts(&mut self, heard: &ear::Heard) {
        let mut cursor = self.batch.cursor.alerts.clone();
        for sound in &heard.sounds {
            let is_new = self.follow(&mut cursor, sound, &["findings"]);
            let Sound::Event(event) = sound else {
                continue;
            };
            let process = self.process_of(event);
            let epoch = self.epoch_of(event);
            let origin = self.origin(epoch);
            let row = match &event.body {
                Some(Body::Finding(finding)) => {
                    let row = rows::finding(&origin, event, finding, process.as_ref(), self.now_ns);
                    let standing = &mut self.seen_in(epoch, event.process).standing;
                    // Whoever connects anew is told again of what stands.
                    let changed = match finding.withdrawn {
                        true => standing.remove(&finding.number) || is_new,
                        false => standing.insert(finding.number),
                    };
                    changed.then_some(row)
                }
                _ => None,
            };
            self.batch.rows.extend(row);
        }
        self.batch.cursor.alerts = cursor;
    }

    /// All events.
    fn events(&mut self, heard: &ear::Heard) {
        let mut cursor = self.batch.cursor.events.clone();
        for sound in &heard.sounds {
            if !self.follow(&mut cursor, sound, &["events"]) {
                continue;
            }
            if let Sound::Event(event) = sound {
                let process = self.process_of(event);
                let origin = self.origin(self.epoch_of(event));
                let row = rows::event(&origin, event, process.as_ref(), self.now_ns);
                self.batch.rows.push(row);
            }
        }
        self.batch.cursor.events = cursor;
    }

    /// Follows a stream and tells of what is missing in it, of these tables. Whether it is an event that comes after all that were heard.
    fn follow(
        &mut self,
        cursor: &mut crate::cursor::Heard,
        sound: &Sound,
        tables: &[&str],
    ) -> bool {
        let event = match sound {
            Sound::Begins => {
                cursor.interrupted = true;
                return false;
            }
            Sound::NoRoom {
                epoch,
                count,
                first,
                last,
            } => {
                let same = cursor.epoch == *epoch;
                let from = if same { cursor.sequence + 1 } else { 1 };
                let may_lack = cursor.interrupted && from < *first && cursor.epoch != 0;
                let not_connected = may_lack.then(|| ("not_connected", None, (from, *first - 1)));
                let no_room = ("no_room", Some(*count), (*first, *last));
                for (reason, missing, (from, to)) in not_connected.into_iter().chain([no_room]) {
                    for table in tables {
                        let gap = Gap {
                            of_table: (*table).to_owned(),
                            reason,
                            missing,
                            numbers: (Some(from), Some(to)),
                            ..Gap::default()
                        };
                        let row = rows::gap(&self.origin(*epoch), &gap, None, self.now_ns);
                        self.batch.rows.push(row);
                    }
                }
                let sequence = if same { cursor.sequence } else { 0 };
                *cursor = crate::cursor::Heard {
                    epoch: *epoch,
                    sequence: (*last).max(sequence),
                    unix_ns: cursor.unix_ns,
                    // Findings that stand are told anew to whoever connects, however old they are.
                    interrupted: cursor.interrupted && *last <= sequence,
                };
                return false;
            }
            Sound::Event(event) => event,
        };
        let Some(id) = &event.id else {
            return false;
        };
        let before = cursor.clone();
        let is_first = before.epoch == 0;
        let same = before.epoch == id.epoch;
        if same && id.sequence <= before.sequence {
            return false;
        }
        // What stands is told to whoever connects, however old it is: before the archive's first event there is no gap.
        let unix_ns = event.time_unix_ns.unwrap_or(self.now_ns);
        let from = if same { before.sequence + 1 } else { 1 };
        let reason = if event.missed > 0 {
            "missed"
        } else {
            "not_connected"
        };
        let may_lack = from < id.sequence && before.interrupted || event.missed > 0;
        if may_lack && !is_first {
            for table in tables {
                let gap = Gap {
                    of_table: (*table).to_owned(),
                    reason,
                    missing: (event.missed > 0 && !before.interrupted).then_some(event.missed),
                    time_ns: (before.unix_ns, unix_ns),
                    numbers: (Some(from), Some(id.sequence - 1)),
                    ..Gap::default()
                };
                let row = rows::gap(&self.origin(id.epoch), &gap, None, self.now_ns);
                self.batch.rows.push(row);
            }
        }
        // A finding may be such an old one. Then what came between it and the next event was not heard either. Whoever listens to findings
        // alone cannot tell, because every one of them may be old.
        let may_be_old = matches!(event.body, Some(v1::event::Body::Finding(_)));
        *cursor = crate::cursor::Heard {
            epoch: id.epoch,
            sequence: id.sequence,
            unix_ns,
            interrupted: before.interrupted && may_be_old && tables.contains(&"events"),
        };
        true
    }

    /// Findings that stand in the archive and are not told of any more.
    fn over(&mut self, standing: &BTreeMap<u32, BTreeSet<u64>>) {
        let nothing = BTreeSet::new();
        let mut gone = Vec::new();
        for process in self.processes.values() {
            let key = key(self.epoch, process.handle);
            let Some(seen) = self.batch.cursor.processes.get(&key) else {
                continue;
            };
            let told = standing.get(&process.handle).unwrap_or(&nothing);
            let is_live = process.state() == v1::ProcessState::Attached;
            // As long as not all that stand were told, nothing follows from what was not.
            if is_live && told.len() as u64 != process.growing_lines.unwrap_or(0) {
                continue;
            }
            let over = seen
                .standing
                .iter()
                .filter(|it| !is_live || !told.contains(it));
            gone.extend(over.map(|number| (process.handle, *number)));
        }
        for (handle, number) in gone {
            let process = self.processes.get(&handle);
            let row = rows::finding_over(&self.origin(self.epoch), number, process, self.now_ns);
            self.batch.rows.push(row);
            self.seen(handle).standing.remove(&number);
        }
    }

    /// What is new of one process. Nothing of it counts if a question is refused.
    async fn process(&mut self, handle: u32) -> Result<(), DaemonError> {
        let Some(process) = self.processes.get(&handle).cloned() else {
            return Ok(());
        };
        // It has nothing to tell, and nothing is missing if it ends before it uses a device.
        if process.waits_for_device {
            return Ok(());
        }
        let mut seen = self.seen(handle).clone();
        if seen.ended {
            return Ok(());
        }
        let ended = process.state() != v1::ProcessState::Attached;
        let made = self.rows_of(&process, &mut seen, ended).await;
        self.take(handle, seen, ended, made)
    }

    /// Takes what is new of a process. Of one that has ended and is forgotten or given up, the daemon will never say more.
    fn take(
        &mut self,
        handle: u32,
        mut seen: Seen,
        ended: bool,
        made: Result<Made, DaemonError>,
    ) -> Result<(), DaemonError> {
        let Made { rows, gaps, more } = match made {
            Ok(made) => made,
            Err(error) if ended && (error.is_not_found() || error.is_given_up()) => {
                seen.ended = true;
                Made {
                    gaps: lacks_process("forgotten"),
                    ..Made::default()
                }
            }
            Err(error) => return Err(error),
        };
        if more {
            (self.batch.more, self.batch.next) = (true, handle);
        }
        self.batch.rows.extend(rows);
        for gap in gaps {
            self.gap(&gap, Some(handle));
        }
        *self.seen(handle) = seen;
        Ok(())
    }

    async fn rows_of(
        &self,
        process: &v1::Process,
        seen: &mut Seen,
        ended: bool,
    ) -> Result<Made, DaemonError> {
        let origin = self.origin(self.epoch);
        let pid = process.facts.as_ref().map_or(0, |facts| facts.pid);
        let is_it = |answer: &Option<v1::Process>| {
            answer
                .as_ref()
                .is_some_and(|it| it.handle == process.handle)
        };
        let stats = self.daemon.stats(pid).await?;
        let steps = self.daemon.steps(pid).await?;
        if !is_it(&stats.process) || !is_it(&steps.process) {
            return Ok(number_taken(seen, ended));
        }
        let mut made = Made::default();
        new_steps(&origin, &steps, process, seen, self.rows_left(), &mut made);
        if made.more {
            // All else comes with the last of the steps.
            return Ok(made);
        }
        // It may have ended since the list was made: then the next batch has its end.
        made.rows
            .extend(rows::peaks(&origin, &stats, process, ended));
        for device in &stats.devices {
            let name = device.device.map_or("none".to_owned(), |it| it.to_string());
            let known = seen.ooms.entry(name).or_default();
            let count = device.oom_count.saturating_sub(*known);
            if count > 0 {
                let since = seen.looked_ns;
                made.rows
                    .push(rows::ooms(&origin, &stats, device, process, count, since));
            }
            *known = device.oom_count;
        }
        seen.looked_ns = stats.as_of;
        let hour = self.now_ns / HOUR_NS;
        if ended || seen.stacks_hour.is_none_or(|before| before < hour) {
            let metric = match ended {
                true => v1::StackMetric::Peak,
                false => v1::StackMetric::Live,
            };
            let stacks = self.daemon.stacks(pid, metric, STACKS).await;
            match stacks {
                Ok(stacks) if is_it(&stacks.process) => {
                    made.rows
                        .extend(rows::stacks(&origin, &stacks, process, ended));
                }
                Ok(_) => made.gaps.push(lacks(StackRow::TABLE.name, NUMBER_TAKEN)),
                // A process without stacks has other rows. A daemon that is busy is asked again, as for all of the process.
                Err(error @ DaemonError::Refused { .. }) if !error.is_busy() => {
                    tracing::debug!(pid, %error, "stacks");
                }
                Err(error) => return Err(error),
            }
            seen.stacks_hour = Some(hour);
        }
        seen.ended = ended;
        Ok(made)
    }

    /// Processes that the archive knows and that are not listed any more.
    fn forgotten(&mut self) {
        let listed: BTreeSet<String> = self
            .processes
            .keys()
            .map(|handle| key(self.epoch, *handle))
            .collect();
        let known = std::mem::take(&mut self.batch.cursor.processes);
        for (name, seen) in known {
            if listed.contains(&name) {
                self.batch.cursor.processes.insert(name, seen);
                continue;
            }
            let Some((epoch, handle)) = of_key(&name) else {
                continue;
            };
            // Nobody will tell of it any more. Nothing but its number is known.
            let process = v1::Process {
                handle,
                ..v1::Process::default()
            };
            for number in &seen.standing {
                let origin = self.origin(epoch);
                let row = rows::finding_over(&origin, *number, Some(&process), self.now_ns);
                self.batch.rows.push(row);
            }
            let gaps = lacks_process("forgotten");
            for gap in gaps.into_iter().filter(|_| !seen.ended) {
                let object = Some(format!("process {name}"));
                let gap = Gap { object, ..gap };
                let row = rows::gap(&self.origin(epoch), &gap, Some(&process), self.now_ns);
                self.batch.rows.push(row);
            }
        }
    }

    /// Snapshots that the daemon took by itself.
    async fn snapshots(&mut self) -> Result<(), DaemonError> {
        let kept = self.daemon.kept().await?;
        let listed: BTreeSet<(u64, u64)> = kept
            .iter()
            .map(|it| (it.snapshot, it.time_unix_ns))
            .collect();
        self.batch.cursor.snapshots.retain(|it| listed.contains(it));
        let mut bytes = 0;
        for kept in kept {
            let number = (kept.snapshot, kept.time_unix_ns);
            if self.batch.cursor.snapshots.contains(&number) {
                continue;
            }
            let fits = kept.bytes <= self.room.snapshot_bytes;
            if fits && bytes + kept.bytes > self.room.snapshot_bytes {
                self.batch.more = true;
                break;
            }
            let process = self.process_at(&kept).await?;
            let content = match fits {
                true => match self.daemon.content(kept.snapshot, kept.bytes).await {
                    Ok(content) => Some(content),
                    Err(error) if error.is_not_found() => {
                        self.gap(&lacks(SnapshotRow::TABLE.name, "forgotten"), None);
                        continue;
                    }
                    Err(error @ DaemonError::Refused { .. }) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "a snapshot");
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                false => {
                    let gap = Gap {
                        of_table: SnapshotRow::TABLE.name.to_owned(),
                        reason: "too_large",
                        numbers: (Some(kept.snapshot), Some(kept.snapshot)),
                        ..Gap::default()
                    };
                    self.gap(&gap, None);
                    None
                }
            };
            bytes += content.as_ref().map_or(0, |content| content.len() as u64);
            let row = rows::snapshot(&self.origin(self.epoch), &kept, content, Some(&process));
            self.batch.rows.push(row);
            self.batch.cursor.snapshots.insert(number);
        }
        Ok(())
    }

    /// The process of a snapshot, as far as it is listed.
    async fn process_at(&self, kept: &v1::KeptSnapshot) -> Result<v1::Process, DaemonError> {
        let of_pid = |process: &&v1::Process| {
            let facts = process.facts.as_ref();
            facts.is_some_and(|it| it.pid == kept.pid && it.comm == kept.comm && it.uid == kept.uid)
        };
        let all: Vec<&v1::Process> = self.processes.values().filter(of_pid).collect();
        // Processes tell their times in boot time, and an answer about one of them says what that was when.
        let then_boot_ns = match all.is_empty() {
            true => None,
            false => match self.daemon.stats(kept.pid).await {
                Ok(stats) => {
                    let later = stats.as_of_boot_ns.checked_add(kept.time_unix_ns);
                    later.and_then(|later| later.checked_sub(stats.as_of))
                }
                Err(DaemonError::Refused { .. }) => None,
                Err(error) => return Err(error),
            },
        };
        Ok(of_several(&all, kept, then_boot_ns))
    }
}

/// Which of several processes with one number a snapshot is of: the one that was attached last before it, because they come one after the
/// other. It may have ended just before, as a process does whose memory ran out. `then_boot_ns` is the moment that the snapshot describes,
/// in boot time. Where that is not known it is the only one, if there is one only. Else, or where all came later, what they have in common
/// is sure, and what the daemon wrote beside it.
fn of_several(
    all: &[&v1::Process],
    kept: &v1::KeptSnapshot,
    then_boot_ns: Option<u64>,
) -> v1::Process {
    let before =
        |process: &&&v1::Process| then_boot_ns.is_some_and(|then| process.attached_boot_ns <= then);
    let before = all.iter().filter(before);
    if let Some(last) = before.max_by_key(|process| process.attached_boot_ns) {
        return (*last).clone();
    }
    if let ([only], None) = (all, then_boot_ns) {
        return (*only).clone();
    }
    let workload = all.first().and_then(|first| first.workload.as_ref());
    let is_shared = all.iter().all(|one| one.workload.as_ref() == workload);
    v1::Process {
        facts: Some(v1::ProcessFacts {
            pid: kept.pid,
            comm: kept.comm.clone(),
            ..v1::ProcessFacts::default()
        }),
        workload: workload.filter(|_| is_shared).cloned(),
        ..v1::Process::default()
    }
}

/// Why a process of which memscoped still knows has no rows: questions name a process by its number, and a later one has that now.
const NUMBER_TAKEN: &str = "number_taken";

/// What is told of a process whose number a later one has. Questions are about that one.
fn number_taken(seen: &mut Seen, ended: bool) -> Made {
    // One that was listed as running is asked for again, once it is listed as ended.
    if !ended {
        return Made::default();
    }
    seen.ended = true;
    Made {
        gaps: lacks_process(NUMBER_TAKEN),
        ..Made::default()
    }
}

fn lacks(table: &str, reason: &'static str) -> Gap {
    Gap {
        of_table: table.to_owned(),
        reason,
        ..Gap::default()
    }
}

/// A process ended, and nobody answers for what it did last: each table may lack rows of it.
fn lacks_process(reason: &'static str) -> Vec<Gap> {
    let tables = [
        PeakRow::TABLE,
        StepRow::TABLE,
        StackRow::TABLE,
        OomRow::TABLE,
    ];
    tables.map(|table| lacks(table.name, reason)).into()
}

/// What is new of a process.
#[derive(Debug, Default)]
struct Made {
    rows: Vec<Row>,
    gaps: Vec<Gap>,
    /// There are more steps than the batch takes.
    more: bool,
}

/// The steps that end after the last one that is written: whole ones, up to so many rows or the first one.
fn new_steps(
    origin: &Origin<'_>,
    answer: &v1::StepsResponse,
    process: &v1::Process,
    seen: &mut Seen,
    most: usize,
    made: &mut Made,
) {
    let source = answer.summary.as_ref().map_or(0, |it| it.source);
    let told = v1::StepSource::try_from(source).unwrap_or_default();
    let unix = |boot_ns: u64| {
        let ago = answer.as_of_boot_ns.saturating_sub(boot_ns);
        answer.as_of.saturating_sub(ago)
    };
    let before = seen.clone();
    // Before its first step nothing is known of it from the attach on.
    let begin = match before.steps_to_ns {
        0 => process.attached_boot_ns,
        written => written,
    };
    let gap = |reason, first: &v1::StepRow, missing, numbers| Gap {
        of_table: StepRow::TABLE.name.to_owned(),
        reason,
        missing,
        time_ns: (unix(begin), unix(first.from_boot_ns)),
        numbers,
        ..Gap::default()
    };
    let later = answer
        .rows
        .iter()
        .filter(|row| row.to_boot_ns > before.steps_to_ns);
    // A step has a row for each device.
    let devices: BTreeSet<Option<i32>> = answer.rows.iter().map(|row| row.device).collect();
    let rows_of = |steps: u64| Some(steps.saturating_mul(devices.len() as u64));
    let mut is_first = true;
    for row in later {
        if made.rows.len() >= most.max(1) && row.to_boot_ns > seen.steps_to_ns {
            made.more = true;
            return;
        }
        // Where a better sign of steps was found, they are counted anew, and one may begin in what is written already.
        if row.from_boot_ns < before.steps_to_ns {
            made.gaps.push(gap(
                "renumbered",
                row,
                Some(1),
                (Some(row.step), Some(row.step)),
            ));
            is_first = false;
            seen.wrote(row, source);
            continue;
        }
        // Not each number that is missing is forgotten: a step in which nothing was asked of the driver has no row where only the driver is
        // watched, nor have the steps in which a pattern was recognised.
        let is_forgotten = answer.forgotten_to_boot_ns > Some(before.steps_to_ns);
        if is_first && is_forgotten && row.from_boot_ns > before.steps_to_ns {
            let is_same = before.steps_to_ns == 0 || before.step_source == source;
            let from = before.step + 1;
            let missing = row
                .step
                .checked_sub(from)
                .filter(|steps| is_same && *steps > 0);
            let level = process.facts.as_ref().map(v1::ProcessFacts::level);
            let has_all = matches!(level, Some(v1::Level::Blocks | v1::Level::Trace))
                && told != v1::StepSource::Pattern;
            let numbers = missing.map(|_| (Some(from), Some(row.step - 1)));
            made.gaps.push(gap(
                "forgotten",
                row,
                missing.and_then(rows_of).filter(|_| has_all),
                numbers.unwrap_or_default(),
            ));
        }
        is_first = false;
        made.rows.push(rows::step(
            origin,
            row,
            told,
            Some(process),
            unix(row.to_boot_ns),
        ));
        seen.wrote(row, source);
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
