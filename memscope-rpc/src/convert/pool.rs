//! The answer to `pool`.

use super::coverage;
use memscope_export::diff::Amount;
use memscope_export::pool::{AGES_NS, DevicePool, PoolShare, SizeClass, pool as describe};
use memscope_ledger::report::SnapshotReport;
use memscope_proto::v1;

pub(crate) fn pool(report: &SnapshotReport, before: Option<&SnapshotReport>) -> v1::PoolResponse {
    let mut notes = report.coverage.clone();
    for note in before.map_or(&[][..], |before| &before.coverage) {
        // What still holds is told of now.
        if !notes.iter().any(|known| known.code == note.code) {
            notes.push(note.clone());
        }
    }
    v1::PoolResponse {
        pid: report.process.facts.pid,
        as_of: report.as_of.unix_ns,
        from_unix_ns: before.map(|before| before.as_of.unix_ns),
        ages_ns: AGES_NS.to_vec(),
        devices: describe(report, before).into_iter().map(device).collect(),
        process: Some(super::process::process(report.process.clone())),
        coverage: coverage(notes),
    }
}

fn device(device: DevicePool) -> v1::DevicePool {
    v1::DevicePool {
        device: device.device,
        reserved_bytes: device.reserved_bytes,
        allocated: amount(device.allocated),
        pending: amount(device.pending),
        requested_bytes: device.requested_bytes,
        free: amount(device.free),
        largest_free_bytes: device.largest_free_bytes,
        idle_segments: amount(device.idle_segments),
        fragmentation_of_free: device.fragmentation_of_free,
        fragmentation_viewer: device.fragmentation_viewer,
        unused_share: device.unused_share,
        classes: device.classes.into_iter().map(class).collect(),
        pools: device.pools.into_iter().map(share).collect(),
    }
}

fn class(class: SizeClass) -> v1::SizeClass {
    v1::SizeClass {
        up_to_bytes: class.up_to_bytes,
        live: amount(class.live),
        by_age: class.by_age.into_iter().filter_map(amount).collect(),
        age_unknown: amount(class.age_unknown),
        before: class.before.and_then(amount),
    }
}

fn share(share: PoolShare) -> v1::PoolShare {
    v1::PoolShare {
        pool_id_first: share.pool.0,
        pool_id_second: share.pool.1,
        large: share.large,
        expandable: share.expandable,
        stream: share.stream,
        segments: amount(share.segments),
        allocated: amount(share.allocated),
        pending: amount(share.pending),
    }
}

fn amount(amount: Amount) -> Option<v1::Amount> {
    Some(v1::Amount {
        count: amount.count,
        bytes: amount.bytes,
    })
}
