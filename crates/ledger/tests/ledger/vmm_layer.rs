//! Virtual memory management: when physical memory is freed, and to which handle it belongs.

use crate::common::calls::plain;
use crate::common::*;
use memscope_ledger::event::*;
use proptest::prelude::*;
use std::collections::HashMap;

#[test]
fn physical_memory_ends_with_its_last_handle_and_mapping() {
    let mut c = plain();
    c.handle(CallOp::Create, 1, 100);
    c.map(0x1000, 100, 1);
    c.map(0x2000, 100, 1);
    c.handle(CallOp::Release, 1, 0);
    assert_eq!(c.device().physical, bytes(1, 100));
    // The handle's number is used again while the old memory is still mapped.
    c.handle(CallOp::Create, 1, 30);
    assert_eq!(c.device().physical, bytes(2, 130));
    c.send(CallOp::Retain, |call| {
        call.ptr = 0x2010;
        call.handle = 55;
    });
    c.at(CallOp::Unmap, 0x1000, 0x1000 + 100);
    assert_eq!(c.device().physical.unwrap().count, 2, "still named 55");
    c.handle(CallOp::Release, 55, 0);
    assert_eq!(c.device().physical, bytes(1, 30));
    c.handle(CallOp::Release, 1, 0);
    assert_eq!(c.device().physical.unwrap().count, 0);
    assert_eq!(c.device().free_count, 2);
    // A handle and a mapping from before the attach.
    c.handle(CallOp::Release, 99, 0);
    c.at(CallOp::Unmap, 0x7000, 100);
    assert!(has_note(&stats(&c.ledger).coverage, "vmm_unknown"));
    c.at(CallOp::Reserve, 0x100_0000, 1 << 30);
    assert_eq!(stats(&c.ledger).address_reserved.unwrap().bytes, 1 << 30);
    c.at(CallOp::ReserveFree, 0x100_0000, 0);
    assert_eq!(stats(&c.ledger).address_reserved.unwrap().count, 0);
    assert_eq!(c.ledger.kept(P).unwrap().allocations, 0);
}

/// A handle for unknown memory that is retained and released is one release.
#[test]
fn unknown_memory_is_counted_where_it_is_released() {
    let mut c = plain();
    c.send(CallOp::Retain, |call| {
        call.ptr = 0x7000;
        call.handle = 55;
    });
    assert!(!has_note(&stats(&c.ledger).coverage, "vmm_unknown"));
    c.handle(CallOp::Release, 55, 0);
    let notes = stats(&c.ledger).coverage;
    let text = notes.iter().find(|note| note.code == "vmm_unknown");
    let text = &text.unwrap().text;
    assert!(text.starts_with("1 releases or unmaps"), "{text}");
}

#[test]
fn expandable_segments_are_the_pools() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    let mut send = |body: Body| ledger.apply(&event(P, 2 * SECOND, body));
    for i in 0..3u64 {
        let at = 0x1000_0000 + i * 20 * MIB;
        let Body::Call(mut create) = call("cuMemCreate", CallOp::Create, 0, 20 * MIB) else {
            unreachable!()
        };
        create.handle = 70 + i;
        send(Body::Call(create.clone()));
        create.op = CallOp::Map;
        create.ptr = at;
        send(Body::Call(create));
        send(Body::Trace(PoolTrace {
            action: TraceAction::SegmentMap,
            allocator: 1,
            device: Some(0),
            addr: at,
            size: 20 * MIB,
            stream: 0,
            block_size: None,
            total_allocated: Some(0),
            total_reserved: Some((i + 1) * 20 * MIB),
            pool: Some((0, 0)),
        }));
    }
    let seen = device(&ledger, 0);
    assert_eq!(seen.physical, bytes(3, 60 * MIB));
    assert_eq!(seen.direct, bytes(0, 0));
    assert_eq!(seen.segments, Some(1));
    assert_eq!(seen.reserved_bytes, Some(60 * MIB));
    assert_eq!(find_device(&ledger, None), None);
}

