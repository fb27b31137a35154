//! Turns a snapshot into the ledger's events.
//!
//! Owns: the order of the events. The state at the beginning of each device's trace, which is the snapshot with the trace undone, is a reading;
//! then come the entries of the traces and the program's annotations by their times. Refuses: to say what a snapshot does not say: whose
//! process it was, its rank, what lies outside PyTorch's pool.

mod held;
mod stacks;

use crate::doubts::{self, Doubts};
use crate::pool::{Pool, Rules, Undone};
use crate::reader::{Pickle, Value};
use crate::snapshot::{Action, NotASnapshot};
use crate::whole::{Annotation, Device, Entry, Settings, Snapshot};
use held::held;
use memscope_ledger::event::{
    AllocatorFacts, AllocatorSettings, Backend, Body, CoverageNote, Event, EventId, HeldPart,
    Level, Mark, MarkKind, MarkSource, Placement, PoolTrace, ProcessFacts, ProcessHandle, StackRef,
    TraceAction,
};
use stacks::Stacks;

/// The process of all events.
const PROCESS: ProcessHandle = ProcessHandle(1);
/// Bytes of the longest name of an annotation that is told whole.
const LONGEST_NAME: usize = 1024;

/// What a pickle says beside its content.
#[derive(Clone, Debug)]
pub struct About<'a> {
    /// Name of the file, which stands for the process's name.
    pub name: &'a str,
    /// When the file was written, nanoseconds since 1970: the moment of a snapshot that says no time itself.
    pub written_ns: u64,
}

/// What became of a pickle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of entries of the traces.
    pub entries: u64,
    /// Number of those that are in no event.
    pub left_out: u64,
    /// Time of the first event, nanoseconds since 1970.
    pub begun_ns: u64,
}

/// The events of a snapshot, of which a reading may still have to be cut into parts.
///
/// # Errors
/// The pickle is no snapshot, or `take` says so.
pub fn import<E: From<NotASnapshot>>(
    pickle: &Pickle,
    about: &About<'_>,
    take: &mut dyn FnMut(Event) -> Result<(), E>,
) -> Result<Counts, E> {
    let snapshot = Snapshot::read(pickle, about.written_ns)?;
    let firsts = snapshot
        .devices
        .values()
        .filter_map(|device| device.trace.first());
    let first_ns = firsts.map(|entry| entry.time_ns);
    let annotated_ns = snapshot.annotations.first().map(|one| one.time_ns);
    let first_ns = first_ns.chain(annotated_ns).min();
    let as_of_ns = snapshot.origin.as_of_unix_ns;
    let begun_ns = first_ns
        .or(as_of_ns)
        .unwrap_or(about.written_ns)
        .saturating_sub(1)
        .max(1);
    let mut log = Log {
        pickle,
        take,
        begun_ns,
        now_ns: begun_ns,
        sequence: 0,
        stacks: Stacks::default(),
    };
    log.begin(about, &snapshot)?;
    let counts = Counts {
        entries: snapshot
            .devices
            .values()
            .map(|one| one.trace.len() as u64)
            .sum::<u64>()
            + snapshot.unknown,
        left_out: snapshot.unknown,
        begun_ns,
    };
    let lacks = log.devices(&snapshot)?;
    for (code, text) in notes(&snapshot, &lacks) {
        log.tell(Body::Coverage(CoverageNote {
            code: code.to_owned(),
            text,
        }))?;
    }
    log.now_ns = log.now_ns.max(as_of_ns.unwrap_or(0));
    log.tell(Body::Detached)?;
    Ok(counts)
}

/// What was not as it should be, over all devices.
#[derive(Default)]
struct Lacks {
    guessed: u64,
    unsure: u64,
    without_trace: u64,
    doubts: Vec<Doubts>,
}

