//! The course of a snapshot's memory over time: when each block lived, and how much was held at which moment.
//!
//! Owns: lifetimes and levels. They are computed backwards from the state at `as_of` and forwards
//! through the trace. Refuses: rounded sizes, which the trace does not have. Bytes here are requested
//! bytes; where those are not known (blocks from before the attach, and those of which only the report came) they are the
//! block's rounded bytes. At the level `blocks` no entry tells a requested size, and those of segments are missing, so that
//! reserved bytes are known at `as_of` only.
//!
//! Without loss, the levels are exact. After a loss they stay plausible: a block whose free was not
//! seen ends where its address is handed out again, or at `as_of` if the state does not have it any more, and is
//! marked as `End::Lost`. `Levels::walk` reports no level below zero.

use crate::belonging::Belonging;
use crate::private_pool::Pool;
use memscope_ledger::event::TraceAction;
use memscope_ledger::report::{BlockState, SnapshotReport, SnapshotTrace};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How the life of a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has not ended: the block is handed out at `as_of`.
    Live,
    /// Its free is in the trace.
    Seen,
    /// The block is gone and its free was lost. `gone_ns` is the latest moment at which it can have been freed.
    Lost,
}

/// One block from the moment at which it was handed out to the moment at which its free was requested (a stream may use
/// it for longer).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) device: i32,
    pub(crate) pool: Pool,
    pub(crate) stream: u64,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    /// `size` is the requested size, not the rounded one.
    pub(crate) requested: bool,
    /// `born_ns` is the moment at which the block was handed out. If this is false, `born_ns` is the earliest moment at
    /// which we know that it lived.
    pub(crate) born_known: bool,
    /// The trace has its allocation, so the level rises there.
    in_trace: bool,
    pub(crate) born_ns: u64,
    pub(crate) gone_ns: u64,
    pub(crate) end: End,
}

/// A change of the bytes that one pool of one device holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelStep {
    pub(crate) time_ns: u64,
    /// Index into `History::places`.
    pub(crate) place: usize,
    pub(crate) allocated: i64,
    pub(crate) reserved: i64,
}

/// One pool of one device, and the bytes that it held when its device's part of the trace begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DevicePool {
    pub(crate) device: i32,
    pub(crate) pool: Pool,
    pub(crate) allocated: i64,
    pub(crate) reserved: i64,
}

/// Lifetimes and levels of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) lives: Vec<Life>,
    pub(crate) places: Vec<DevicePool>,
    /// Ordered by time.
    pub(crate) steps: Vec<LevelStep>,
    /// For each device, the moment from which on its levels are known.
    pub(crate) from_ns: BTreeMap<i32, u64>,
    /// Devices whose reserved bytes are known at the end only.
    pub(crate) reserved_at_end: BTreeSet<i32>,
    /// The moment of the snapshot.
    pub(crate) as_of_ns: u64,
}

impl History {
    pub(crate) fn of(report: &SnapshotReport) -> History {
        let mut history = History {
            as_of_ns: report.as_of.boot_ns,
            ..History::default()
        };
        let blocks = only_blocks(report);
        for entry in &report.trace {
            if blocks {
                history.reserved_at_end.insert(entry.device);
            }
            let from = history.from_ns.entry(entry.device).or_insert(u64::MAX);
            *from = entry.time_ns.min(*from);
        }
        for segment in &report.segments {
            let from = history.from_ns.entry(segment.device);
            from.or_insert(report.as_of.boot_ns);
        }
        let belonging = Belonging::of(report);
        history.live_through(report, &belonging);
        history.step_through(report, &belonging);
        history
    }

    fn live_through(&mut self, report: &SnapshotReport, belonging: &Belonging) {
        let mut open: HashMap<(i32, u64), usize> = HashMap::new();
        let blocks = only_blocks(report);
        for (at, entry) in report.trace.iter().enumerate() {
            let key = (entry.device, entry.addr);
            let life = |entry| life(entry, belonging.pool(at, entry), blocks);
            match entry.action {
                TraceAction::Alloc => {
                    if let Some(index) = open.insert(key, self.lives.len()) {
                        self.end(index, entry.time_ns, End::Lost);
                    }
                    self.lives.push(Life {
                        born_known: true,
                        in_trace: true,
                        born_ns: entry.time_ns,
                        ..life(entry)
                    });
                }
                TraceAction::FreeRequested => match open.remove(&key) {
                    Some(index) => self.end(index, entry.time_ns, End::Seen),
                    None => self.lives.push(Life {
                        born_ns: self.from(entry.device),
                        gone_ns: entry.time_ns,
                        end: End::Seen,
                        ..life(entry)
                    }),
                },
                // The block is still open here only if the record of the request was lost.
                TraceAction::FreeCompleted => {
                    if let Some(index) = open.remove(&key) {
                        self.end(index, entry.time_ns, End::Seen);
                    }
                }
                _ => {}
            }
        }
        let as_of = report.as_of.boot_ns;
        for segment in &report.segments {
            let active = |state| matches!(state, BlockState::Active);
            for block in segment.blocks.iter().filter(|block| active(block.state)) {
                if let Some(index) = open.remove(&(segment.device, block.addr)) {
                    self.end(index, as_of, End::Live);
                    continue;
                }
                let born_ns = match block.since_ns {
                    0 => self.from(segment.device),
                    known => known,
                };
                self.lives.push(Life {
                    device: segment.device,
                    pool: segment.pool,
                    stream: segment.stream,
                    addr: block.addr,
                    size: block.requested.unwrap_or(block.size),
                    requested: block.requested.is_some(),
                    born_known: block.since_ns != 0,
                    in_trace: false,
                    born_ns: born_ns.min(as_of),
                    gone_ns: as_of,
                    end: End::Live,
                });
            }
        }
        for index in open.into_values() {
            self.end(index, as_of, End::Lost);
        }
    }

