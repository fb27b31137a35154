//! Runtime and driver calls: which of them change the sums, and in which sum each allocation is counted.

use crate::common::calls::plain;
use crate::common::*;
use memscope_ledger::event::*;
use memscope_ledger::report::*;
use memscope_ledger::{Answer, inexact};
use memscope_proto::v1;
use std::sync::Arc;

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
        vec![v1::Failure {
            function: "cudaMalloc".into(),
            status: 2,
            count: 2,
            bytes: (1 << 40) + 5
        }]
    );
    c.at(CallOp::Alloc, 0x1000, 4096);
    // A failed free frees nothing.
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
    assert_eq!(seen.driver, bytes(2, 12288));
    assert_eq!((seen.alloc_count, seen.free_count), (3, 0));
    // This allocation overlaps both of the others.
    c.at(CallOp::Alloc, 0x2800, 0x6000);
    assert_eq!(c.device().driver, bytes(1, 0x6000));
    assert!(has_note(
        &stats(&c.ledger).coverage,
        "totals_inexact_after_loss"
    ));
}

/// Thread B frees what A allocated. Before B's free returns, C gets the same address, and C's call is recorded first.
#[test]
fn a_free_that_is_told_of_late_does_not_take_the_next_owners_block() {
    let mut calls = plain();
    calls.at(CallOp::Alloc, 0x1000, 100);
    calls.at(CallOp::Alloc, 0x1000, 300);
    calls.send(CallOp::Free, |free| {
        free.ptr = 0x1000;
        // The free was entered before the second allocation returned.
        free.duration_ns = 1500;
    });
    let device = calls.device();
    assert_eq!(
        (device.driver.unwrap().count, device.driver.unwrap().bytes),
        (1, 300)
    );
    assert_eq!((device.free_count, device.orphan_free_count), (1, 0));
    calls.at(CallOp::Free, 0x1000, 0);
    let device = calls.device();
    assert_eq!(
        (device.driver.unwrap().count, device.driver.unwrap().bytes),
        (0, 0)
    );
    assert_eq!((device.free_count, device.orphan_free_count), (2, 0));
    let report = stats(&calls.ledger);
    assert!(
        !report
            .coverage
            .iter()
            .any(|note| note.code == "totals_inexact_after_loss"),
        "{:?}",
        report.coverage
    );
}

/// The same of memory that is kept by address or handle elsewhere.
#[test]
fn a_late_free_of_host_memory_does_not_take_the_next_owners() {
    let host = |calls: &crate::common::calls::Calls| stats(&calls.ledger).host;
    for free in [CallOp::HostFree, CallOp::Free] {
        let mut calls = plain();
        calls.at(CallOp::HostAlloc, 0x1000, 100);
        calls.at(CallOp::HostAlloc, 0x1000, 300);
        calls.send(free, |free| {
            free.ptr = 0x1000;
            // The free was entered before the second allocation returned.
            free.duration_ns = 1500;
        });
        assert_eq!(host(&calls), bytes(1, 300), "{free:?}");
        assert_eq!(find_device(&calls.ledger, Some(0)), None, "no orphan");
        calls.at(free, 0x1000, 0);
        assert_eq!(host(&calls), bytes(0, 0), "{free:?}");
    }
}

/// The device's memory goes all the same where it is the host that gets the address.
#[test]
fn a_late_free_of_device_memory_does_not_take_the_hosts() {
    let mut calls = plain();
    calls.at(CallOp::Alloc, 0x1000, 100);
    calls.at(CallOp::HostAlloc, 0x1000, 300);
    calls.send(CallOp::Free, |free| {
        free.ptr = 0x1000;
        free.duration_ns = 1500;
    });
    assert_eq!(stats(&calls.ledger).host, bytes(1, 300));
    assert_eq!(calls.device().driver, bytes(0, 0));
}

