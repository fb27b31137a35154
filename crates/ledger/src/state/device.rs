//! One device as one process sees it.
//!
//! Owns: the counters of its pool and of its driver allocations. Refuses: single blocks and
//! allocations, which live by address in `pool` and `driver`.

use crate::event::{Body, DeviceTotal, Event, Hardware, Level};
use crate::report::{DriverBytes, Space};
use crate::state::distribution::Recorder;
use crate::state::driver::component::Components;
use crate::state::pool::block::Origin;
use crate::state::pool::held::HeldBlock;
use crate::state::pool::rooms::Rooms;
use crate::state::pool::segment::Segments;
use crate::state::pool::totals::Totals;
use crate::state::pool::trace_ring::TraceRing;
use crate::state::series::Series;
use crate::state::stacks::StackIndex;
use crate::state::step_levels::StepLevels;
use serde::{Deserialize, Serialize};

/// Counters of the framework's pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PoolDevice {
    /// A pool event has named this device.
    pub(crate) seen: bool,
    /// At least one of these events was a trace entry.
    pub(crate) traced: bool,
    pub(crate) totals: Totals,
    pub(crate) reserved: Option<u64>,
    pub(crate) peak_reserved: Option<u64>,
    /// When the pool last gave memory back that only the driver's calls showed; 0 if it never did.
    pub(crate) gave_back_ns: u64,
    pub(crate) live_blocks: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) pending_bytes: u64,
    pub(crate) alloc_count: u64,
    pub(crate) free_count: u64,
    pub(crate) orphan_free_count: u64,
    pub(crate) orphan_free_bytes: u64,
    pub(crate) oom_count: u64,
    /// When the last of these requests failed, boot-time nanoseconds; 0 if none did.
    #[serde(default)]
    pub(crate) oom_ns: u64,
    pub(crate) resync_count: u64,
    /// Number of blocks that turned out to be gone although their frees were not seen.
    pub(crate) found_gone: u64,
    /// How often blocks came without an event that gave their rounded sizes. How much was handed out then is not known,
    /// nor which free room it took.
    #[serde(default)]
    pub(crate) unsized_count: u64,
    pub(crate) sizes: Recorder,
    pub(crate) lifetimes: Recorder,
    pub(crate) segments: Segments,
    pub(crate) rooms: Rooms,
    pub(crate) ring: TraceRing,
    pub(crate) series: Series,
    /// Levels within the current step.
    pub(crate) step: StepLevels,
    /// The level before the next event is known: nothing was missed, or a total has come.
    #[serde(default)]
    pub(crate) level_known: bool,
    /// How many blocks came and went before a level was known at all. The first level takes them.
    #[serde(default)]
    before_level: (u64, u64),
    pub(crate) read: Read,
    /// Of a pool whose probes came later: bytes that it had handed out before them and not taken back, by its first total or the first
    /// reading. `None` before both. It stays, because counts lack these allocations for good.
    #[serde(default)]
    pub(crate) missed: Option<u64>,
}

/// How a process is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) attached_ns: u64,
    pub(crate) level: Option<Level>,
    /// Number of records that were lost so far.
    pub(crate) lost: u64,
}

/// What is kept of the readings of a device's pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Read {
    /// Number of readings that were accepted.
    pub(crate) count: u64,
    /// Number of readings that were refused or never complete.
    pub(crate) refused: u64,
    /// Why the last reading was not accepted; `None` once another one was.
    pub(crate) refusal: Option<Refusal>,
    /// Everything that happened before this moment is contained in the newest reading; 0 before the first reading.
    pub(crate) until_ns: u64,
    /// Number of live blocks that were there at the attach and that a reading has shown; `baseline_bytes` is their size as handed out.
    pub(crate) baseline_blocks: u64,
    pub(crate) baseline_bytes: u64,
    /// Number of live blocks that a reading has shown and that came in a gap; `found_bytes` are their rounded bytes.
    #[serde(default)]
    pub(crate) found_blocks: u64,
    #[serde(default)]
    pub(crate) found_bytes: u64,
    /// When the first record was lost, nothing from before the attach was there.
    #[serde(default)]
    pub(crate) none_before: bool,
    /// The first reading came after a loss of records: of the blocks that it shows and that were not seen to come, nobody
    /// can tell which were there at the attach.
    #[serde(default)]
    pub(crate) mixed: bool,
    /// Where events do not report pending blocks: freed blocks of the newest reading that a stream still used, with the
    /// stacks that allocated them. Cleared by the device's next event.
    pub(crate) pending: Vec<(HeldBlock, StackIndex)>,
    /// `resync_count` and `found_gone` at the last reading, which has corrected everything counted by then.
    pub(crate) settled: (u64, u64),
    /// `unsized_count` at the last reading.
    #[serde(default)]
    pub(crate) sized: u64,
}

