//! The division of a snapshot is what a naive walk over its blocks finds.
#![allow(clippy::unwrap_used)]

mod common;

use common::{block, entry, report};
use memscope_export::pool::{AGES_NS, devices, pool};
use memscope_ledger::event::TraceAction;
use memscope_ledger::report::{BlockState, SnapshotBlock, SnapshotReport, SnapshotTrace};
use memscope_proto::v1::Amount;
use memscope_tests::limits::{Met, constant};
use proptest::prelude::*;

/// Size in units of 512, age in seconds (none: before the attach), requested known, state.
type Part = (u64, Option<u64>, bool, u8);

const NOW_NS: u64 = 1 << 60;

fn snapshot(parts: &[Part]) -> SnapshotReport {
    let mut snapshot = report();
    snapshot.as_of.boot_ns = NOW_NS;
    let segments = snapshot.segments.len();
    for (number, segment) in snapshot.segments.iter_mut().enumerate() {
        segment.device = (number % 2) as i32;
        segment.blocks.clear();
        let mut at = segment.addr;
        for (units, age, known, state) in parts.iter().skip(number).step_by(segments) {
            let size = units * 512;
            let state = match state % 3 {
                0 => BlockState::Inactive,
                1 => BlockState::PendingFree,
                _ => BlockState::Active,
            };
            segment.blocks.push(SnapshotBlock {
                since_ns: age.map_or(0, |seconds| NOW_NS - seconds * 1_000_000_000),
                ..block(at, size, known.then_some(size - 7), state)
            });
            at += size;
        }
        segment.size = at - segment.addr;
    }
    snapshot
}

proptest! {
    #[test]
    fn is_what_a_walk_finds(
        parts in prop::collection::vec((1u64..5000, prop::option::of(0u64..200_000), any::<bool>(), 0u8..3), 0..60),
        earlier in prop::collection::vec((1u64..5000, prop::option::of(0u64..200_000), any::<bool>(), 0u8..3), 0..20),
        compare in any::<bool>(),
        without_address in any::<bool>(),
    ) {
        let (mut now, mut before) = (snapshot(&parts), snapshot(&earlier));
        if without_address {
            // Memory that is mapped nowhere is divided as well.
            for snapshot in [&mut now, &mut before] {
                snapshot.unmapped.extend(snapshot.segments.pop());
            }
        }
        let described = devices(&now, compare.then_some(&before));
        for device in described {
            let blocks = |snapshot: &SnapshotReport, state| -> Vec<SnapshotBlock> {
                let segments = snapshot.segments.iter().chain(&snapshot.unmapped);
                let segments = segments.filter(|s| s.device == device.device);
                segments.flat_map(|s| s.blocks.clone()).filter(|b| b.state == state).collect()
            };
            let live = blocks(&now, BlockState::Active);
            let free = blocks(&now, BlockState::Inactive);
            let pending = blocks(&now, BlockState::PendingFree);
            let sum = |blocks: &[SnapshotBlock]| blocks.iter().map(|b| b.size).sum::<u64>();
            let pair = |amount: Option<Amount>| {
                let amount = amount.unwrap();
                (amount.count, amount.bytes)
            };
            prop_assert_eq!(pair(device.allocated), (live.len() as u64, sum(&live)));
            prop_assert_eq!(pair(device.free), (free.len() as u64, sum(&free)));
            prop_assert_eq!(pair(device.pending), (pending.len() as u64, sum(&pending)));
            prop_assert_eq!(device.reserved_bytes, sum(&live) + sum(&free) + sum(&pending));
            prop_assert_eq!(device.largest_free_bytes, free.iter().map(|b| b.size).max().unwrap_or(0));
            let requested: Option<u64> = live.iter().chain(&pending).map(|b| b.requested).sum();
            prop_assert_eq!(device.requested_bytes, requested);
            let reserved = device.reserved_bytes.max(1) as f64;
            let squares: f64 = free.iter().map(|b| (b.size as f64 / reserved).powi(2)).sum();
            prop_assert!((device.fragmentation_viewer - squares).abs() < 1e-9);
            for share in [device.fragmentation_of_free, device.unused_share, device.fragmentation_viewer] {
                prop_assert!((0.0..=1.0).contains(&share));
            }
            // Every live block is in one class and has one age there.
            let mut in_classes = 0;
            for class in &device.classes {
                let belongs = |b: &&SnapshotBlock| b.size <= class.up_to_bytes && b.size > class.up_to_bytes / 2;
                let members: Vec<SnapshotBlock> = live.iter().filter(belongs).copied().collect();
                prop_assert_eq!(pair(class.live), (members.len() as u64, sum(&members)));
                in_classes += members.len();
                let known = class.by_age.iter().map(|a| a.count).sum::<u64>();
                prop_assert_eq!(known + class.age_unknown.unwrap().count, class.live.unwrap().count);
                for (place, amount) in class.by_age.iter().enumerate() {
                    let from = if place == 0 { 0 } else { AGES_NS[place - 1] };
                    let to = AGES_NS.get(place).copied().unwrap_or(u64::MAX);
                    let aged = members.iter().filter(|b| b.since_ns > 0 && (from..to).contains(&(NOW_NS - b.since_ns)));
                    prop_assert_eq!(amount.count, aged.count() as u64);
                }
                let earlier = blocks(&before, BlockState::Active);
                let earlier: Vec<SnapshotBlock> = earlier.iter().filter(belongs).copied().collect();
                prop_assert_eq!(class.before.map(|before| pair(Some(before))), compare.then_some((earlier.len() as u64, sum(&earlier))));
            }
            prop_assert_eq!(in_classes, live.len());
            let shares: u64 = device.pools.iter().map(|share| share.segments.unwrap().bytes).sum();
            prop_assert_eq!(shares, device.reserved_bytes);
            let idle: u64 = now
                .segments
                .iter()
                .chain(&now.unmapped)
                .filter(|s| s.device == device.device && s.blocks.iter().all(|b| b.state == BlockState::Inactive))
                .map(|s| s.size)
                .sum();
            prop_assert_eq!(device.idle_segments.unwrap().bytes, idle);
        }
    }
}

#[test]
fn the_newest_failed_allocations_are_told() {
    let mut snapshot = report();
    snapshot.trace = (0..1_000)
        .map(|number| SnapshotTrace {
            time_ns: number,
            unix_ns: 7_000 + number,
            ..entry(
                [TraceAction::Alloc, TraceAction::Oom][(number % 2) as usize],
                1,
                300,
                (1 << 30) | number,
            )
        })
        .collect();
    let answer = pool(&snapshot, None);
    let failed = &answer.failed_allocations;
    assert_eq!(failed.len(), 200);
    for (place, one) in failed.iter().enumerate() {
        let number = 999 - 2 * place as u64;
        assert_eq!(one.time_boot_ns, number);
        assert_eq!(one.time_unix_ns, 7_000 + number);
        assert_eq!((one.device, one.device_free_bytes), (1, 300));
        assert_eq!(one.size_bytes, (1 << 30) | number);
    }
    snapshot.trace.clear();
    assert!(pool(&snapshot, None).failed_allocations.is_empty());
    Met {
        what: "failed allocations in an answer about the pool",
        most: constant("crates/export/src/pool.rs", "MOST_FAILED"),
        beyond: "the newest are told",
        told: "`oom_count` of Stats has the number of all",
        test: "the_newest_failed_allocations_are_told",
    }
    .is_told();
}
