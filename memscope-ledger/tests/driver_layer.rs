//! Runtime and driver calls: what enters, what does not, and where it ends up.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

struct Calls {
    ledger: Ledger,
    time: u64,
}

fn plain() -> Calls {
    Calls {
        ledger: attached_as(Level::Segments, true, SECOND, Backend::Unknown),
        time: SECOND,
    }
}

impl Calls {
    fn send(&mut self, op: CallOp, edit: impl FnOnce(&mut Call)) {
        let Body::Call(mut call) = call(&format!("{op:?}"), op, 0, 0) else {
            unreachable!()
        };
        call.device = Some(0);
        edit(&mut call);
        self.time += 1000;
        self.ledger.apply(&event(P, self.time, Body::Call(call)));
    }

    fn at(&mut self, op: CallOp, ptr: u64, size: u64) {
        self.send(op, |call| {
            call.ptr = ptr;
            call.size = size;
        });
    }

    fn handle(&mut self, op: CallOp, handle: u64, size: u64) {
        self.send(op, |call| {
            call.handle = handle;
            call.size = size;
        });
    }

    fn map(&mut self, ptr: u64, size: u64, handle: u64) {
        self.send(CallOp::Map, |call| {
            call.ptr = ptr;
            call.size = size;
            call.handle = handle;
        });
    }

    fn device(&self) -> DeviceStats {
        device(&self.ledger, 0)
    }
}

#[test]
fn only_success_enters() {
    let mut c = plain();
    c.send(CallOp::Alloc, |call| {
        call.function = Arc::from("cudaMalloc");
        call.status = 2;
        call.size = 1 << 40;
        call.ptr = 0xdead;
    });
    c.send(CallOp::Alloc, |call| {
        call.function = Arc::from("cudaMalloc");
        call.status = 2;
        call.size = 5;
    });
    assert_eq!(stats(&c.ledger).devices, vec![]);
    assert_eq!(
        stats(&c.ledger).failures,
        vec![Failure {
            function: "cudaMalloc".into(),
            status: 2,
            count: 2,
            bytes: (1 << 40) + 5
        }]
    );
    c.at(CallOp::Alloc, 0x1000, 4096);
    // A free that failed has freed nothing.
    c.send(CallOp::Free, |call| {
        call.ptr = 0x1000;
        call.status = 1;
    });
    assert_eq!(c.device().allocated_bytes, Some(4096));
    assert_eq!(c.ledger.summary(P).unwrap().allocated_bytes, Some(4096));
}

#[test]
fn null_is_nothing_and_unknown_is_an_orphan() {
    let mut c = plain();
    c.at(CallOp::Alloc, 0, 0);
    c.at(CallOp::Free, 0, 0);
    c.at(CallOp::AsyncFree, 0, 0);
    c.at(CallOp::HostFree, 0, 0);
    assert_eq!(stats(&c.ledger).devices, vec![]);
    c.at(CallOp::Free, 0x9000, 0);
    let seen = c.device();
    assert_eq!(
        (seen.orphan_free_count, seen.free_count, seen.alloc_count),
        (1, 1, 0)
    );
}

#[test]
fn an_address_given_twice_was_freed_unseen() {
    let mut c = plain();
    c.at(CallOp::Alloc, 0x1000, 4096);
    c.at(CallOp::Alloc, 0x8000, 4096);
    c.at(CallOp::Alloc, 0x1000, 8192);
    let seen = c.device();
    assert_eq!(
        seen.driver,
        DriverBytes {
            count: 2,
            bytes: 12288
        }
    );
    assert_eq!((seen.alloc_count, seen.free_count), (3, 0));
    // Over the middle of both.
    c.at(CallOp::Alloc, 0x2800, 0x6000);
    assert_eq!(
        c.device().driver,
        DriverBytes {
            count: 1,
            bytes: 0x6000
        }
    );
    assert!(has_note(&stats(&c.ledger).coverage, "inexact_after_loss"));
}

