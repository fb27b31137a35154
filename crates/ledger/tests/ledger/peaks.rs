//! When most was allocated, against a plain model of the same allocations.

use std::collections::BTreeMap;

use crate::common::{MIB, P, SECOND, as_of, attached, attached_as, call, event, stats};
use memscope_ledger::event::{Backend, Body, CallOp, Level, PoolTrace, TraceAction};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// On a device, so many bytes.
    Alloc(i32, u64),
    /// One of the live blocks.
    Free(usize),
    /// Something that is neither.
    Other,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..2_i32, 1..8_u64).prop_map(|(device, size)| Step::Alloc(device, size * 512)),
        2 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Other),
    ]
}

proptest! {
    #[test]
    fn a_peak_is_the_event_that_last_brought_it(steps in prop::collection::vec(step(), 1..120)) {
        let mut ledger = attached(Level::Trace, true, 0);
        let mut live: Vec<(i32, u64, u64)> = Vec::new();
        let mut held: BTreeMap<i32, u64> = BTreeMap::new();
        // The largest sum, and the number of the event that brought it.
        let mut peaks: BTreeMap<i32, (u64, u64)> = BTreeMap::new();
        let trace = |action, device, addr, size, total| Body::Trace(PoolTrace {
            action,
            allocator: 1,
            device: Some(device),
            addr,
            size,
            stream: 0,
            block_size: Some(size),
            total_allocated: Some(total),
            total_reserved: None,
            pool: None,
        });
        for (number, step) in (1_u64..).zip(&steps) {
            let mut say = |body| {
                let mut event = event(P, number * 1000, body);
                event.id.sequence = 1000 + number;
                ledger.apply(&event);
            };
            match step {
                Step::Alloc(device, size) => {
                    let addr = 0x10_0000 * number;
                    let total = held.entry(*device).or_default();
                    *total += size;
                    live.push((*device, addr, *size));
                    say(trace(TraceAction::Alloc, *device, addr, *size, *total));
                    let peak = peaks.entry(*device).or_default();
                    if *total >= peak.0 {
                        *peak = (*total, 1000 + number);
                    }
                }
                Step::Free(at) if !live.is_empty() => {
                    let (device, addr, size) = live.swap_remove(at % live.len());
                    let total = held.entry(device).or_default();
                    *total -= size;
                    say(trace(TraceAction::FreeCompleted, device, addr, size, *total));
                }
                Step::Free(_) | Step::Other => say(Body::Launches { count: number }),
            }
        }
        let told = stats(&ledger);
        let told: BTreeMap<i32, (u64, u64)> = told
            .devices
            .iter()
            .map(|row| {
                let peak = row.peak_allocated_bytes.unwrap();
                (row.device.unwrap(), (peak, row.peak_event.unwrap()))
            })
            .collect();
        prop_assert_eq!(told, peaks);
    }
}

/// At level `segments` the stacks of a process with PyTorch's pool have what was taken from the driver.
#[test]
fn the_peak_by_stacks_of_a_pool_that_is_not_seen() {
    let mut ledger = attached_as(Level::Segments, true, SECOND, Backend::Native);
    let Body::Call(mut one) = call("cudaMalloc", CallOp::Alloc, 0x1000_0000, 10 * MIB) else {
        unreachable!()
    };
    one.device = Some(0);
    ledger.apply(&event(P, 2 * SECOND, Body::Call(one)));
    let report = ledger.stacks(P, as_of(0)).unwrap();
    assert_eq!(report.rows[0].peak.bytes, 10 * MIB);
}
