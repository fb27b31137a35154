//! What changed between two moments.

use memscope_export::Diff;
use memscope_export::diff::Amount;
use memscope_ledger::event::CoverageNote;
use memscope_proto::v1;

/// Most groups in one answer: it stays below gRPC's 4 MiB.
const MAX_GROUPS: usize = 2000;

pub(crate) fn diff(diff: Diff, notes: Vec<CoverageNote>) -> v1::DiffResponse {
    let omitted = diff.groups.len().saturating_sub(MAX_GROUPS);
    v1::DiffResponse {
        pid: diff.after_pid,
        from_unix_ns: diff.before_unix_ns,
        to_unix_ns: diff.after_unix_ns,
        devices: diff
            .devices
            .iter()
            .map(|one| v1::DeviceDiff {
                device: one.device,
                allocated_before_bytes: one.allocated_before_bytes,
                allocated_after_bytes: one.allocated_after_bytes,
                reserved_before_bytes: one.reserved_before_bytes,
                reserved_after_bytes: one.reserved_after_bytes,
                pending_before_bytes: one.pending_before_bytes,
                pending_after_bytes: one.pending_after_bytes,
                came: Some(amount(one.came)),
                went: Some(amount(one.went)),
                stayed: Some(amount(one.stayed)),
            })
            .collect(),
        groups: diff
            .groups
            .iter()
            .take(MAX_GROUPS)
            .map(|one| v1::GroupDiff {
                device: one.device,
                stream: one.stream,
                size_bytes: one.size_bytes,
                requested: one.requested,
                came: Some(amount(one.came)),
                went: Some(amount(one.went)),
                stayed: Some(amount(one.stayed)),
            })
            .collect(),
        omitted_groups: omitted as u64,
        coverage: super::coverage(notes),
    }
}

fn amount(amount: Amount) -> v1::Amount {
    v1::Amount {
        count: amount.count,
        bytes: amount.bytes,
    }
}