/// Why a reading was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// Not all events since the reading are known.
    TooOld,
    /// It contradicts itself, or the totals since.
    Contradicted,
    /// Not all of its parts came.
    Incomplete,
}

impl Read {
    /// Whether blocks live of which nobody can tell whether they were there at the attach.
    pub(crate) fn is_mixed(&self) -> bool {
        self.mixed && self.found_blocks > 0
    }
}

impl PoolDevice {
    /// Notes the current level, for the course over time and for the step.
    pub(crate) fn note_level(&mut self, time_ns: u64, allocs: u64, frees: u64) {
        self.before_level.0 += allocs;
        self.before_level.1 += frees;
        if let Some(allocated) = self.totals.allocated() {
            let (allocs, frees) = std::mem::take(&mut self.before_level);
            let reserved = self.reserved.unwrap_or(allocated);
            self.series
                .note(time_ns, allocated, reserved, allocs, frees);
            self.level_from(allocated, reserved);
            self.step.note(allocated, reserved, allocs, frees);
        }
    }

    /// Takes the level at which the step began, if none was known. What was there before the attach has not come in this step.
    pub(crate) fn level_from(&mut self, allocated: u64, reserved: u64) {
        if !std::mem::replace(&mut self.level_known, true) {
            self.step.begin_at(allocated, reserved);
        }
    }

    /// Whether events say everything about a block that a trace says: its requested size, its stream, and when a
    /// pending block becomes free.
    pub(crate) fn is_traced(&self, watch: Watch) -> bool {
        match watch.level {
            // There are only readings, and they say all of this.
            Some(Level::Read) => true,
            Some(Level::Blocks) => self.traced,
            // Each report that came without its trace entry needs one lost record, or there are no entries.
            _ => self.traced || self.alloc_count + self.free_count <= watch.lost,
        }
    }

    /// Whether everything that happened is in a reading, or came as events that say as much as a reading.
    pub(crate) fn is_read(&self, watch: Watch) -> bool {
        let newest_ns = self.ring.newest_ns().max(self.gave_back_ns);
        self.read.count > 0 && newest_ns < self.read.until_ns
            || self.is_traced(watch) && self.unsized_count == self.read.sized
    }

    /// Bytes from before the attach: of blocks that are known from a reading, and the rest, whose blocks are not known.
    pub(crate) fn baseline(&self) -> Option<u64> {
        let rest = self.totals.baseline()?;
        let known = (!self.read.is_mixed()).then_some(self.read.baseline_bytes)?;
        Some(rest.saturating_add(known))
    }

    /// Records were lost for the first time. Until then, what is handed out and was not seen to come is from before the
    /// attach.
    pub(crate) fn first_loss(&mut self) {
        self.read.none_before = self.totals.baseline() == Some(0);
    }

    /// A live block is not of this origin any more: it went, or it is known now when it came.
    pub(crate) fn origin_went(&mut self, origin: Origin, rounded: u64) {
        let read = &mut self.read;
        let (blocks, bytes) = match origin {
            Origin::Seen => return,
            Origin::Baseline => (&mut read.baseline_blocks, &mut read.baseline_bytes),
            Origin::Found => (&mut read.found_blocks, &mut read.found_bytes),
        };
        *blocks = blocks.saturating_sub(1);
        *bytes = bytes.saturating_sub(rounded);
        // What a later reading finds came in a later gap.
        read.mixed &= read.found_blocks > 0;
    }

    /// Number of segments whose pool the trace did not name.
    pub(crate) fn untold_segments(&self) -> usize {
        self.segments.iter().filter(|segment| !segment.told).count()
    }

