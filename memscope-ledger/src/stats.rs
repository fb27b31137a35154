//! The answer to `stats`.
//!
//! Owns: which number stands for what, by source and level. Refuses: to keep anything.

use crate::coverage;
use crate::device::Device;
use crate::process::Process;
use crate::report::{AsOf, DeviceStats, Source, StatsReport};

/// Builds the report.
pub(crate) fn report(process: &Process, as_of: AsOf) -> StatsReport {
    StatsReport {
        process: process.summary(),
        as_of,
        backend: process.backend.clone(),
        placement: process.placement.clone(),
        devices: process
            .visible_devices()
            .into_iter()
            .map(|row| device(process, row))
            .collect(),
        region_pools: process.region_pools(),
        host: process.driver.host.total(),
        host_registered: process.driver.host.registered(),
        host_components: process.driver.host.components(),
        address_reserved: process.driver.vmm.reserved(),
        failures: process.driver.failures(),
        nested_calls: process.driver.nested(),
        gaps: process.loss.gaps(),
        reading: process.reading_cost,
        coverage: coverage::notes(process),
    }
}

fn device(process: &Process, row: &Device) -> DeviceStats {
    let pool = &row.pool;
    let driver = &row.driver;
    let stats = DeviceStats {
        device: row.ordinal,
        vendor: process.vendor,
        source: process.source_of(row),
        allocated_bytes: process.allocated_bytes(row),
        reserved_bytes: process.reserved_bytes(row),
        peak_allocated_bytes: None,
        peak_reserved_bytes: None,
        baseline_bytes: None,
        requested_bytes: None,
        pending_free_bytes: None,
        live_blocks: 0,
        total_bytes: row.total_bytes.or(row.nvml_total_bytes),
        free_bytes: row.free_bytes,
        driver: driver.held(),
        direct: driver.direct(),
        components: driver.components.held(),
        async_pool: driver.async_pool,
        managed: driver.managed,
        physical: driver.physical,
        imported: driver.imported,
        segments: None,
        alloc_count: 0,
        free_count: 0,
        orphan_free_count: 0,
        orphan_free_bytes: 0,
        oom_count: pool.oom_count,
        resync_count: pool.resync_count,
        sizes: Default::default(),
        lifetimes: Default::default(),
        baseline_blocks: None,
        readings: pool.read.count,
        readings_refused: pool.read.refused,
    };
    match stats.source {
        Source::Pool => {
            let zero = process.zero_if_unseen(row);
            // A reading tells what a trace tells, until reports go on without one.
            let told = pool.traced || pool.read.count > 0 && pool.is_traced(process.facts.level);
            let peak_reserved = if process.is_pool_hidden() {
                process.facts.from_start.then_some(driver.peak_bytes)
            } else {
                pool.peak_reserved.or(zero)
            };
            DeviceStats {
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
                sizes: pool.sizes.distribution(),
                lifetimes: pool.lifetimes.distribution(),
                baseline_blocks: (pool.read.count > 0).then_some(pool.read.baseline_blocks),
                ..stats
            }
        }
        Source::Driver => DeviceStats {
            peak_allocated_bytes: Some(driver.peak_bytes),
            peak_reserved_bytes: Some(driver.peak_bytes),
            baseline_bytes: process.facts.from_start.then_some(0),
            live_blocks: driver.held().count,
            alloc_count: driver.alloc_count,
            free_count: driver.free_count,
            orphan_free_count: driver.orphan_free_count,
            sizes: driver.sizes.distribution(),
            lifetimes: driver.lifetimes.distribution(),
            ..stats
        },
    }
}