/// PyTorch gives back a piece of an expandable segment from before the attach: nothing of it was counted, so that nothing
/// is too large afterwards.
#[test]
fn what_goes_that_was_never_counted_hides_nothing() {
    let mut ledger = attached(Level::Trace, false, SECOND);
    let part = HeldPart {
        at_ns: 2 * SECOND,
        allocator: 0,
        device: 0,
        part: 0,
        parts: 1,
        total_allocated: MIB,
        total_reserved: 20 * MIB,
        segments: vec![HeldSegment {
            addr: 0x1000_0000,
            size: 20 * MIB,
            stream: 0,
            large: true,
            pool: (0, 0),
            expandable: true,
            blocks: vec![(0x1000_0000, MIB, MIB, false)],
            ..HeldSegment::default()
        }],
    };
    ledger.apply(&event(P, 2 * SECOND, Body::Held(Box::new(part))));
    for (op, ptr, handle) in [(CallOp::Unmap, 0x2000_0000, 0), (CallOp::Release, 0, 77)] {
        let Body::Call(mut call) = call(&format!("{op:?}"), op, ptr, 2 * MIB) else {
            unreachable!()
        };
        call.device = Some(0);
        call.handle = handle;
        ledger.apply(&event(P, 3 * SECOND, Body::Call(call)));
    }
    let answer = ledger.ask(
        &[P],
        as_of(3 * SECOND),
        &memscope_proto::v1::DevicesRequest {},
    );
    let answer = answer.unwrap();
    assert!(has_note(&answer.coverage, "vmm_unknown"));
    let holder = &answer.devices[0].holders[0];
    assert_eq!(
        (holder.allocated_bytes, holder.held_bytes, holder.at_least),
        (Some(MIB), Some(20 * MIB), true)
    );
    assert_eq!(answer.devices[0].held_bytes, Some(20 * MIB));
}

/// Without a pool: a handle's memory is shown once, however often it is mapped, and is in the sums while it has no address.
#[test]
fn a_picture_shows_physical_memory_once() {
    let mut c = plain();
    let shown = |c: &crate::common::calls::Calls| {
        let picture = c.ledger.snapshot(P, as_of(c.time)).unwrap();
        let of = |list: &[memscope_ledger::report::SnapshotSegment]| -> Vec<(u64, u64)> {
            list.iter().map(|s| (s.addr, s.size)).collect()
        };
        let note = picture.coverage.iter();
        let note = note.filter(|note| note.code == "physical_not_shown");
        let note = note.map(|note| note.text.clone()).next();
        (of(&picture.segments), of(&picture.unmapped), note)
    };
    c.handle(CallOp::Create, 1, 16 * MIB);
    let nowhere = "16.00 MiB of physical memory are mapped at no address, so they are among the sums and in no segment";
    assert_eq!(
        shown(&c),
        (vec![], vec![(0, 16 * MIB)], Some(nowhere.to_owned()))
    );
    c.map(0x1000_0000, 16 * MIB, 1);
    assert_eq!(shown(&c), (vec![(0x1000_0000, 16 * MIB)], vec![], None));
    c.map(0x4000_0000, 16 * MIB, 1);
    let again = "physical memory is mapped at 1 more addresses; it is shown at its first one only";
    assert_eq!(
        shown(&c),
        (
            vec![(0x1000_0000, 16 * MIB)],
            vec![],
            Some(again.to_owned())
        )
    );
    c.at(CallOp::Unmap, 0x1000_0000, 16 * MIB);
    assert_eq!(shown(&c), (vec![(0x4000_0000, 16 * MIB)], vec![], None));
    c.at(CallOp::Unmap, 0x4000_0000, 16 * MIB);
    c.handle(CallOp::Release, 1, 0);
    assert_eq!(shown(&c), (vec![], vec![], None));
}

#[derive(Clone, Debug)]
enum VmmOp {
    Create(u64, u64),
    Release(u64),
    Map { slot: u64, handle: u64 },
    Unmap { slot: u64, slots: u64 },
    Retain { slot: u64, handle: u64 },
}

