//! One device as one process sees it.
//!
//! Owns: the counters of its pool and of its driver allocations. Refuses: single blocks and
//! allocations, which live by address in `pool` and `driver`.

use crate::distribution::Recorder;
use crate::report::DriverBytes;
use crate::segment::Segments;
use crate::series::Series;
use crate::totals::Totals;
use crate::trace_ring::TraceRing;

/// Counters of the framework's pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolDevice {
    /// Any pool event named this device.
    pub(crate) seen: bool,
    /// Any of them was a trace entry.
    pub(crate) traced: bool,
    pub(crate) totals: Totals,
    pub(crate) reserved: Option<u64>,
    pub(crate) peak_reserved: Option<u64>,
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
    pub(crate) sizes: Recorder,
    pub(crate) lifetimes: Recorder,
    pub(crate) segments: Segments,
    pub(crate) ring: TraceRing,
    pub(crate) series: Series,
}

impl PoolDevice {
    /// The level now, for the course over time.
    pub(crate) fn note_level(&mut self, time_ns: u64, allocs: u64, frees: u64) {
        if let Some(allocated) = self.totals.allocated() {
            let reserved = self.reserved.unwrap_or(allocated);
            self.series
                .note(time_ns, allocated, reserved, allocs, frees);
        }
    }

    /// The allocator's reserved total.
    pub(crate) fn set_reserved(&mut self, reserved: u64) {
        self.reserved = Some(reserved);
        self.peak_reserved = Some(self.peak_reserved.map_or(reserved, |p| p.max(reserved)));
    }
}

/// Counters of runtime and driver allocations.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverDevice {
    pub(crate) plain: DriverBytes,
    pub(crate) async_pool: DriverBytes,
    pub(crate) managed: DriverBytes,
    pub(crate) physical: DriverBytes,
    pub(crate) imported: DriverBytes,
    /// The framework pool's part of the four.
    pub(crate) pooled: DriverBytes,
    pub(crate) alloc_count: u64,
    pub(crate) free_count: u64,
    pub(crate) orphan_free_count: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) sizes: Recorder,
    pub(crate) lifetimes: Recorder,
    pub(crate) series: Series,
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
#[derive(Clone, Debug, Default)]
pub(crate) struct Device {
    pub(crate) ordinal: Option<i32>,
    pub(crate) pool: PoolDevice,
    pub(crate) driver: DriverDevice,
    /// From cudaMemGetInfo.
    pub(crate) total_bytes: Option<u64>,
    /// From NVML.
    pub(crate) nvml_total_bytes: Option<u64>,
    /// From cudaMemGetInfo, and when.
    pub(crate) free_bytes: Option<(u64, u64)>,
}

/// All devices of a process. Few, so a walk finds them faster than a map.
#[derive(Clone, Debug, Default)]
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
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.rows.iter()
    }
}