#[test]
fn a_late_release_does_not_take_the_next_owners_memory() {
    let late = |calls: &mut crate::common::calls::Calls| {
        calls.send(CallOp::Release, |release| {
            release.handle = 9;
            release.duration_ns = 1500;
        });
    };
    let mut calls = plain();
    calls.handle(CallOp::Create, 9, 100);
    calls.handle(CallOp::Create, 9, 300);
    late(&mut calls);
    assert_eq!(calls.device().physical, bytes(1, 300));
    calls.handle(CallOp::Release, 9, 0);
    assert_eq!(calls.device().physical, bytes(0, 0));
    assert_eq!(
        (calls.device().alloc_count, calls.device().free_count),
        (2, 2)
    );
    assert!(!has_note(&stats(&calls.ledger).coverage, "vmm_unknown"));
    // Imports have handles, too.
    calls.handle(CallOp::Import, 9, 100);
    calls.handle(CallOp::Import, 9, 300);
    late(&mut calls);
    assert_eq!(calls.device().imported, bytes(1, 300));
    calls.handle(CallOp::Release, 9, 0);
    assert_eq!(calls.device().imported, bytes(0, 0));
    // And Ascend's driver has handles of the host's memory.
    let of_host = |call: &mut Call| {
        call.vendor = Vendor::Ascend;
        call.handle = 9;
        call.size = 100;
        call.hal = Some(HalFacts {
            space: HalSpace::Host,
            ..HalFacts::default()
        });
    };
    calls.send(CallOp::Create, of_host);
    calls.send(CallOp::Create, of_host);
    calls.send(CallOp::Release, |release| {
        of_host(release);
        release.duration_ns = 1500;
    });
    assert_eq!(stats(&calls.ledger).host, bytes(1, 100));
    calls.send(CallOp::Release, of_host);
    assert_eq!(stats(&calls.ledger).host, bytes(0, 0));
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
    assert_eq!(report.host, bytes(2, 800));
    assert_eq!(report.host_registered, bytes(1, 300));
    let seen = c.device();
    assert_eq!(seen.driver.unwrap().bytes, 6000);
    assert_eq!(seen.managed, bytes(2, 2000));
    assert_eq!(seen.async_pool, bytes(2, 2000));
    assert_eq!(seen.direct, seen.driver);
    for (i, free) in [CallOp::AsyncFree, CallOp::Free, CallOp::Free]
        .iter()
        .cycle()
        .take(6)
        .enumerate()
    {
        // The thread has another current device; the address decides.
        c.send(*free, |call| {
            call.ptr = 0x10000 * (i as u64 + 1);
            call.device = Some(3);
        });
    }
    c.at(CallOp::Free, 0xff0000, 0);
    c.at(CallOp::HostUnregister, 0xee0000, 0);
    let report = stats(&c.ledger);
    assert_eq!(report.host.unwrap().count, 0);
    let seen = c.device();
    assert_eq!(
        (
            seen.driver.unwrap().count,
            seen.driver.unwrap().bytes,
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
    assert_eq!(device(&c.ledger, 1).driver.unwrap().count, 0);
    assert_eq!(c.device().driver.unwrap().bytes, 100);
    assert_eq!(
        find_device(&c.ledger, None).unwrap().driver.unwrap().bytes,
        400
    );
    c.send(CallOp::Reset, |call| call.device = None);
    assert_eq!(
        find_device(&c.ledger, None).unwrap().driver.unwrap().bytes,
        0
    );
    assert_eq!(c.device().driver.unwrap().bytes, 100);
    assert!(!has_note(&stats(&c.ledger).coverage, "device_unknown"));
}

/// What NVIDIA documents for `cuCtxDestroy`, `cuDevicePrimaryCtxReset` and `cudaDeviceReset`.
#[test]
fn what_belongs_to_a_context_goes_with_it() {
    const OWN: u64 = 0x7f00_0000_1230;
    let mut c = plain();
    // In the primary context of device 0, and in one that the program made there.
    for (context, at) in [(0, 0x10_0000), (OWN | 1, 0x20_0000)] {
        let kinds = [
            CallOp::Alloc,
            CallOp::ManagedAlloc,
            CallOp::AsyncAlloc,
            CallOp::HostAlloc,
            CallOp::HostRegister,
            CallOp::IpcOpen,
        ];
        for (number, kind) in (0..).zip(kinds) {
            c.send(kind, |call| {
                call.ptr = at + number * 0x1000;
                call.size = if kind == CallOp::IpcOpen { 0 } else { 256 };
                call.device = Some(0);
                call.context = context;
            });
        }
        c.send(CallOp::ArrayAlloc, |call| {
            call.handle = at + 0x9000;
            call.device = Some(0);
            call.context = context;
        });
        c.handle(CallOp::Create, at + 0xa000, 4096);
    }
    let held = |c: &crate::common::calls::Calls| {
        let report = stats(&c.ledger);
        let device = c.device();
        let arrays = report
            .coverage
            .iter()
            .find(|note| note.code == "array_alloc");
        (
            device.driver.unwrap().count
                - device.async_pool.unwrap().count
                - device.physical.unwrap().count,
            device.async_pool.unwrap().count,
            device.physical.unwrap().count,
            device.imported.map_or(0, |imported| imported.count),
            report.host.unwrap().count,
            arrays.map(|note| note.text.clone()),
        )
    };
    let first = held(&c);
    assert_eq!(
        (first.0, first.1, first.2, first.3, first.4),
        (4, 2, 2, 2, 4)
    );
    // The runtime's reset in a context that the program made is none.
    c.send(CallOp::Reset, |call| {
        call.device = Some(0);
        call.context = OWN | 1;
    });
    assert_eq!(held(&c), first);
    c.send(CallOp::Reset, |call| {
        call.layer = Layer::Driver;
        call.device = Some(0);
        call.handle = OWN;
    });
    let second = held(&c);
    assert_eq!(
        (second.0, second.1, second.2, second.3, second.4),
        (2, 2, 2, 1, 2)
    );
    assert_ne!(second.5, first.5, "the array went");
    c.send(CallOp::Reset, |call| call.device = Some(0));
    let third = held(&c);
    assert_eq!(
        (third.0, third.1, third.2, third.3, third.4),
        (0, 2, 2, 0, 0)
    );
    assert_eq!(c.device().orphan_free_count, 0);
    // HIP's reset takes all.
    c.send(CallOp::Reset, |call| {
        call.vendor = Vendor::Hip;
        call.device = Some(0);
    });
    assert_eq!(c.device().driver.unwrap().count, 0);
}

/// What `cudaMemPoolImportPointer` gave is freed with `cudaFreeAsync`.
#[test]
fn an_import_of_a_pool_is_freed_as_its_memory_is() {
    let mut c = plain();
    c.at(CallOp::IpcOpen, 0x1000, 0);
    assert_eq!(c.device().imported.unwrap().count, 1);
    c.at(CallOp::AsyncFree, 0x1000, 0);
    assert_eq!(
        find_device(&c.ledger, Some(0)),
        None,
        "nothing of it is left"
    );
}

/// Memory that was asked for at a location of the host is on no device.
#[test]
fn physical_and_pooled_memory_of_the_host_is_on_no_device() {
    let mut c = plain();
    c.send(CallOp::Create, |call| {
        call.handle = 9;
        call.size = 4096;
        call.of_host = true;
    });
    c.send(CallOp::AsyncAlloc, |call| {
        call.ptr = 0x9000;
        call.size = 512;
        call.of_host = true;
    });
    let host = |c: &crate::common::calls::Calls| {
        let report = stats(&c.ledger);
        assert_eq!(report.devices, vec![]);
        let host = report.host.unwrap();
        (host.count, host.bytes)
    };
    assert_eq!(host(&c), (2, 4608));
    c.map(0x20_0000, 4096, 9);
    c.handle(CallOp::Release, 9, 0);
    assert_eq!(host(&c), (2, 4608), "it is still mapped");
    c.at(CallOp::AsyncFree, 0x9000, 0);
    assert_eq!(host(&c), (1, 4096));
    c.at(CallOp::Unmap, 0x20_0000, 4096);
    assert_eq!(host(&c), (0, 0));
}

#[test]
fn imports_and_arrays_are_in_no_sum() {
    let mut c = plain();
    c.at(CallOp::IpcOpen, 0x1000, 0);
    c.at(CallOp::IpcOpen, 0x1000, 0);
    c.handle(CallOp::Import, 9, 4096);
    c.handle(CallOp::ArrayAlloc, 0xa, 0);
    let seen = c.device();
    assert_eq!(seen.imported, bytes(2, 4096));
    assert_eq!(seen.allocated_bytes, Some(0));
    let notes = stats(&c.ledger).coverage;
    assert!(has_note(&notes, "ipc_import") && has_note(&notes, "array_alloc"));
    c.at(CallOp::IpcClose, 0x1000, 0);
    c.at(CallOp::IpcClose, 0x1000, 0);
    c.map(0x5000, 4096, 9);
    c.handle(CallOp::Release, 9, 0);
    assert_eq!(c.device().imported.unwrap().count, 1, "still mapped");
    c.at(CallOp::Unmap, 0x5000, 4096);
    assert_eq!(
        find_device(&c.ledger, Some(0)),
        None,
        "nothing of it is left"
    );
}

/// CUDA's import does not tell a size. Where the memory is mapped, the mapping does.
#[test]
fn an_import_is_as_large_as_its_mapping() {
    let mut c = plain();
    c.handle(CallOp::Import, 9, 0);
    assert_eq!(c.device().imported, bytes(1, 0));
    c.map(0x10_0000, 4096, 9);
    c.map(0x20_0000, 4096, 9);
    assert_eq!(c.device().imported, bytes(1, 4096));
    assert_eq!(c.device().allocated_bytes, Some(0));
    c.handle(CallOp::Release, 9, 0);
    c.at(CallOp::Unmap, 0x10_0000, 4096);
    assert_eq!(c.device().imported, bytes(1, 4096), "still mapped");
    c.at(CallOp::Unmap, 0x20_0000, 4096);
    assert_eq!(
        find_device(&c.ledger, Some(0)),
        None,
        "nothing of it is left"
    );
}

/// What NCCL and page-locked buffers took before the attach is in no number, and the pool's own totals have all of the pool.
#[test]
fn beside_a_pool_that_was_attached_late_numbers_are_lower_bounds() {
    for (from_start, level) in [
        (true, Level::Trace),
        (false, Level::Trace),
        (false, Level::Blocks),
        (false, Level::Read),
    ] {
        let mut sim = Sim::new(Mode::Calibrated);
        let mut ledger = attached(level, from_start, sim.time);
        sim.alloc(0, 0, MIB);
        sim.feed(&mut ledger);
        let notes = stats(&ledger).coverage;
        let code = "direct_baseline_unknown";
        let is_late = !from_start && level != Level::Read;
        assert_eq!(has_note(&notes, code), is_late, "{from_start} {level:?}");
        if !is_late {
            continue;
        }
        let only: Vec<_> = notes.into_iter().filter(|note| note.code == code).collect();
        assert!(only[0].lower_bound);
        assert_eq!(inexact(Answer::Stats, &only).len(), 1);
        for of_pool in [
            Answer::Leaks,
            Answer::Fluctuation,
            Answer::Steps,
            Answer::Picture,
            Answer::Stacks,
            Answer::Course,
        ] {
            assert!(inexact(of_pool, &only).is_empty(), "{of_pool:?}");
        }
        let answer = ledger.ask(&[P], as_of(sim.time), &v1::DevicesRequest {});
        let one = answer.unwrap().devices.remove(0);
        let holder = &one.holders[0];
        assert!(one.at_least && holder.at_least);
        let handed_out = (holder.allocated_bytes, holder.allocated_at_least);
        assert_eq!(handed_out, (Some(sim.allocated(0)), false));
        assert_eq!(one.held_bytes, Some(sim.reserved(0)));
    }
}

#[test]
fn memory_info_nested_and_totals() {
    let mut c = plain();
    c.at(CallOp::Alloc, 0x1000, 100);
    c.ledger.apply(&event(
        P,
        5,
        Body::DeviceTotal(DeviceTotal {
            total_bytes: 80,
            reserved_bytes: Some(7),
            ..DeviceTotal::default()
        }),
    ));
    assert_eq!(c.device().total_bytes, Some(80));
    assert_eq!(c.device().driver_reserved_bytes, Some(7));
    c.send(CallOp::MemInfo, |call| {
        call.size = 90;
        call.extra = 70;
        call.nested = 3;
    });
    let seen = c.device();
    assert_eq!(
        (seen.total_bytes, seen.free_bytes, seen.free_bytes_boot_ns),
        (Some(90), Some(70), Some(c.time))
    );
    // The runtime's size is without what the driver keeps.
    assert_eq!(seen.driver_reserved_bytes, None);
    assert_eq!(stats(&c.ledger).nested_calls, 3);
    // A report of NVML alone does not make a row.
    c.ledger.apply(&event(
        P,
        5,
        Body::DeviceTotal(DeviceTotal {
            device: 5,
            total_bytes: 80,
            free_bytes: Some(40),
            ..DeviceTotal::default()
        }),
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
        // Of a pool that cannot be seen, all that is known is what the driver gave.
        assert_eq!(seen.source(), v1::Source::Driver, "{backend:?}");
        let course = ledger.ask(&[P], as_of(3), &v1::FluctuationRequest::default());
        let course = &course.unwrap().devices[0];
        assert_eq!(course.source(), seen.source(), "{backend:?}");
        assert_eq!(seen.allocated_bytes, allocated, "{backend:?}");
        assert_eq!(seen.baseline_bytes, baseline, "{backend:?}");
        let notes = stats(&ledger).coverage;
        assert_eq!(
            has_note(&notes, "driver_baseline_unknown"),
            source == Source::Driver && !from_start
        );
        assert_eq!(
            has_note(&notes, "direct_baseline_unknown"),
            source == Source::Pool && !from_start
        );
        assert_eq!(has_note(&notes, "level_segments"), source == Source::Pool);
        // Who has the 7 bytes, the pool or the program itself, cannot be seen.
        assert_eq!(
            seen.direct,
            bytes(1, 7).filter(|_| source == Source::Driver)
        );
        if source == Source::Pool {
            assert_eq!(seen.reserved_bytes, from_start.then_some(7));
            assert_eq!(seen.peak_reserved_bytes, from_start.then_some(7));
        }
    }
}

/// At level `segments` memory on an unknown device may be the pool's, and nobody sees which blocks it has.
#[test]
fn what_a_hidden_pool_has_on_an_unknown_device() {
    let mut ledger = attached_as(Level::Segments, true, 1, Backend::Native);
    let Body::Call(mut known) = call("cudaMalloc", CallOp::Alloc, 0x1000_0000, 2 * MIB) else {
        unreachable!()
    };
    known.device = Some(0);
    ledger.apply(&event(P, 2, Body::Call(known)));
    let unknown = call("cudaMalloc", CallOp::Alloc, 0x2000_0000, 20 * MIB);
    ledger.apply(&event(P, 3, unknown));
    let told = stats(&ledger);
    let seen = find_device(&ledger, None).unwrap();
    assert!(told.hides_pool(), "{seen:?}");
    assert_eq!(seen.driver, bytes(1, 20 * MIB));
    assert_eq!((seen.direct, seen.allocated_bytes), (None, None));
    assert_eq!((seen.peak_allocated_bytes, seen.live_blocks), (None, 0));
    assert_eq!(seen.reserved_bytes, Some(20 * MIB));
    assert_eq!(seen.peak_reserved_bytes, Some(20 * MIB));
    // Nothing of it is in another row, so the sum has all rows.
    assert_eq!(ledger.summary(P).unwrap().reserved_bytes, Some(22 * MIB));
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
    assert_eq!(seen.driver, bytes(1, 20 * MIB));
    assert_eq!(seen.direct, bytes(0, 0));
    let unknown = find_device(&ledger, None).unwrap();
    assert_eq!(unknown.direct, bytes(1, 777));
    assert_eq!(unknown.source(), v1::Source::Driver);
    // The row of the unknown device does not make the sum of the pools unknown.
    assert_eq!(ledger.summary(P).unwrap().allocated_bytes, Some(5 * MIB));
    assert_eq!(ledger.summary(P).unwrap().reserved_bytes, Some(20 * MIB));
    // At level `blocks` a block inside the segment is enough evidence.
    let mut sim = Sim::new(Mode::Reports);
    sim.driver_calls = true;
    let mut ledger = attached(Level::Blocks, true, sim.time);
    sim.alloc(1, 0, 5 * MIB);
    sim.alloc(1, 0, 5 * MIB);
    sim.feed(&mut ledger);
    let seen = device(&ledger, 1);
    assert_eq!(seen.driver.unwrap().bytes, 20 * MIB);
    assert_eq!(seen.direct.unwrap().count, 0);
    assert_eq!(seen.alloc_count, 2);
    assert_eq!(find_device(&ledger, None), None);
}

/// What turned out to be the pool's was never on the unknown device.
#[test]
fn nothing_is_left_of_the_pools_memory_on_an_unknown_device() {
    let mut sim = Sim::new(Mode::Calibrated);
    sim.driver_calls = true;
    let mut ledger = attached(Level::Trace, true, sim.time);
    sim.alloc(1, 0, 5 * MIB);
    sim.alloc(1, 0, 100);
    // A free of memory that nobody knows: only it is left there to be shown.
    sim.emit(call("cudaFree", CallOp::Free, 0x1000, 0));
    sim.feed(&mut ledger);
    let unknown = find_device(&ledger, None).unwrap();
    assert_eq!((unknown.orphan_free_count, unknown.alloc_count), (1, 0));
    assert_eq!(unknown.peak_allocated_bytes, Some(0));
    assert_eq!(unknown.peak_reserved_bytes, Some(0));
    assert_eq!(unknown.sizes.unwrap().count, 0);
    let courses = ledger.coarse(P, (0, sim.time + SECOND), 10, sim.time + SECOND);
    let mut courses = courses.iter().filter(|course| course.device.is_none());
    assert!(courses.all(|course| {
        let mut intervals = course.intervals.iter();
        intervals.all(|interval| interval.max_allocated_bytes == 0)
    }));
}

/// A segment from before the attach, of which the call that frees it tells no device.
#[test]
fn a_segment_that_goes_was_on_its_pools_device() {
    let alone = |mode, level, read: bool| {
        let mut sim = Sim::new(mode);
        (sim.attached, sim.driver_calls) = (false, true);
        let mut ledger = attached(level, false, sim.time);
        let block = sim.alloc(1, 0, 40 * MIB);
        sim.free(block, false);
        sim.time += MS;
        sim.attached = true;
        if read {
            for part in sim.reading(1, 30) {
                ledger.apply(&event(P, sim.time, Body::Held(Box::new(part))));
            }
        }
        sim.time += MS;
        sim.empty_cache(1);
        sim.feed(&mut ledger);
        ledger
    };
    for (mode, level, read) in [
        (Mode::Calibrated, Level::Trace, false),
        (Mode::Calibrated, Level::Trace, true),
        (Mode::Reports, Level::Blocks, true),
    ] {
        let ledger = alone(mode, level, read);
        let devices = stats(&ledger).devices;
        let ordinals: Vec<_> = devices.iter().map(|device| device.device).collect();
        assert_eq!(ordinals, [Some(1)], "{mode:?} {read}");
    }
    // Where nothing tells whose it was, it is not known where it was.
    let ledger = alone(Mode::Reports, Level::Blocks, false);
    assert!(find_device(&ledger, None).is_some());
}

/// How much is free on a device that nobody knows says nothing: each call may be about another one.
#[test]
fn what_is_free_somewhere_is_not_told() {
    let mut c = plain();
    let somewhere = |c: &mut crate::common::calls::Calls, op, ptr, size| {
        c.send(op, |call| {
            (call.device, call.ptr, call.size, call.extra) = (None, ptr, size, 70);
        });
    };
    somewhere(&mut c, CallOp::Alloc, 0x1000, 10);
    somewhere(&mut c, CallOp::MemInfo, 0, 90);
    let seen = find_device(&c.ledger, None).unwrap();
    assert_eq!((seen.total_bytes, seen.free_bytes), (None, None));
}

/// No event of the pool ever comes at this level.
#[test]
fn notes_of_a_hidden_pool_promise_no_event() {
    let mut ledger = attached_as(Level::Segments, false, 1, Backend::Native);
    ledger.apply(&event(P, 2, call("cudaMalloc", CallOp::Alloc, 0x1000, 7)));
    let notes = stats(&ledger).coverage;
    for code in ["attached_late", "totals_unknown"] {
        let note = notes.iter().find(|note| note.code == code).unwrap();
        assert!(note.text.contains("at level segments"), "{}", note.text);
        assert!(!note.text.contains("next event"), "{}", note.text);
    }
    assert!(has_note(&notes, "oom_unseen"));
    assert_eq!(
        ledger.hidden(P),
        Hidden {
            ooms: true,
            allocated: true,
            reserved: true
        }
    );
    let from_start = attached_as(Level::Segments, true, 1, Backend::Native);
    assert!(!from_start.hidden(P).reserved);
    let read = attached_as(Level::Read, false, 1, Backend::Native);
    assert_eq!(
        read.hidden(P),
        Hidden {
            ooms: true,
            ..Hidden::default()
        }
    );
    for plain in [
        attached_as(Level::Segments, false, 1, Backend::Unknown),
        attached_as(Level::Trace, false, 1, Backend::Native),
    ] {
        assert_eq!(plain.hidden(P), Hidden::default());
    }
}

/// CUDA counts how often memory of another process was opened, and it stays until it is closed as often.
#[test]
fn an_import_that_is_opened_twice_is_closed_twice() {
    let mut c = plain();
    let imported = |c: &crate::common::calls::Calls| {
        let device = find_device(&c.ledger, Some(0));
        device.map_or(0, |device| device.imported.unwrap().count)
    };
    let open = |c: &mut crate::common::calls::Calls| c.at(CallOp::IpcOpen, 0x5000, 0);
    open(&mut c);
    open(&mut c);
    c.at(CallOp::IpcClose, 0x5000, 0);
    assert_eq!(imported(&c), 1);
    c.at(CallOp::IpcClose, 0x5000, 0);
    assert_eq!(imported(&c), 0);
    // A reset closes it however often it was opened.
    open(&mut c);
    open(&mut c);
    c.send(CallOp::Reset, |_| {});
    assert_eq!(imported(&c), 0);
    open(&mut c);
    c.at(CallOp::IpcClose, 0x5000, 0);
    assert_eq!(imported(&c), 0);
}