fn notes(snapshot: &Snapshot, lacks: &Lacks) -> Vec<(&'static str, String)> {
    let mut notes = vec![(
        "imported_snapshot",
        "imported from a snapshot of PyTorch's: it has PyTorch's pool only, and of the time before its trace only what was still there"
            .to_owned(),
    )];
    if !snapshot.has_times {
        notes.push((
            "import_time_of_file",
            "the snapshot says no time: its moment is that at which the file was written"
                .to_owned(),
        ));
    }
    if lacks.without_trace > 0 && snapshot.has_times {
        notes.push((
            "import_no_trace",
            format!(
                "{} devices have no trace: what they held before the snapshot is not known",
                lacks.without_trace
            ),
        ));
    }
    if lacks.guessed > 0 {
        notes.push((
            "import_sizes_rounded",
            format!(
                "of {} blocks that were there before the trace and went in it only the requested size is known: until they went, the allocator's \
                 rounding of that counts",
                lacks.guessed
            ),
        ));
    }
    if lacks.unsure > 0 {
        notes.push((
            "import_padding_unknown",
            format!(
                "{} blocks that came and went may have been larger by 512 bytes: whether the allocator adds 32 bytes to a request before it rounds it, \
                 as torch_npu does, shows at no block that is left",
                lacks.unsure
            ),
        ));
    }
    if snapshot.unknown > 0 {
        notes.push((
            "import_rows_left_out",
            format!(
                "{} entries of the trace have an action that is not known and were left out",
                snapshot.unknown
            ),
        ));
    }
    if snapshot.untimed > 0 {
        notes.push((
            "import_times_unknown",
            format!(
                "{} entries of the trace have no time, as torch_npu writes none: they are told in their order, but when each of them was, and what \
                 came first on different devices, is not known",
                snapshot.untimed
            ),
        ));
    }
    if snapshot.worded > 0 {
        notes.push((
            "import_words_left_out",
            format!(
                "{} entries have words that the program added (user_metadata), which are not shown",
                snapshot.worded
            ),
        ));
    }
    notes.extend(doubts::notes(&lacks.doubts).map(|note| (note.code, note.text)));
    notes
}

struct Log<'a, E> {
    pickle: &'a Pickle,
    take: &'a mut dyn FnMut(Event) -> Result<(), E>,
    begun_ns: u64,
    now_ns: u64,
    sequence: u64,
    stacks: Stacks,
}

/// A device whose trace is told.
struct Telling<'a> {
    ordinal: i32,
    device: &'a Device,
    undone: Undone,
    next: usize,
    totals_up_to: usize,
    leads_to_end: bool,
    is_reserved_known: bool,
}

