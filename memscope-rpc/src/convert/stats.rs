//! The answer to `stats`.

use super::{backend, bytes, coverage, event_id, level, placement, source};
use memscope_ledger::event::CoverageNote;
use memscope_ledger::report::{
    Component, DeviceStats, Distribution, RegionPool, RegionsOnDevice, StatsReport,
};
use memscope_ledger::{Affects, effect};
use memscope_proto::v1;

pub(crate) fn stats(report: StatsReport) -> v1::StatsResponse {
    v1::StatsResponse {
        pid: report.process.facts.pid,
        as_of: report.as_of.unix_ns,
        as_of_boot_ns: report.as_of.boot_ns,
        as_of_event: event_id(report.as_of),
        lost_records: report.process.lost_records,
        devices: report
            .devices
            .into_iter()
            .map(|one| proven(device(one), &report.coverage))
            .collect(),
        level: report
            .process
            .facts
            .level
            .map_or(v1::Level::Unspecified, level)
            .into(),
        process: Some(super::process::process(report.process)),
        backend: Some(backend(report.backend)),
        placement: Some(placement(report.placement)),
        region_pools: report.region_pools.into_iter().map(region_pool).collect(),
        host: bytes(report.host),
        host_registered: bytes(report.host_registered),
        host_components: components(report.host_components),
        address_reserved: bytes(report.address_reserved),
        failures: report
            .failures
            .into_iter()
            .map(|failure| v1::Failure {
                function: failure.function,
                status: failure.status,
                count: failure.count,
                bytes: failure.bytes,
            })
            .collect(),
        nested_calls: report.nested_calls,
        gaps: report
            .gaps
            .into_iter()
            .map(|gap| v1::Gap {
                from_boot_ns: gap.from_ns,
                to_boot_ns: gap.to_ns,
                records: gap.records,
            })
            .collect(),
        reading: report.reading.map(super::reading_cost),
        coverage: coverage(report.coverage),
    }
}

/// Without the totals that may be too large as well as too small: those are not known. What can only be too small stays, and
/// the note says so.
fn proven(mut device: v1::DeviceStats, notes: &[CoverageNote]) -> v1::DeviceStats {
    let doubtful = |kind: Affects| {
        notes.iter().any(|note| {
            let effect = effect(&note.code);
            !effect.lower_bound && effect.affects.contains(&kind)
        })
    };
    if doubtful(Affects::Totals) {
        device.allocated_bytes = None;
        device.reserved_bytes = None;
        device.baseline_bytes = None;
    }
    if doubtful(Affects::History) {
        device.peak_allocated_bytes = None;
        device.peak_reserved_bytes = None;
    }
    device
}

fn device(device: DeviceStats) -> v1::DeviceStats {
    v1::DeviceStats {
        device: device.device,
        device_kind: device.vendor.map(|vendor| vendor.device_kind().to_owned()),
        source: source(device.source).into(),
        allocated_bytes: device.allocated_bytes,
        reserved_bytes: device.reserved_bytes,
        peak_allocated_bytes: device.peak_allocated_bytes,
        peak_reserved_bytes: device.peak_reserved_bytes,
        baseline_bytes: device.baseline_bytes,
        requested_bytes: device.requested_bytes,
        pending_free_bytes: device.pending_free_bytes,
        live_blocks: device.live_blocks,
        total_bytes: device.total_bytes,
        free_bytes: device.free_bytes.map(|(bytes, _)| bytes),
        free_bytes_boot_ns: device.free_bytes.map(|(_, when)| when),
        driver: bytes(device.driver),
        direct: bytes(device.direct),
        components: components(device.components),
        async_pool: bytes(device.async_pool),
        managed: bytes(device.managed),
        physical: bytes(device.physical),
        imported: bytes(device.imported),
        segments: device.segments,
        alloc_count: device.alloc_count,
        free_count: device.free_count,
        orphan_free_count: device.orphan_free_count,
        orphan_free_bytes: device.orphan_free_bytes,
        oom_count: device.oom_count,
        resync_count: device.resync_count,
        sizes: Some(distribution(device.sizes)),
        lifetimes: Some(distribution(device.lifetimes)),
        baseline_blocks: device.baseline_blocks,
        readings: device.readings,
        readings_refused: device.readings_refused,
    }
}

fn region_pool(pool: RegionPool) -> v1::RegionPool {
    let device = |row: RegionsOnDevice| v1::RegionsOnDevice {
        device: row.device,
        count: row.count,
        bytes: row.bytes,
        peak_bytes: row.peak_bytes,
        heap_bytes: row.heap_bytes,
        alloc_count: row.alloc_count,
        free_count: row.free_count,
    };
    v1::RegionPool {
        title: pool.title(),
        domain: pool.domain.map(|name| name.to_string()),
        handle: pool.handle,
        devices: pool.devices.into_iter().map(device).collect(),
        orphan_free_count: pool.orphan_free_count,
        untold_count: pool.untold_count,
    }
}

fn components(components: Vec<Component>) -> Vec<v1::Component> {
    components
        .into_iter()
        .map(|component| v1::Component {
            name: component.name().to_owned(),
            module: component.module().map(|module| u32::from(module.0)),
            count: component.count,
            bytes: component.bytes,
            huge_page_bytes: component.huge_page_bytes,
            giant_page_bytes: component.giant_page_bytes,
        })
        .collect()
}

fn distribution(distribution: Distribution) -> v1::Distribution {
    v1::Distribution {
        count: distribution.count,
        min: distribution.min,
        mean: distribution.mean,
        max: distribution.max,
        p50: distribution.p50,
        p90: distribution.p90,
        p99: distribution.p99,
        buckets: distribution
            .buckets
            .into_iter()
            .map(|(up_to, count)| v1::Bucket { up_to, count })
            .collect(),
    }
}