/// B frees what A allocated; while B's free returns, C is given the same address and is told of first.
#[test]
fn a_free_that_is_told_of_late_does_not_take_the_next_owners_block() {
    let mut calls = plain();
    calls.at(CallOp::Alloc, 0x1000, 100);
    calls.at(CallOp::Alloc, 0x1000, 300);
    calls.send(CallOp::Free, |free| {
        free.ptr = 0x1000;
        // Entered before the second allocation returned.
        free.duration_ns = 1500;
    });
    let device = calls.device();
    assert_eq!((device.driver.count, device.driver.bytes), (1, 300));
    assert_eq!((device.free_count, device.orphan_free_count), (1, 0));
    calls.at(CallOp::Free, 0x1000, 0);
    let device = calls.device();
    assert_eq!((device.driver.count, device.driver.bytes), (0, 0));
    assert_eq!((device.free_count, device.orphan_free_count), (2, 0));
    let report = stats(&calls.ledger);
    assert!(
        !report
            .coverage
            .iter()
            .any(|note| note.code == "inexact_after_loss"),
        "{:?}",
        report.coverage
    );
}

#[test]
fn any_free_takes_any_pointer() {
    let mut c = plain();
    let kinds = [CallOp::Alloc, CallOp::AsyncAlloc, CallOp::ManagedAlloc];
    for (i, kind) in kinds.iter().cycle().take(6).enumerate() {
        c.at(*kind, 0x10000 * (i as u64 + 1), 1000);
    }
    c.at(CallOp::HostAlloc, 0xff0000, 500);
    c.at(CallOp::HostRegister, 0xee0000, 300);
    let report = stats(&c.ledger);
    assert_eq!(
        report.host,
        DriverBytes {
            count: 2,
            bytes: 800
        }
    );
    assert_eq!(
        report.host_registered,
        DriverBytes {
            count: 1,
            bytes: 300
        }
    );
    let seen = c.device();
    assert_eq!(seen.driver.bytes, 6000);
    assert_eq!(
        seen.managed,
        DriverBytes {
            count: 2,
            bytes: 2000
        }
    );
    assert_eq!(
        seen.async_pool,
        DriverBytes {
            count: 2,
            bytes: 2000
        }
    );
    assert_eq!(seen.direct, seen.driver);
    for (i, free) in [CallOp::AsyncFree, CallOp::Free, CallOp::Free]
        .iter()
        .cycle()
        .take(6)
        .enumerate()
    {
        // Another thread, another current device: the address decides.
        c.send(*free, |call| {
            call.ptr = 0x10000 * (i as u64 + 1);
            call.device = Some(3);
        });
    }
    c.at(CallOp::Free, 0xff0000, 0);
    c.at(CallOp::HostUnregister, 0xee0000, 0);
    let report = stats(&c.ledger);
    assert_eq!(report.host.count, 0);
    let seen = c.device();
    assert_eq!(
        (
            seen.driver.count,
            seen.driver.bytes,
            seen.peak_allocated_bytes
        ),
        (0, 0, Some(6000))
    );
    assert_eq!((seen.free_count, seen.orphan_free_count), (6, 0));
    assert_eq!(report.devices.len(), 1, "no row for device 3");
}

#[test]
fn reset_takes_one_device() {
    let mut c = plain();
    c.at(CallOp::Alloc, 0x1000, 100);
    c.send(CallOp::Alloc, |call| {
        call.ptr = 0x2000;
        call.size = 200;
        call.device = Some(1);
    });
    c.send(CallOp::Alloc, |call| {
        call.ptr = 0x3000;
        call.size = 400;
        call.device = None;
    });
    assert!(has_note(&stats(&c.ledger).coverage, "device_unknown"));
    c.send(CallOp::Reset, |call| call.device = Some(1));
    assert_eq!(device(&c.ledger, 1).driver.count, 0);
    assert_eq!(c.device().driver.bytes, 100);
    assert_eq!(find_device(&c.ledger, None).unwrap().driver.bytes, 400);
    c.send(CallOp::Reset, |call| call.device = None);
    assert_eq!(find_device(&c.ledger, None).unwrap().driver.bytes, 0);
    assert_eq!(c.device().driver.bytes, 100);
    assert!(!has_note(&stats(&c.ledger).coverage, "device_unknown"));
}