    /// Difference in bytes between the allocator's reserved total and the segments that are known.
    pub(crate) fn unknown_bytes(&self) -> u64 {
        let known = self.segments.bytes();
        self.reserved.map_or(0, |reserved| reserved.abs_diff(known))
    }

    /// The pool gave `bytes` back to the driver, without an event of its own.
    pub(crate) fn gave_back(&mut self, bytes: u64, time_ns: u64) {
        self.reserved = self.reserved.map(|held| held.saturating_sub(bytes));
        self.gave_back_ns = time_ns;
        self.note_level(time_ns, 0, 0);
    }

    /// Takes the allocator's reserved total.
    pub(crate) fn set_reserved(&mut self, reserved: u64) {
        self.reserved = Some(reserved);
        self.peak_reserved = Some(self.peak_reserved.map_or(reserved, |p| p.max(reserved)));
    }
}

/// Counters of runtime and driver allocations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DriverDevice {
    pub(crate) plain: DriverBytes,
    pub(crate) async_pool: DriverBytes,
    pub(crate) managed: DriverBytes,
    pub(crate) physical: DriverBytes,
    pub(crate) imported: DriverBytes,
    /// There was stream-ordered memory here. The driver keeps it after its free, for the next request.
    #[serde(default)]
    pub(crate) stream_ordered: bool,
    /// Part of `plain`, `async_pool`, `managed` and `physical` that is the framework pool's.
    pub(crate) pooled: DriverBytes,
    /// On Ascend, the components that hold the rest.
    pub(crate) components: Components,
    pub(crate) alloc_count: u64,
    pub(crate) free_count: u64,
    pub(crate) orphan_free_count: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) sizes: Recorder,
    pub(crate) lifetimes: Recorder,
    pub(crate) series: Series,
    /// Levels within the current step.
    pub(crate) step: StepLevels,
}

impl DriverDevice {
    /// All memory held; imported memory is not part of it.
    pub(crate) fn held(&self) -> DriverBytes {
        [self.plain, self.async_pool, self.managed, self.physical]
            .iter()
            .fold(DriverBytes::default(), |sum, part| DriverBytes {
                count: sum.count + part.count,
                bytes: sum.bytes + part.bytes,
            })
    }

    /// Everything held that is not the pool's.
    pub(crate) fn direct(&self) -> DriverBytes {
        let held = self.held();
        DriverBytes {
            count: held.count.saturating_sub(self.pooled.count),
            bytes: held.bytes.saturating_sub(self.pooled.bytes),
        }
    }

    /// Notes the current level: for the peak, the course over time and the step.
    pub(crate) fn note_level(&mut self, time_ns: u64, allocs: u64, frees: u64) {
        let held = self.held().bytes;
        self.peak_bytes = self.peak_bytes.max(held);
        self.series.note(time_ns, held, held, allocs, frees);
        self.step.note(held, held, allocs, frees);
    }

    /// Whether nothing has ever happened here that an answer could show.
    pub(crate) fn is_blank(&self) -> bool {
        self.alloc_count == 0
            && self.free_count == 0
            && self.orphan_free_count == 0
            && self.held().count == 0
            && self.imported.count == 0
    }
}

/// When a peak was reached last. A training step reaches the peak of the step before again, and the journal has the last
/// time for longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeakAt {
    /// The peak, in bytes.
    bytes: u64,
    /// What was held after the event before, in bytes: only an event that raises it to the peak reaches the peak.
    #[serde(default)]
    before: u64,
    /// Number of the event that brought it, and the event's moment.
    pub(crate) event: u64,
    pub(crate) time_ns: u64,
}

impl PeakAt {
    /// Takes the peak as it is after an event, and what is held then. A peak that follows from a later total has no event.
    fn note(&mut self, peak: u64, held: u64, event: &Event) {
        if held == peak && (peak > self.bytes || peak > self.before) {
            self.bytes = peak;
            self.event = event.id.sequence;
            self.time_ns = event.time_ns;
        }
        self.before = held;
    }

    /// The moment, if it is that of this peak.
    pub(crate) fn of(self, peak: Option<u64>) -> Option<PeakAt> {
        (self.bytes > 0 && Some(self.bytes) == peak).then_some(self)
    }
}