impl<E> Log<'_, E> {
    fn push(&mut self, process: ProcessHandle, stack: StackRef, body: Body) -> Result<(), E> {
        self.sequence += 1;
        (self.take)(Event {
            id: EventId {
                epoch: self.begun_ns,
                sequence: self.sequence,
            },
            time_ns: self.now_ns,
            process,
            tid: 0,
            lost_before: 0,
            stack,
            sampling: 0,
            body,
        })
    }

    fn tell(&mut self, body: Body) -> Result<(), E> {
        self.push(PROCESS, StackRef::NotTaken, body)
    }

    fn begin(&mut self, about: &About<'_>, snapshot: &Snapshot) -> Result<(), E> {
        let unix_ns = self.begun_ns;
        self.push(
            ProcessHandle(0),
            StackRef::NotTaken,
            Body::Clock { unix_ns },
        )?;
        let origin = snapshot.origin;
        let generation = origin.generation;
        let facts = ProcessFacts {
            pid: origin.pid.unwrap_or(0),
            start_ticks: origin.start_ticks.unwrap_or(0),
            generation: generation
                .and_then(|number| u32::try_from(number).ok())
                .unwrap_or(0),
            image: origin.image,
            comm: about.name.to_owned(),
            level: Some(Level::Trace),
            ..ProcessFacts::default()
        };
        self.tell(Body::Attached(Box::new(facts)))?;
        let placement = Placement {
            ways: vec!["PyTorch's snapshot".to_owned()],
            pool_seen: true,
            function_ends: true,
            ..Placement::default()
        };
        self.tell(Body::Placed(Box::new(placement)))?;
        self.tell(Body::Backend(Backend::Native))?;
        let last = snapshot.devices.last_key_value();
        self.tell(Body::Allocator(Box::new(AllocatorFacts {
            devices: last.map_or(0, |(ordinal, _)| ordinal.unsigned_abs() + 1),
            settings: snapshot.settings.as_ref().map(settings),
        })))?;
        // What limited the numbers when memscope wrote the file limits them at each moment of it.
        for note in &snapshot.notes {
            self.tell(Body::Coverage(CoverageNote {
                code: note.code.clone(),
                text: note.text.clone(),
            }))?;
        }
        Ok(())
    }

    /// The identity of a stack, of which the ledger is told if it is new.
    fn stack(&mut self, frames: Option<Value>) -> Result<StackRef, E> {
        let (stack, new) = self.stacks.of(self.pickle, frames);
        if let Some(new) = new {
            self.tell(Body::Stack(Box::new(new.seen)))?;
            for name in new.names {
                self.tell(name)?;
            }
        }
        Ok(stack)
    }

    /// Tells all traces by time, each device's after the state with which it begins.
    fn devices(&mut self, snapshot: &Snapshot) -> Result<Lacks, E> {
        let rules = Rules::of(snapshot);
        let mut lacks = Lacks::default();
        let mut telling = Vec::new();
        for (&ordinal, device) in &snapshot.devices {
            let undone = Pool::of(device).undo(&device.trace, &rules);
            let doubts = undone.judge(device, &rules);
            lacks.guessed += undone.guessed;
            lacks.unsure += undone.unsure(device, &rules);
            lacks.without_trace += u64::from(device.trace.is_empty());
            telling.push(Telling {
                totals_up_to: totals_up_to(&doubts, &device.trace),
                leads_to_end: doubts.leads_to_end,
                is_reserved_known: doubts.is_reserved_known(),
                ordinal,
                device,
                undone,
                next: 0,
            });
            lacks.doubts.push(doubts);
        }
        for one in telling.iter().filter(|one| one.device.trace.is_empty()) {
            self.reading(one.ordinal, &one.undone.pool, self.begun_ns)?;
        }
        let mut annotations = snapshot.annotations.iter().peekable();
        loop {
            let next = telling
                .iter_mut()
                .filter_map(|one| Some((one.device.trace.get(one.next)?, one)))
                .min_by_key(|(entry, _)| entry.time_ns);
            let next_ns = next.as_ref().map_or(u64::MAX, |(entry, _)| entry.time_ns);
            if let Some(mark) = annotations.next_if(|mark| mark.time_ns <= next_ns) {
                self.annotation(mark)?;
                continue;
            }
            let Some((entry, one)) = next else {
                break;
            };
            if one.next == 0 {
                let at_ns = entry.time_ns.saturating_sub(1);
                self.now_ns = self.now_ns.max(at_ns);
                self.reading(one.ordinal, &one.undone.pool, at_ns)?;
            }
            self.entry(one, entry, &rules)?;
            one.next += 1;
        }
        for one in telling {
            if !one.leads_to_end {
                let end = Pool::of(one.device);
                self.now_ns = self.now_ns.saturating_add(1);
                let now_ns = self.now_ns;
                self.reading(one.ordinal, &end, now_ns)?;
            }
        }
        Ok(lacks)
    }

    fn reading(&mut self, ordinal: i32, pool: &Pool, at_ns: u64) -> Result<(), E> {
        let mut told: Vec<Option<Value>> = Vec::new();
        // The stacks come before the reading that names them.
        held(pool, |frames| {
            told.extend(frames.map(Some));
            None
        });
        for frames in told {
            self.stack(frames)?;
        }
        let (pickle, stacks) = (self.pickle, &mut self.stacks);
        let (segments, total_allocated, total_reserved) =
            held(pool, |frames| match stacks.of(pickle, frames).0 {
                StackRef::Id(id) => Some(id),
                _ => None,
            });
        self.tell(Body::Held(Box::new(HeldPart {
            at_ns,
            device: ordinal,
            allocator: allocator(ordinal),
            part: 0,
            parts: 1,
            total_allocated,
            total_reserved,
            segments,
        })))
    }

    fn entry(&mut self, one: &mut Telling<'_>, entry: &Entry, rules: &Rules) -> Result<(), E> {
        self.now_ns = self.now_ns.max(entry.time_ns);
        let sizes = one.undone.redo((one.next, entry), rules);
        let stack = self.stack(entry.frames)?;
        let pool = &one.undone.pool;
        let totals = (one.next < one.totals_up_to).then_some((pool.allocated, pool.reserved));
        let trace = PoolTrace {
            action: told(entry.action),
            allocator: allocator(one.ordinal),
            device: Some(one.ordinal),
            addr: entry.addr,
            // The block of the snapshot says what was requested, the entry of a trace from level `blocks` does not.
            size: sizes.map_or(entry.size, |(_, requested)| match requested {
                0 => entry.size,
                _ => requested,
            }),
            stream: entry.stream,
            block_size: sizes.map(|(size, _)| size),
            total_allocated: totals.map(|(allocated, _)| allocated),
            total_reserved: totals
                .filter(|_| one.is_reserved_known)
                .map(|(_, reserved)| reserved),
            pool: one.undone.pool_of((one.next, entry)),
        };
        self.push(PROCESS, stack, Body::Trace(trace))
    }

    fn annotation(&mut self, mark: &Annotation) -> Result<(), E> {
        self.now_ns = self.now_ns.max(mark.time_ns);
        let name = mark.name.and_then(|name| self.pickle.text(name));
        let name = name.unwrap_or_default();
        let end = name.floor_char_boundary(LONGEST_NAME);
        let mark = Mark {
            kind: match mark.begins {
                true => MarkKind::Begin,
                false => MarkKind::End,
            },
            source: MarkSource::RecordFunction,
            range: 0,
            name: name.get(..end).unwrap_or_default().into(),
            cut: end < name.len(),
        };
        self.tell(Body::Mark(Box::new(mark)))
    }
}