#[test]
fn imports_and_arrays_are_in_no_sum() {
    let mut c = plain();
    c.at(CallOp::IpcOpen, 0x1000, 0);
    c.at(CallOp::IpcOpen, 0x1000, 0);
    c.handle(CallOp::Import, 9, 4096);
    c.handle(CallOp::ArrayAlloc, 0xa, 0);
    let seen = c.device();
    assert_eq!(
        seen.imported,
        DriverBytes {
            count: 2,
            bytes: 4096
        }
    );
    assert_eq!(seen.allocated_bytes, Some(0));
    let notes = stats(&c.ledger).coverage;
    assert!(has_note(&notes, "ipc_import") && has_note(&notes, "array_alloc"));
    c.at(CallOp::IpcClose, 0x1000, 0);
    c.map(0x5000, 4096, 9);
    c.handle(CallOp::Release, 9, 0);
    assert_eq!(c.device().imported.count, 1, "still mapped");
    c.at(CallOp::Unmap, 0x5000, 4096);
    assert_eq!(
        find_device(&c.ledger, Some(0)),
        None,
        "nothing of it is left"
    );
}

#[test]
fn memory_info_nested_and_totals() {
    let mut c = plain();
    c.at(CallOp::Alloc, 0x1000, 100);
    c.ledger.apply(&event(
        P,
        5,
        Body::DeviceTotal {
            device: 0,
            total_bytes: 80,
        },
    ));
    assert_eq!(c.device().total_bytes, Some(80));
    c.send(CallOp::MemInfo, |call| {
        call.size = 90;
        call.extra = 70;
        call.nested = 3;
    });
    let seen = c.device();
    assert_eq!(
        (seen.total_bytes, seen.free_bytes),
        (Some(90), Some((70, c.time)))
    );
    assert_eq!(stats(&c.ledger).nested_calls, 3);
    // NVML alone makes no row.
    c.ledger.apply(&event(
        P,
        5,
        Body::DeviceTotal {
            device: 5,
            total_bytes: 80,
        },
    ));
    assert_eq!(stats(&c.ledger).devices.len(), 1);
}

#[test]
fn sources_by_backend() {
    for (backend, from_start, source, allocated, baseline) in [
        (Backend::Unknown, true, Source::Driver, Some(7), Some(0)),
        (Backend::Uncached, true, Source::Driver, Some(7), Some(0)),
        (Backend::MallocAsync, false, Source::Driver, Some(7), None),
        (
            Backend::Other("MyPool".into()),
            false,
            Source::Driver,
            Some(7),
            None,
        ),
        (Backend::Native, true, Source::Pool, None, None),
        (Backend::Native, false, Source::Pool, None, None),
    ] {
        let mut ledger = attached_as(Level::Segments, from_start, 1, backend.clone());
        let Body::Call(mut c) = call("cudaMalloc", CallOp::Alloc, 0x1000, 7) else {
            unreachable!()
        };
        c.device = Some(0);
        ledger.apply(&event(P, 2, Body::Call(c)));
        let seen = device(&ledger, 0);
        assert_eq!(seen.source, source, "{backend:?}");
        assert_eq!(seen.allocated_bytes, allocated, "{backend:?}");
        assert_eq!(seen.baseline_bytes, baseline, "{backend:?}");
        let notes = stats(&ledger).coverage;
        assert_eq!(
            has_note(&notes, "driver_baseline_unknown"),
            source == Source::Driver && !from_start
        );
        assert_eq!(has_note(&notes, "level_segments"), source == Source::Pool);
        if source == Source::Pool {
            assert_eq!(seen.reserved_bytes, from_start.then_some(7));
            assert_eq!(seen.peak_reserved_bytes, from_start.then_some(7));
        }
    }
}

