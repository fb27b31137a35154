//! One device as one process sees it.
//!
//! Owns: the counters of its pool and of its driver allocations. Refuses: single blocks and
//! allocations, which live by address in `pool` and `driver`.

use crate::event::Level;
use crate::report::DriverBytes;
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
    /// Any pool event named this device.
    pub(crate) seen: bool,
    /// Any of them was a trace entry.
    pub(crate) traced: bool,
    pub(crate) totals: Totals,
    pub(crate) reserved: Option<u64>,
    pub(crate) peak_reserved: Option<u64>,
    /// When it last gave memory back of which only the driver's calls told; 0: never.
    pub(crate) gave_back_ns: u64,
    pub(crate) live_blocks: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) pending_bytes: u64,
    pub(crate) alloc_count: u64,
    pub(crate) free_count: u64,
    pub(crate) orphan_free_count: u64,
    pub(crate) orphan_free_bytes: u64,
    pub(crate) oom_count: u64,
    pub(crate) resync_count: u64,
    /// Blocks that turned out to have gone unseen.
    pub(crate) found_gone: u64,
    /// Times at which blocks came whose rounded sizes no event told: how much was handed out then is not known, nor
    /// which rooms were taken.
    #[serde(default)]
    pub(crate) unsized_count: u64,
    pub(crate) sizes: Recorder,
    pub(crate) lifetimes: Recorder,
    pub(crate) segments: Segments,
    pub(crate) rooms: Rooms,
    pub(crate) ring: TraceRing,
    pub(crate) series: Series,
    /// Levels within the step that is going on.
    pub(crate) step: StepLevels,
    pub(crate) read: Read,
}

/// What is kept of the readings of a device's pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Read {
    /// Readings taken over.
    pub(crate) count: u64,
    /// Readings refused or never complete.
    pub(crate) refused: u64,
    /// Why the last one was not taken over, unless one was since.
    pub(crate) refusal: Option<Refusal>,
    /// What happened before is in the newest one. 0 before the first.
    pub(crate) until_ns: u64,
    /// Live blocks of which the first reading told, and their rounded bytes.
    pub(crate) baseline_blocks: u64,
    pub(crate) baseline_bytes: u64,
    /// Where events do not tell of them: blocks of the newest reading that a stream still used, until
    /// something happens; and the stacks that they came with.
    pub(crate) pending: Vec<(HeldBlock, StackIndex)>,
    /// `resync_count` and `found_gone` as of the last reading: it has settled them.
    pub(crate) settled: (u64, u64),
    /// `unsized_count` as of the last reading.
    #[serde(default)]
    pub(crate) sized: u64,
}

/// Why a reading was not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// What happened since is not known without a hole.
    TooOld,
    /// It disagrees with itself or with the totals since.
    Contradicted,
    /// Not all of its parts came.
    Incomplete,
}

impl PoolDevice {
    /// The level now, for the course over time.
    pub(crate) fn note_level(&mut self, time_ns: u64, allocs: u64, frees: u64) {
        if let Some(allocated) = self.totals.allocated() {
            let reserved = self.reserved.unwrap_or(allocated);
            self.series
                .note(time_ns, allocated, reserved, allocs, frees);
            self.step.note(allocated, reserved, allocs, frees);
        }
    }

    /// Any block came or went in sight.
    fn moved(&self) -> bool {
        self.alloc_count + self.free_count > 0
    }

    /// Whether events tell of a block all that a trace tells: its request, its stream, its end.
    pub(crate) fn is_traced(&self, level: Option<Level>) -> bool {
        // Where nothing but readings tells of blocks, they tell it all.
        level == Some(Level::Read) || self.traced || !self.moved() && level != Some(Level::Blocks)
    }

    /// Whether all that happened is in a reading, or was told with all that a reading tells.
    pub(crate) fn is_read(&self, level: Option<Level>) -> bool {
        let newest_ns = self.ring.newest_ns().max(self.gave_back_ns);
        self.read.count > 0 && newest_ns < self.read.until_ns
            || self.is_traced(level) && self.unsized_count == self.read.sized
    }

    /// Bytes from before the attach: blocks that a reading told of, and the rest that nothing did.
    pub(crate) fn baseline(&self) -> Option<u64> {
        let rest = self.totals.baseline()?;
        Some(rest.saturating_add(self.read.baseline_bytes))
    }

    /// A live block went; it may be one of those from before the attach.
    pub(crate) fn baseline_went(&mut self, origin: Origin, rounded: u64) {
        if origin == Origin::Baseline {
            self.read.baseline_blocks = self.read.baseline_blocks.saturating_sub(1);
            self.read.baseline_bytes = self.read.baseline_bytes.saturating_sub(rounded);
        }
    }