fn vmm_op() -> impl Strategy<Value = VmmOp> {
    prop_oneof![
        (0u64..6, 1u64..100).prop_map(|(h, s)| VmmOp::Create(h, s)),
        (0u64..6).prop_map(VmmOp::Release),
        (0u64..8, 0u64..6).prop_map(|(slot, handle)| VmmOp::Map { slot, handle }),
        (0u64..8, 1u64..4).prop_map(|(slot, slots)| VmmOp::Unmap { slot, slots }),
        (0u64..8, 0u64..6).prop_map(|(slot, handle)| VmmOp::Retain { slot, handle }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random operations that a driver allows: a handle's number is used again only after all its references were
    /// released.
    #[test]
    fn vmm_model(ops in prop::collection::vec(vmm_op(), 1..120)) {
        const SLOT: u64 = 0x1_0000;
        let mut c = plain();
        let mut names: HashMap<u64, (usize, u32)> = HashMap::new();
        let mut maps: HashMap<u64, usize> = HashMap::new();
        let mut sizes: Vec<u64> = Vec::new();
        for op in ops {
            match op {
                VmmOp::Create(handle, size) => {
                    if names.contains_key(&handle) { continue; }
                    sizes.push(size);
                    names.insert(handle, (sizes.len() - 1, 1));
                    c.handle(CallOp::Create, handle, size);
                }
                VmmOp::Release(handle) => {
                    let Some(name) = names.get_mut(&handle) else { continue };
                    name.1 -= 1;
                    if name.1 == 0 { names.remove(&handle); }
                    c.handle(CallOp::Release, handle, 0);
                }
                VmmOp::Map { slot, handle } => {
                    let Some(&(memory, _)) = names.get(&handle) else { continue };
                    if maps.contains_key(&slot) { continue; }
                    maps.insert(slot, memory);
                    c.map(SLOT * (slot + 1), SLOT, handle);
                }
                VmmOp::Unmap { slot, slots } => {
                    for s in slot..slot + slots { maps.remove(&s); }
                    c.at(CallOp::Unmap, SLOT * (slot + 1), SLOT * slots);
                }
                VmmOp::Retain { slot, handle } => {
                    let Some(&memory) = maps.get(&slot) else { continue };
                    match names.get_mut(&handle) {
                        Some(name) if name.0 == memory => name.1 += 1,
                        Some(_) => continue,
                        None => { names.insert(handle, (memory, 1)); }
                    }
                    c.send(CallOp::Retain, |call| {
                        call.ptr = SLOT * (slot + 1) + 5;
                        call.handle = handle;
                    });
                }
            }
            let alive: Vec<u64> = (0..sizes.len())
                .filter(|m| names.values().any(|n| n.0 == *m) || maps.values().any(|n| n == m))
                .map(|m| sizes[m])
                .collect();
            let seen = find_device(&c.ledger, Some(0)).map_or(bytes(0, 0), |d| d.physical);
            prop_assert_eq!(seen, bytes(alive.len() as u64, alive.iter().sum()));
            // A picture has each byte once, at an address where it is mapped.
            let Some(picture) = c.ledger.snapshot(P, as_of(c.time)) else { continue };
            let all = picture.segments.iter().chain(&picture.unmapped);
            prop_assert_eq!(all.map(|s| s.size).sum::<u64>(), alive.iter().sum::<u64>());
            let mut at: Vec<u64> = Vec::new();
            let mut slots: Vec<(&u64, &usize)> = maps.iter().collect();
            slots.sort_unstable();
            let mut shown: Vec<usize> = Vec::new();
            for (slot, memory) in slots {
                if !shown.contains(memory) {
                    shown.push(*memory);
                    at.push(SLOT * (slot + 1));
                }
            }
            let addrs: Vec<u64> = picture.segments.iter().map(|s| s.addr).collect();
            prop_assert_eq!(addrs, at);
        }
    }

    /// Allocations on several devices, compared with a map.
    #[test]
    fn driver_model(ops in prop::collection::vec((0u64..12, 0u8..5, 1u64..5000, 0i32..3), 1..200)) {
        let mut c = plain();
        let mut live: HashMap<u64, (i32, u64)> = HashMap::new();
        let mut peak = [0u64; 3];
        let (mut came, mut orphans) = ([0u64; 3], 0);
        for (slot, kind, size, on) in ops {
            let ptr = 0x10000 * (slot + 1);
            match kind {
                0..3 if !live.contains_key(&ptr) => {
                    let op = [CallOp::Alloc, CallOp::AsyncAlloc, CallOp::ManagedAlloc][kind as usize];
                    c.send(op, |call| { call.ptr = ptr; call.size = size; call.device = Some(on); });
                    live.insert(ptr, (on, size));
                    came[on as usize] += 1;
                }
                _ => {
                    c.send(CallOp::Free, |call| { call.ptr = ptr; call.device = Some(on); });
                    orphans += u64::from(live.remove(&ptr).is_none());
                }
            }
            for on in 0..3 {
                let held: u64 = live.values().filter(|(d, _)| *d == on).map(|(_, s)| *s).sum();
                peak[on as usize] = peak[on as usize].max(held);
                if let Some(seen) = find_device(&c.ledger, Some(on)) {
                    prop_assert_eq!(seen.allocated_bytes, Some(held));
                    prop_assert_eq!(seen.peak_allocated_bytes, Some(peak[on as usize]));
                    prop_assert_eq!(seen.alloc_count, came[on as usize]);
                } else {
                    prop_assert_eq!(held, 0);
                }
            }
        }
        let told: u64 = stats(&c.ledger).devices.iter().map(|d| d.orphan_free_count).sum();
        prop_assert_eq!(told, orphans);
    }
}