#[test]
fn pool_segments_are_not_direct_and_tell_the_device() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.driver_calls = true; // cudaMalloc names no device
    let mut ledger = attached(Level::Trace, true, sim.time);
    sim.alloc(1, 0, 5 * MIB);
    sim.emit(call("cudaMalloc", CallOp::Alloc, 0x1000, 777));
    sim.feed(&mut ledger);
    let seen = device(&ledger, 1);
    assert_eq!(
        seen.driver,
        DriverBytes {
            count: 1,
            bytes: 20 * MIB
        }
    );
    assert_eq!(seen.direct, DriverBytes::default());
    let unknown = find_device(&ledger, None).unwrap();
    assert_eq!(
        unknown.direct,
        DriverBytes {
            count: 1,
            bytes: 777
        }
    );
    assert_eq!(unknown.source, Source::Driver);
    // The unknown row does not spoil the sum of the pools.
    assert_eq!(ledger.summary(P).unwrap().allocated_bytes, Some(5 * MIB));
    assert_eq!(ledger.summary(P).unwrap().reserved_bytes, Some(20 * MIB));
    // At level blocks a block inside is evidence enough.
    let mut sim = Sim::new(Mode::Reports);
    sim.driver_calls = true;
    let mut ledger = attached(Level::Blocks, true, sim.time);
    sim.alloc(1, 0, 5 * MIB);
    sim.alloc(1, 0, 5 * MIB);
    sim.feed(&mut ledger);
    let seen = device(&ledger, 1);
    assert_eq!(seen.driver.bytes, 20 * MIB);
    assert_eq!(seen.direct.count, 0);
    assert_eq!(seen.alloc_count, 2);
    assert_eq!(find_device(&ledger, None), None);
}

#[test]
fn physical_memory_ends_with_its_last_handle_and_mapping() {
    let mut c = plain();
    c.handle(CallOp::Create, 1, 100);
    c.map(0x1000, 100, 1);
    c.map(0x2000, 100, 1);
    c.handle(CallOp::Release, 1, 0);
    assert_eq!(
        c.device().physical,
        DriverBytes {
            count: 1,
            bytes: 100
        }
    );
    // The number is given anew while the old memory is mapped.
    c.handle(CallOp::Create, 1, 30);
    assert_eq!(
        c.device().physical,
        DriverBytes {
            count: 2,
            bytes: 130
        }
    );
    c.send(CallOp::Retain, |call| {
        call.ptr = 0x2010;
        call.handle = 55;
    });
    c.at(CallOp::Unmap, 0x1000, 0x1000 + 100);
    assert_eq!(c.device().physical.count, 2, "still named 55");
    c.handle(CallOp::Release, 55, 0);
    assert_eq!(
        c.device().physical,
        DriverBytes {
            count: 1,
            bytes: 30
        }
    );
    c.handle(CallOp::Release, 1, 0);
    assert_eq!(c.device().physical.count, 0);
    assert_eq!(c.device().free_count, 2);
    // Things from before the attach.
    c.handle(CallOp::Release, 99, 0);
    c.at(CallOp::Unmap, 0x7000, 100);
    assert!(has_note(&stats(&c.ledger).coverage, "vmm_unknown"));
    c.at(CallOp::Reserve, 0x100_0000, 1 << 30);
    assert_eq!(stats(&c.ledger).address_reserved.bytes, 1 << 30);
    c.at(CallOp::ReserveFree, 0x100_0000, 0);
    assert_eq!(stats(&c.ledger).address_reserved.count, 0);
    assert_eq!(c.ledger.kept(P).unwrap().allocations, 0);
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
    assert_eq!(
        seen.physical,
        DriverBytes {
            count: 3,
            bytes: 60 * MIB
        }
    );
    assert_eq!(seen.direct, DriverBytes::default());
    assert_eq!(seen.segments, Some(1));
    assert_eq!(seen.reserved_bytes, Some(60 * MIB));
    assert_eq!(find_device(&ledger, None), None);
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

    /// Only what a driver would allow: handles are given anew only when no name holds them.
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
            let seen = find_device(&c.ledger, Some(0)).map_or(DriverBytes::default(), |d| d.physical);
            prop_assert_eq!(seen, DriverBytes { count: alive.len() as u64, bytes: alive.iter().sum() });
        }
    }

    /// Allocations on any thread and device against a map.
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
