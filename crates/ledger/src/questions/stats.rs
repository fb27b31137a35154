//! The answer to `stats`: what a process holds, by device.
//!
//! Owns: which number of the state each field shows, by source and level. Refuses: to keep anything.

use super::affects::{Affects, Answer, effect};
use super::question::{OfOne, One, answer};
use crate::clock::Clock;
use crate::event::Level;
use crate::report::Source;
use crate::state::device::{Device, PeakAt};
use crate::state::process::Process;
use memscope_proto::v1;
use memscope_proto::v1::DeviceStats;

impl OfOne for v1::StatsRequest {
    type Reply = v1::StatsResponse;
    const KIND: Option<Answer> = Some(Answer::Stats);

    fn pid(&self) -> u32 {
        self.pid
    }

    fn answer(&self, one: &One<'_>) -> v1::StatsResponse {
        let process = one.process;
        let driver = &process.driver;
        let level = process.facts.level;
        let host_components = driver.host.components().into_iter();
        let region_pools = process.region_pools().into_iter();
        let mut answer = answer!(StatsResponse of one, {
            devices: process
                .visible_devices()
                .into_iter()
                .map(|row| device(process, row, one.clock))
                .collect(),
            level: level.map_or(v1::Level::Unspecified, Into::into).into(),
            backend: Some(process.backend.clone().into()),
            placement: Some(process.placement.clone().into()),
            region_pools: region_pools.map(Into::into).collect(),
            host: Some(driver.host.total().into()),
            host_registered: Some(driver.host.registered().into()),
            host_components: host_components.map(Into::into).collect(),
            address_reserved: Some(driver.vmm.reserved().into()),
            failures: driver.failures(),
            nested_calls: driver.nested(),
            gaps: process.loss.gaps().into_iter().map(Into::into).collect(),
            reading: process.reading_cost.map(Into::into),
        });
        leave_out_doubtful(&mut answer.devices, &answer.coverage);
        answer
    }
}

/// Leaves out totals that may be too large as well as too small, because they count as unknown. Totals that can only be
/// too small stay; a note says so.
fn leave_out_doubtful(devices: &mut [DeviceStats], notes: &[v1::CoverageNote]) {
    let doubtful = |kind: Affects| {
        notes.iter().any(|note| {
            let effect = effect(&note.code);
            !effect.lower_bound && effect.affects.contains(&kind)
        })
    };
    let (totals, history) = (doubtful(Affects::Totals), doubtful(Affects::History));
    let without_segments = notes
        .iter()
        .any(|note| note.code == "import_segments_left_out");
    for device in devices {
        if totals {
            device.allocated_bytes = None;
            device.reserved_bytes = None;
            device.baseline_bytes = None;
        }
        if history {
            device.peak_allocated_bytes = None;
            device.peak_reserved_bytes = None;
            (device.peak_event, device.peak_unix_ns) = (None, None);
            (device.sizes, device.lifetimes) = (None, None);
        }
        if without_segments {
            device.peak_reserved_bytes = None;
        }
    }
}

/// The moment of a peak, nanoseconds since 1970, if the clocks are known.
fn unix_ns(clock: &Clock, peak: PeakAt) -> Option<u64> {
    let unix_ns = clock.unix_ns(peak.time_ns);
    (unix_ns != 0).then_some(unix_ns)
}

fn device(process: &Process, row: &Device, clock: &Clock) -> DeviceStats {
    let pool = &row.pool;
    let driver = &row.driver;
    let source = process.source_of(row);
    // Of a pool that cannot be seen, all that is known is what the driver gave.
    let known_from = match process.is_pool_hidden() {
        true => Source::Driver,
        false => source,
    };
    let stats = DeviceStats {
        device: row.ordinal,
        device_kind: process.vendor.map(|vendor| vendor.device_kind().to_owned()),
        source: v1::Source::from(known_from).into(),
        allocated_bytes: process.allocated_bytes(row),
        reserved_bytes: process.reserved_bytes(row),
        total_bytes: row.size(),
        driver_reserved_bytes: row.kept_by_driver(),
        context_bytes: row.context_bytes,
        hardware: row.hardware().cloned().map(Into::into),
        free_bytes: row.free_bytes.map(|(bytes, _)| bytes),
        free_bytes_boot_ns: row.free_bytes.map(|(_, when)| when),
        driver: Some(driver.held().into()),
        // Which part of it is the pool's is not known where the pool cannot be seen, and nothing of it where no call is.
        direct: (!process.is_pool_hidden() && process.facts.level != Some(Level::Read))
            .then(|| driver.direct().into()),
        components: driver
            .components
            .held()
            .into_iter()
            .map(Into::into)
            .collect(),
        async_pool: Some(driver.async_pool.into()),
        managed: Some(driver.managed.into()),
        physical: Some(driver.physical.into()),
        imported: Some(driver.imported.into()),
        oom_count: pool.oom_count,
        resync_count: pool.resync_count,
        readings: pool.read.count,
        readings_refused: pool.read.refused,
        ..DeviceStats::default()
    };
    let driver_peak = row.driver_peak.of(Some(driver.peak_bytes));
    match source {
        Source::Pool => {
            let zero = process.zero_if_unseen(row);
            // A reading shows what a trace shows, until events without a trace follow it.
            let told = pool.traced || pool.read.count > 0 && pool.is_traced(process.watch());
            let peak_reserved = if process.is_pool_hidden() {
                process.saw_all_memory().then_some(driver.peak_bytes)
            } else {
                pool.peak_reserved.or(zero)
            };
            let peak = row.pool_peak.of(pool.totals.peak());
            DeviceStats {
                peak_event: peak.map(|peak| peak.event),
                peak_unix_ns: peak.and_then(|peak| unix_ns(clock, peak)),
                peak_allocated_bytes: pool.totals.peak().or(zero),
                peak_reserved_bytes: peak_reserved,
                baseline_bytes: pool.baseline().or(zero),
                requested_bytes: told.then_some(pool.requested_bytes),
                pending_free_bytes: told.then_some(pool.pending_bytes),
                live_blocks: pool.live_blocks,
                segments: told.then_some(pool.segments.len() as u64),
                alloc_count: pool.alloc_count,
                free_count: pool.free_count,
                orphan_free_count: pool.orphan_free_count,
                orphan_free_bytes: pool.orphan_free_bytes,
                sizes: Some(pool.sizes.distribution()),
                lifetimes: Some(pool.lifetimes.distribution()),
                baseline_blocks: (pool.read.count > 0 && !pool.read.is_mixed())
                    .then_some(pool.read.baseline_blocks),
                ..stats
            }
        }
        Source::Driver => DeviceStats {
            peak_event: driver_peak.map(|peak| peak.event),
            peak_unix_ns: driver_peak.and_then(|peak| unix_ns(clock, peak)),
            peak_allocated_bytes: Some(driver.peak_bytes),
            peak_reserved_bytes: Some(driver.peak_bytes),
            baseline_bytes: process.saw_all_memory().then_some(0),
            live_blocks: driver.held().count,
            alloc_count: driver.alloc_count,
            free_count: driver.free_count,
            orphan_free_count: driver.orphan_free_count,
            sizes: Some(driver.sizes.distribution()),
            lifetimes: Some(driver.lifetimes.distribution()),
            ..stats
        },
    }
}
