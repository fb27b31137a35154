//! The difference is what a naive model finds, block by block.
#![allow(clippy::unwrap_used)]

mod common;

use common::{block, course::course, report};
use memscope_export::diff;
use memscope_ledger::report::{BlockState, SnapshotBlock, SnapshotReport};
use memscope_proto::v1::{Amount, DiffResponse, GroupDiff};
use proptest::prelude::*;

/// Address, size class, whether the requested size is known, time of allocation, state. Each has few values, so that
/// blocks of both snapshots often agree.
type Part = (u64, u64, bool, u64, u8);

fn snapshot(parts: &[Part], boot_ns: u64, start_ticks: u64) -> SnapshotReport {
    let mut snapshot = report();
    snapshot.as_of.boot_ns = boot_ns;
    snapshot.process.facts.start_ticks = start_ticks;
    for (number, segment) in snapshot.segments.iter_mut().enumerate() {
        segment.blocks.clear();
        let mut taken = Vec::new();
        for (slot, class, requested, since_ns, state) in parts {
            if slot % 2 != number as u64 || taken.contains(slot) {
                continue;
            }
            taken.push(*slot);
            let size = 512 * class;
            let state = match state {
                0 => BlockState::Inactive,
                1 => BlockState::PendingFree,
                _ => BlockState::Active,
            };
            segment.blocks.push(SnapshotBlock {
                since_ns: *since_ns,
                ..block(
                    segment.addr + slot * 4096,
                    size,
                    requested.then_some(size - 100),
                    state,
                )
            });
        }
    }
    snapshot
}

/// (device, stream, size, requested): counts and bytes that came, went, stayed.
type Rows = Vec<((i32, u64, u64, bool), [(u64, u64); 3])>;

fn naive(a: &SnapshotReport, b: &SnapshotReport) -> Rows {
    let live = |report: &SnapshotReport| {
        let mut all = Vec::new();
        for segment in &report.segments {
            for block in &segment.blocks {
                if block.state == BlockState::Active {
                    all.push((segment.device, segment.stream, *block));
                }
            }
        }
        all
    };
    type One = (i32, u64, SnapshotBlock);
    // Where it is not known of each block of a size what was requested, it counts for none of them.
    let known = |all: &[One]| {
        let unknown = all.iter().filter(|(.., block)| block.requested.is_none());
        let unknown: Vec<(i32, u64, u64)> = unknown
            .map(|(device, stream, block)| (*device, *stream, block.size))
            .collect();
        move |(device, stream, block): &One| {
            let is_known = !unknown.contains(&(*device, *stream, block.size));
            block.requested.filter(|_| is_known)
        }
    };
    let (a_live, mut b_live) = (live(a), live(b));
    let of_both = known(&[&a_live[..], &b_live].concat());
    let same_process = a.process.facts.start_ticks == b.process.facts.start_ticks;
    let mut told: Vec<(usize, One)> = Vec::new();
    for one in a_live {
        let found = b_live.iter().position(|other| {
            let (then, now) = (&one.2, &other.2);
            if same_process {
                // The later picture's block must not have come after the moment of the earlier one.
                let (earlier, later) = match a.as_of.boot_ns > b.as_of.boot_ns {
                    true => (b.as_of.boot_ns, then.since_ns),
                    false => (a.as_of.boot_ns, now.since_ns),
                };
                let since = later == 0 || later <= earlier;
                one.0 == other.0 && then.addr == now.addr && then.size == now.size && since
            } else {
                (one.0, one.1, then.size, of_both(&one))
                    == (other.0, other.1, now.size, of_both(other))
            }
        });
        told.push(match found {
            Some(index) => (2, b_live.remove(index)),
            None => (1, one),
        });
    }
    told.extend(b_live.into_iter().map(|one| (0, one)));
    let of_told: Vec<One> = told.iter().map(|(_, one)| *one).collect();
    let of_told = known(&of_told);
    let mut rows: Rows = Vec::new();
    for (at, one) in told {
        let requested = match same_process {
            true => of_told(&one),
            false => of_both(&one),
        };
        let (device, stream, block) = one;
        let size = requested.unwrap_or(block.size);
        let key = (device, stream, size, requested.is_some());
        let found = rows.iter().position(|row| row.0 == key);
        let row = found.unwrap_or_else(|| {
            rows.push((key, [(0, 0); 3]));
            rows.len() - 1
        });
        rows[row].1[at].0 += 1;
        rows[row].1[at].1 += block.size;
    }
    rows.sort();
    rows
}

fn of(amount: Option<Amount>) -> Amount {
    amount.unwrap()
}

fn rows(diff: &DiffResponse) -> Rows {
    let row = |group: &GroupDiff| {
        let amounts = [group.came, group.went, group.stayed];
        (
            (
                group.device,
                group.stream,
                group.size_bytes,
                group.requested,
            ),
            amounts.map(|amount| (of(amount).count, of(amount).bytes)),
        )
    };
    let mut rows: Rows = diff.groups.iter().map(row).collect();
    rows.sort();
    rows
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    prop::collection::vec((0..24u64, 1..4u64, any::<bool>(), 0..5u64, 0..5u8), 0..40)
}

proptest! {
    #[test]
    fn as_a_naive_model(
        first in parts(), second in parts(), at in 0..6u64, later in 0..6u64, other in any::<bool>(),
    ) {
        let a = snapshot(&first, at, 1);
        let b = snapshot(&second, later, 1 + u64::from(other));
        let found = diff(&a, &b);
        prop_assert_eq!(rows(&found), naive(&a, &b));
        for device in &found.devices {
            prop_assert_eq!(of(device.went).bytes + of(device.stayed).bytes, device.allocated_before_bytes);
            prop_assert_eq!(of(device.came).bytes + of(device.stayed).bytes, device.allocated_after_bytes);
        }
        let changes = found.groups.iter().map(|g| of(g.came).bytes.abs_diff(of(g.went).bytes));
        prop_assert!(changes.is_sorted_by(|a, b| a >= b));
    }
}

#[test]
fn nothing_between_a_snapshot_and_itself() {
    let one = course(2000, 0, 5);
    let found = diff(&one, &one);
    assert_eq!(found.devices.len(), 2);
    for device in &found.devices {
        assert_eq!((of(device.came).count, of(device.went).count), (0, 0));
        assert!(of(device.stayed).count > 0);
        assert_eq!(device.reserved_before_bytes, device.reserved_after_bytes);
    }
}

/// Only groups in which something changed are told as left out.
#[test]
fn what_has_not_changed_is_not_left_out() {
    let mut before = report();
    before.segments.truncate(1);
    let addr = before.segments[0].addr;
    let sized = |class: u64| block(addr + class * 4096, 512 * class, None, BlockState::Active);
    before.segments[0].blocks = (1..=2_500).map(sized).collect();
    let mut after = before.clone();
    after.segments[0].blocks.push(sized(2_501));
    let answer = diff(&before, &after);
    assert_eq!((answer.groups.len(), answer.omitted_groups), (2_000, 0));
    assert_eq!(of(answer.groups[0].came).count, 1);
    before.segments[0].blocks.clear();
    assert_eq!(diff(&before, &after).omitted_groups, 501);
}
