//! The blocks that came and went between two snapshots of the ledger.

use memscope_diff::{Block, MatchedBy, Side, compare};
use memscope_ledger::report::{BlockState, SnapshotReport, attached_anew};
use memscope_proto::v1::{Amount, DiffResponse, GroupDiff};

/// Most groups in one answer, which must stay below gRPC's 4 MiB.
const MOST_GROUPS: usize = 2000;

/// Compares two snapshots: which blocks came, went and stayed from `a` to `b`. Groups with the largest change of bytes
/// come first, groups without a change last. Of those that find no room, the ones with a change are counted.
pub fn diff(a: &SnapshotReport, b: &SnapshotReport) -> DiffResponse {
    let matched_by = match a.process.has_the_image_of(&b.process) {
        true => MatchedBy::Block,
        false => MatchedBy::Number,
    };
    let compared = compare(side(a), side(b), matched_by);
    let mut groups = compared.groups;
    let cut = groups.split_off(groups.len().min(MOST_GROUPS));
    let count = |amount: Option<Amount>| amount.map_or(0, |amount| amount.count);
    let changed = |group: &&GroupDiff| count(group.came) + count(group.went) > 0;
    let omitted = cut.iter().filter(changed).count();
    let mut coverage = a.coverage.clone();
    let new = b.coverage.iter().filter(|note| !a.coverage.contains(note));
    coverage.extend(new.cloned());
    coverage.extend(attached_anew((&a.process, a.as_of), (&b.process, b.as_of)));
    DiffResponse {
        pid: b.process.facts.pid,
        from_unix_ns: a.as_of.unix_ns,
        to_unix_ns: b.as_of.unix_ns,
        devices: compared.devices,
        groups,
        omitted_groups: omitted as u64,
        coverage,
    }
}

fn side(report: &SnapshotReport) -> Side<impl Iterator<Item = Block<()>> + Clone> {
    let blocks = report.segments.iter().flat_map(|segment| {
        let used = segment.blocks.iter();
        let used = used.filter(|block| block.state != BlockState::Inactive);
        used.map(|block| Block {
            device: segment.device,
            stream: segment.stream,
            address: block.addr,
            size: block.size,
            requested: block.requested,
            born_ns: Some(block.since_ns).filter(|since| *since != 0),
            stack: (),
            pending: block.state == BlockState::PendingFree,
        })
    });
    let mut side = Side::new(Some(report.as_of.boot_ns), blocks);
    for segment in &report.segments {
        side.segment(segment.device, segment.size);
    }
    side
}