    /// Segments of which the trace did not tell whose they are.
    pub(crate) fn untold_segments(&self) -> usize {
        self.segments.iter().filter(|segment| !segment.told).count()
    }

    /// Bytes that the allocator has and that are in no segment that we know, or the reverse.
    pub(crate) fn unknown_bytes(&self) -> u64 {
        let known = self.segments.bytes();
        self.reserved.map_or(0, |reserved| reserved.abs_diff(known))
    }

    /// The pool gave this much back to the driver, and did not say so itself.
    pub(crate) fn gave_back(&mut self, bytes: u64, time_ns: u64) {
        self.reserved = self.reserved.map(|held| held.saturating_sub(bytes));
        self.gave_back_ns = time_ns;
        self.note_level(time_ns, 0, 0);
    }

    /// The allocator's reserved total.
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
    /// The framework pool's part of the four.
    pub(crate) pooled: DriverBytes,
    /// Who holds the rest, on Ascend.
    pub(crate) components: Components,
    pub(crate) alloc_count: u64,
    pub(crate) free_count: u64,
    pub(crate) orphan_free_count: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) sizes: Recorder,
    pub(crate) lifetimes: Recorder,
    pub(crate) series: Series,
    /// Levels within the step that is going on.
    pub(crate) step: StepLevels,
}

impl DriverDevice {
    /// Everything held.
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

    /// The level now: peak and course.
    pub(crate) fn note_level(&mut self, time_ns: u64, allocs: u64, frees: u64) {
        let held = self.held().bytes;
        self.peak_bytes = self.peak_bytes.max(held);
        self.series.note(time_ns, held, held, allocs, frees);
        self.step.note(held, held, allocs, frees);
    }

    /// Whether anything ever happened here that a reader could see.
    pub(crate) fn is_blank(&self) -> bool {
        self.alloc_count == 0
            && self.free_count == 0
            && self.orphan_free_count == 0
            && self.held().count == 0
            && self.imported.count == 0
    }
}

/// One device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) ordinal: Option<i32>,
    pub(crate) pool: PoolDevice,
    pub(crate) driver: DriverDevice,
    /// From cudaMemGetInfo.
    pub(crate) total_bytes: Option<u64>,
    /// From NVML.
    pub(crate) nvml_total_bytes: Option<u64>,
    /// From cudaMemGetInfo or NVML, and when.
    pub(crate) free_bytes: Option<(u64, u64)>,
}

/// What was free longer ago says nothing of how long it lasts.
const FREE_HOLDS_NS: u64 = 15_000_000_000;

impl Device {
    /// Bytes that are free on the device, whoever uses the rest, if that was seen a moment ago.
    pub(crate) fn free_at(&self, now_ns: u64) -> Option<u64> {
        let (bytes, seen_ns) = self.free_bytes?;
        (now_ns.saturating_sub(seen_ns) <= FREE_HOLDS_NS).then_some(bytes)
    }
}

/// All devices of a process. Few, so a walk finds them faster than a map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Devices {
    rows: Vec<Device>,
    trace_entries: usize,
}

impl Devices {
    /// No device yet; traces keep `trace_entries` entries each.
    pub(crate) fn new(trace_entries: usize) -> Devices {
        Devices {
            rows: Vec::new(),
            trace_entries,
        }
    }

    /// The device, made if it is new.
    pub(crate) fn at(&mut self, ordinal: Option<i32>) -> &mut Device {
        let place = match self.rows.iter().position(|row| row.ordinal == ordinal) {
            Some(place) => place,
            None => {
                let mut row = Device {
                    ordinal,
                    ..Device::default()
                };
                row.pool.ring = TraceRing::new(self.trace_entries);
                self.rows.push(row);
                self.rows.len() - 1
            }
        };
        &mut self.rows[place]
    }

    /// The pool of a device.
    pub(crate) fn pool(&mut self, ordinal: i32) -> &mut PoolDevice {
        &mut self.at(Some(ordinal)).pool
    }

    /// The driver side of a device.
    pub(crate) fn driver(&mut self, ordinal: Option<i32>) -> &mut DriverDevice {
        &mut self.at(ordinal).driver
    }

    /// By ordinal, unknown last.
    pub(crate) fn sorted(&self) -> Vec<&Device> {
        let mut rows: Vec<&Device> = self.rows.iter().collect();
        rows.sort_by_key(|row| (row.ordinal.is_none(), row.ordinal));
        rows
    }

    /// In no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.rows.iter_mut()
    }

    /// In no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.rows.iter()
    }
}