    fn end(&mut self, index: usize, time_ns: u64, end: End) {
        if let Some(life) = self.lives.get_mut(index) {
            life.gone_ns = time_ns.max(life.born_ns);
            life.end = end;
        }
    }

    pub(crate) fn from(&self, device: i32) -> u64 {
        self.from_ns.get(&device).copied().unwrap_or(0)
    }

    fn step_through(&mut self, report: &SnapshotReport, belonging: &Belonging) {
        let mut places = Places::default();
        let mut steps = Vec::with_capacity(2 * self.lives.len());
        for life in &self.lives {
            let place = places.index(life.device, life.pool);
            let bytes = signed(life.size);
            let rises = life.in_trace || life.born_ns > self.from(life.device);
            let mut step = |time_ns, allocated| {
                steps.push(LevelStep {
                    time_ns,
                    place,
                    allocated,
                    reserved: 0,
                });
            };
            if rises {
                step(life.born_ns, bytes);
            }
            if life.end != End::Live {
                step(life.gone_ns, -bytes);
            }
            if !rises {
                places.add(place, bytes, 0);
            }
        }
        for segment in &report.segments {
            let place = places.index(segment.device, segment.pool);
            places.add(place, 0, signed(segment.size));
        }
        for (at, entry) in report.trace.iter().enumerate() {
            let reserved = match entry.action {
                TraceAction::SegmentAlloc | TraceAction::SegmentMap => signed(entry.size),
                TraceAction::SegmentFree | TraceAction::SegmentUnmap => -signed(entry.size),
                _ => continue,
            };
            let place = places.index(entry.device, belonging.pool(at, entry));
            // The total at the start is the total at the end less what the trace adds.
            places.add(place, 0, -reserved);
            steps.push(LevelStep {
                time_ns: entry.time_ns,
                place,
                allocated: 0,
                reserved,
            });
        }
        // Steps that change nothing, so that each level is also reported at its beginning and its end.
        for (place, known) in places.places.iter().enumerate() {
            let told = |time_ns| LevelStep {
                time_ns,
                place,
                allocated: 0,
                reserved: 0,
            };
            steps.push(told(self.from(known.device)));
            steps.push(told(report.as_of.boot_ns));
        }
        steps.sort_unstable_by_key(|step: &LevelStep| step.time_ns);
        self.steps = steps;
        self.places = places.places;
    }
}

/// Bytes as a signed number. No device has 256 TiB, so sizes from there on are noise and count as 0; thus no sum
/// overflows.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes < 1 << 48)
        .unwrap_or(0)
}

/// Whether the process was followed at the level `blocks`, of which the entries tell neither segments nor requested sizes. An import says it
/// by the same note. A level that fell after the attach, as where the library of PyTorch turned out to be stripped, has no note.
pub(crate) fn only_blocks(report: &SnapshotReport) -> bool {
    let of_segment = |entry: &SnapshotTrace| {
        matches!(
            entry.action,
            TraceAction::SegmentAlloc
                | TraceAction::SegmentMap
                | TraceAction::SegmentFree
                | TraceAction::SegmentUnmap
        )
    };
    if report.trace.iter().any(of_segment) {
        return false;
    }
    let mut notes = report.coverage.iter();
    notes.any(|note| note.code == "level_blocks")
        || (!report.trace.is_empty() && report.trace.iter().all(|entry| entry.reported))
}

fn life(entry: &SnapshotTrace, pool: Pool, blocks: bool) -> Life {
    Life {
        device: entry.device,
        pool,
        stream: entry.stream,
        addr: entry.addr,
        size: entry.size,
        requested: !entry.reported && !blocks,
        born_known: false,
        in_trace: false,
        born_ns: entry.time_ns,
        gone_ns: entry.time_ns,
        end: End::Lost,
    }
}

#[derive(Default)]
struct Places {
    places: Vec<DevicePool>,
    known: HashMap<(i32, Pool), usize>,
}

impl Places {
    fn index(&mut self, device: i32, pool: Pool) -> usize {
        *self.known.entry((device, pool)).or_insert_with(|| {
            self.places.push(DevicePool {
                device,
                pool,
                allocated: 0,
                reserved: 0,
            });
            self.places.len() - 1
        })
    }

    fn add(&mut self, index: usize, allocated: i64, reserved: i64) {
        if let Some(place) = self.places.get_mut(index) {
            place.allocated += allocated;
            place.reserved += reserved;
        }
    }
}