/// One device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) ordinal: Option<i32>,
    pub(crate) pool: PoolDevice,
    pub(crate) driver: DriverDevice,
    /// Total memory in bytes, from `cudaMemGetInfo` or another vendor's function for it.
    pub(crate) total_bytes: Option<u64>,
    /// What NVML said last of it.
    pub(crate) nvml: Option<DeviceTotal>,
    /// What it is, where that follows from where the process runs and which of its devices it uses.
    #[serde(default)]
    pub(crate) proven: Option<Hardware>,
    /// What the driver used for the process beside what it held, when NVML said so last.
    pub(crate) context_bytes: Option<u64>,
    /// Free memory in bytes, from `cudaMemGetInfo` (or another vendor's function for it) or from NVML, and when it was
    /// read.
    pub(crate) free_bytes: Option<(u64, u64)>,
    /// What the driver's allocations and the pool held after the last event, in bytes, and the boot time of the event that changed it last, in
    /// nanoseconds; 0 if nothing did. A number of free bytes from before says nothing of what is held now.
    #[serde(default)]
    held_before: (u64, Option<u64>),
    #[serde(default)]
    pub(crate) held_changed_ns: u64,
    /// When the peaks of the pool and of the driver's allocations were reached.
    #[serde(default)]
    pub(crate) pool_peak: PeakAt,
    #[serde(default)]
    pub(crate) driver_peak: PeakAt,
}

/// Bytes that the distributions of sizes and lifetimes of a device may take.
const RECORDERS: u64 = 32 << 10;
/// Bytes of a segment in its table.
const SEGMENT: u64 = 160;

/// A number of free bytes of a device that is older than so many nanoseconds is not used.
pub const FREE_HOLDS_NS: u64 = 15_000_000_000;

impl Device {
    /// Whether anything has ever happened here that an answer could show.
    pub(crate) fn is_seen(&self) -> bool {
        self.pool.seen || !self.driver.is_blank()
    }

    /// Estimate of the bytes that it takes beside its trace and its courses over time.
    pub(crate) fn own_bytes(&self) -> u64 {
        let segments = self.pool.segments.iter().count() as u64;
        size_of::<Device>() as u64 + RECORDERS + segments * SEGMENT
    }

    /// Notes the moment if this event has changed what is held: `of_driver`, the bytes of the driver's allocations, and the pool's.
    pub(crate) fn note_held(&mut self, event: &Event, of_driver: u64) {
        let held = (of_driver, self.pool.reserved);
        if held != self.held_before {
            self.held_before = held;
            // A reading finds what has changed before, and nothing changes by it.
            if !matches!(event.body, Body::Held(_)) {
                self.held_changed_ns = event.time_ns;
            }
        }
    }

    /// Notes the moment of a peak that this event brought.
    pub(crate) fn note_peak(&mut self, event: &Event) {
        let totals = &self.pool.totals;
        if let (Some(peak), Some(held)) = (totals.peak(), totals.allocated()) {
            self.pool_peak.note(peak, held, event);
        }
        let held = self.driver.held().bytes;
        self.driver_peak.note(self.driver.peak_bytes, held, event);
    }

    /// All memory of the device in bytes, as its runtime says it, else as NVML does.
    pub(crate) fn size(&self) -> Option<u64> {
        let told = self.nvml.as_ref();
        self.total_bytes.or(told.map(|told| told.total_bytes))
    }

    /// What of [`Device::size`] the driver keeps for itself. The runtime's size is without it.
    pub(crate) fn kept_by_driver(&self) -> Option<u64> {
        self.nvml
            .as_ref()?
            .reserved_bytes
            .filter(|_| self.total_bytes.is_none())
    }

    /// Whether it was last seen how much is free before what the process holds changed.
    pub(crate) fn is_free_old(&self) -> bool {
        let seen = self.free_bytes;
        seen.is_some_and(|(_, when)| when < self.held_changed_ns)
    }

    /// The kind of memory whose allocations and frees say whether the program works: its pool's, if it has one.
    pub(crate) fn counted_space(&self) -> Space {
        match self.pool.alloc_count {
            0 => Space::Driver,
            _ => Space::Pool,
        }
    }