/// Number of the entry from which on totals are not told. Where the trace does not lead to the snapshot, a reading sets the end right, and the
/// ledger believes none that contradicts the last total.
fn totals_up_to(doubts: &Doubts, trace: &[Entry]) -> usize {
    let comes = |entry: &Entry| entry.action == Action::Alloc;
    match doubts.leads_to_end {
        true => trace.len(),
        false => trace.iter().rposition(comes).unwrap_or(0),
    }
}

/// The ledger's form of the allocator's settings.
fn settings(told: &Settings) -> AllocatorSettings {
    AllocatorSettings {
        text: told.text.clone(),
        max_split_bytes: told.max_split_bytes,
        collection_threshold: told.collection_threshold,
        divisions: told.divisions.clone(),
    }
}

/// What stands for the address of a device's allocator, which no snapshot has.
fn allocator(ordinal: i32) -> u64 {
    u64::try_from(ordinal).unwrap_or(0) + 1
}

/// The ledger's word for an action.
const fn told(action: Action) -> TraceAction {
    match action {
        Action::Alloc => TraceAction::Alloc,
        Action::FreeRequested => TraceAction::FreeRequested,
        Action::FreeCompleted => TraceAction::FreeCompleted,
        Action::SegmentAlloc => TraceAction::SegmentAlloc,
        Action::SegmentFree => TraceAction::SegmentFree,
        Action::SegmentMap => TraceAction::SegmentMap,
        Action::SegmentUnmap => TraceAction::SegmentUnmap,
        Action::Snapshot => TraceAction::Snapshot,
        Action::Oom => TraceAction::Oom,
    }
}