    /// Free bytes of the device, whichever processes use the rest, if the number is recent.
    pub(crate) fn free_at(&self, now_ns: u64) -> Option<u64> {
        let (bytes, seen_ns) = self.free_bytes?;
        (now_ns.saturating_sub(seen_ns) <= FREE_HOLDS_NS).then_some(bytes)
    }
}

/// Most devices of a process whose ordinals are known. A program can name any number of devices to a library of its own;
/// what is on further ones counts to the unknown device.
const MOST: usize = 256;

/// All devices of a process. Few, so a walk finds them faster than a map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Devices {
    pub(super) rows: Vec<Device>,
    /// Where NVML said last that the process runs.
    #[serde(default)]
    pub(super) runs_on: Vec<Hardware>,
    trace_entries: usize,
    /// The traces were given up because memory was short, and are not kept any more.
    #[serde(default)]
    no_trace: bool,
    /// Number of times that something was counted to the unknown device, because there were too many devices.
    #[serde(default)]
    refused: u64,
}

impl Devices {
    /// No device yet; traces keep `trace_entries` entries each.
    pub(crate) fn new(trace_entries: usize) -> Devices {
        Devices {
            rows: Vec::new(),
            runs_on: Vec::new(),
            trace_entries,
            no_trace: false,
            refused: 0,
        }
    }

    /// How many allocations were seen, and how many frees: of the pool, or of the driver on a device without one.
    pub(crate) fn came_and_went(&self) -> [u64; 2] {
        let mut sums = [0u64; 2];
        for row in &self.rows {
            let counts = match row.counted_space() {
                Space::Pool => [row.pool.alloc_count, row.pool.free_count],
                Space::Driver | Space::Host => [row.driver.alloc_count, row.driver.free_count],
            };
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum = sum.saturating_add(count);
            }
        }
        sums
    }

    /// Sets how many entries each trace keeps.
    pub(crate) fn set_trace_entries(&mut self, trace_entries: usize) {
        self.trace_entries = trace_entries;
        for row in &mut self.rows {
            row.pool.ring.set_limit(trace_entries);
        }
    }

    /// The row of a device, made if the device is new.
    pub(crate) fn at(&mut self, ordinal: Option<i32>) -> &mut Device {
        let mut ordinal = ordinal;
        let mut place = self.rows.iter().position(|row| row.ordinal == ordinal);
        if place.is_none() && ordinal.is_some() && self.rows.len() >= MOST {
            self.refused += 1;
            ordinal = None;
            place = self.rows.iter().position(|row| row.ordinal.is_none());
        }
        let place = match place {
            Some(place) => place,
            None => {
                let mut row = Device {
                    ordinal,
                    ..Device::default()
                };
                row.pool.ring = TraceRing::new(self.trace_entries);
                if self.no_trace {
                    row.pool.ring.give_up();
                }
                self.rows.push(row);
                self.rows.len() - 1
            }
        };
        &mut self.rows[place]
    }

    /// Number of times that something was counted to the unknown device, because there were too many devices.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Gives up the traces of all devices, because memory is short. They are not kept any more.
    pub(crate) fn give_up_trace(&mut self) {
        self.no_trace = true;
        for row in &mut self.rows {
            row.pool.ring.give_up();
        }
    }

    /// The pool of a device.
    pub(crate) fn pool(&mut self, ordinal: i32) -> &mut PoolDevice {
        &mut self.at(Some(ordinal)).pool
    }

    /// The driver side of a device.
    pub(crate) fn driver(&mut self, ordinal: Option<i32>) -> &mut DriverDevice {
        &mut self.at(ordinal).driver
    }

    /// The device whose pool has this address in one of its segments, where one is known to.
    pub(crate) fn of_segment(&self, addr: u64) -> Option<i32> {
        let has_it = |row: &&Device| row.pool.segments.at(addr).is_some();
        self.rows.iter().find(has_it)?.ordinal
    }

    /// All devices by ordinal, the unknown one last.
    pub(crate) fn sorted(&self) -> Vec<&Device> {
        let mut rows: Vec<&Device> = self.rows.iter().collect();
        rows.sort_by_key(|row| (row.ordinal.is_none(), row.ordinal));
        rows
    }

    /// All devices, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.rows.iter_mut()
    }

    /// All devices, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.rows.iter()
    }
}
