//! Ascend's driver: where memory lies, which component asked for it, and what calls do not say.

use crate::common::calls::{Calls, plain};
use crate::common::*;
use memscope_ledger::event::*;
use memscope_proto::v1;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn asked(space: HalSpace, page: HalPage, module: u8) -> HalFacts {
    HalFacts {
        space,
        page,
        module: HalModule(module),
        ..HalFacts::default()
    }
}

fn send(c: &mut Calls, op: CallOp, at: u64, size: u64, hal: Option<HalFacts>) {
    c.send(op, |call| {
        call.vendor = Vendor::Ascend;
        call.function = Arc::from("aclrt");
        match op {
            CallOp::Create | CallOp::Release => call.handle = at,
            _ => call.ptr = at,
        }
        call.size = size;
        call.hal = hal;
        if hal.is_some_and(|hal| hal.space == HalSpace::Host) {
            call.device = None;
        }
    });
}

#[test]
fn one_function_for_device_and_host() {
    let mut c = plain();
    let hccl = asked(HalSpace::Device, HalPage::Huge, 3);
    let aicpu = asked(HalSpace::Host, HalPage::Normal, 36);
    send(&mut c, CallOp::Alloc, 0x1000, 20 << 20, Some(hccl));
    send(&mut c, CallOp::Alloc, 0x9000_0000, 4096, Some(aicpu));
    send(&mut c, CallOp::Create, 77, 4096, Some(aicpu));
    let seen = c.device();
    assert_eq!(seen.device_kind.as_deref(), Some("npu"));
    assert_eq!(seen.driver.unwrap().bytes, 20 << 20);
    let component = &seen.components[0];
    assert_eq!((component.name.as_str(), component.count), ("HCCL", 1));
    assert_eq!(component.huge_page_bytes, 20 << 20);
    let report = stats(&c.ledger);
    assert_eq!(report.host.unwrap().bytes, 8192);
    assert_eq!(report.host_components[0].name, "AICPU");
    assert_eq!(report.host_components[0].bytes, 8192);
    // The same function frees device and host memory.
    send(&mut c, CallOp::Free, 0x9000_0000, 0, None);
    send(&mut c, CallOp::Release, 77, 0, None);
    send(&mut c, CallOp::Free, 0x1000, 0, None);
    let report = stats(&c.ledger);
    assert_eq!(report.host.unwrap().count, 0);
    assert_eq!(report.host_components, vec![]);
    assert_eq!(c.device().components, vec![]);
    assert_eq!(c.device().orphan_free_count, 0);
}

#[test]
fn an_unmap_means_the_mapping_that_begins_there() {
    let mut c = plain();
    let own = asked(HalSpace::Device, HalPage::Huge, 33);
    send(&mut c, CallOp::Create, 1, 100, Some(own));
    c.map(0x1000, 100, 1);
    c.map(0x2000, 100, 1);
    send(&mut c, CallOp::Release, 1, 0, None);
    send(&mut c, CallOp::Unmap, 0x1000, 0, None);
    assert_eq!(c.device().physical.unwrap().count, 1);
    assert_eq!(c.device().components[0].bytes, 100);
    // No mapping begins at this address, so nothing is unmapped.
    send(&mut c, CallOp::Unmap, 0x2010, 0, None);
    assert_eq!(c.device().physical.unwrap().count, 1);
    send(&mut c, CallOp::Unmap, 0x2000, 0, None);
    assert_eq!(c.device().physical.unwrap().count, 0);
    assert_eq!(c.device().components, vec![]);
}

#[test]
fn memory_is_registered_for_more_than_page_locking() {
    let mut c = plain();
    for (at, flags) in [(0x1000, 0x1000_0000), (0x8000, 2), (0x10000, 0x1000_0002)] {
        c.send(CallOp::HostRegister, |call| {
            call.vendor = Vendor::Ascend;
            call.function = Arc::from("aclrtHostRegisterV2");
            (call.ptr, call.size, call.extra) = (at, 4096, flags);
        });
    }
    c.send(CallOp::HostRegister, |call| {
        call.vendor = Vendor::Ascend;
        call.function = Arc::from("aclrtHostRegister");
        (call.ptr, call.size) = (0x20000, 4096);
    });
    assert_eq!(stats(&c.ledger).host_registered.unwrap().count, 3);
    c.at(CallOp::HostUnregister, 0x8000, 0);
    assert_eq!(stats(&c.ledger).host_registered.unwrap().count, 3);
    c.at(CallOp::HostUnregister, 0x1000, 0);
    assert_eq!(stats(&c.ledger).host_registered.unwrap().count, 2);
}

#[test]
fn only_the_whole_of_a_device_is_its_total() {
    let mut c = plain();
    send(&mut c, CallOp::Alloc, 0x1000, 1, None);
    for (attribute, total) in [(1, 64 << 30), (4, 32 << 30), (10, 1 << 30)] {
        c.send(CallOp::MemInfo, |call| {
            call.vendor = Vendor::Ascend;
            (call.handle, call.size, call.extra) = (attribute, total, total);
        });
    }
    assert_eq!(c.device().total_bytes, Some(64 << 30));
}

#[test]
fn what_the_pool_lives_in_is_no_components() {
    let mut ledger = attached(Level::Trace, true, SECOND);
    let hal = asked(HalSpace::Device, HalPage::Huge, 33);
    for at in [0x1000_0000, 0x5000_0000] {
        let Body::Call(mut alloc) = call("aclrtMallocAlign32", CallOp::Alloc, at, 20 * MIB) else {
            unreachable!()
        };
        alloc.vendor = Vendor::Ascend;
        alloc.hal = Some(hal);
        alloc.device = Some(0);
        ledger.apply(&event(P, 2 * SECOND, Body::Call(alloc)));
    }
    assert_eq!(device(&ledger, 0).components[0].bytes, 40 * MIB);
    ledger.apply(&event(
        P,
        3 * SECOND,
        Body::Report(PoolReport {
            device: 0,
            ptr: 0x1000_0000,
            size: 512,
            total_allocated: 512,
            total_reserved: 20 * MIB,
        }),
    ));
    let seen = device(&ledger, 0);
    assert_eq!(seen.direct.unwrap().bytes, 20 * MIB);
    assert_eq!(seen.components[0].bytes, 20 * MIB);
}

#[test]
fn whose_devices_is_known_from_the_libraries() {
    for (libraries, wanted) in [
        // A PyTorch that was built for CUDA, with torch_npu.
        (
            &["/v/libcudart.so.13", "/opt/cann/lib64/libascendcl.so.1"][..],
            Some("npu"),
        ),
        (&["/v/libc10.so", "/v/libcuda.so.1"], Some("cuda")),
        (&["/v/libc10.so"], None),
    ] {
        let mut ledger = attached(Level::Blocks, true, SECOND);
        let placement = Placement {
            sites: 3,
            libraries: libraries.iter().map(|path| (*path).to_owned()).collect(),
            ..Placement::default()
        };
        ledger.apply(&event(P, 2 * SECOND, Body::Placed(Box::new(placement))));
        let report = Body::Report(PoolReport {
            device: 0,
            ptr: 0x1000,
            size: 512,
            total_allocated: 512,
            total_reserved: 1024,
        });
        ledger.apply(&event(P, 3 * SECOND, report));
        assert_eq!(
            device(&ledger, 0).device_kind.as_deref(),
            wanted,
            "{libraries:?}"
        );
    }
}

/// PyTorch's report of blocks has a function beside it that tells of failed allocations, torch_npu's has none.
#[test]
fn failed_allocations_that_nothing_tells_of_are_not_known() {
    for (ways, hidden) in [
        (
            &["torch_npu::profiler::reportMemoryDataToNpuProfiler"][..],
            true,
        ),
        (
            &["NPUCachingAllocator::DeviceCachingAllocator::record_trace"],
            false,
        ),
        (
            &[
                "c10::reportMemoryUsageToProfiler",
                "c10::reportOutOfMemoryToProfiler",
            ],
            false,
        ),
        (&[], false),
    ] {
        let mut ledger = attached(Level::Blocks, true, SECOND);
        let placement = Placement {
            sites: 3,
            pool_seen: true,
            ways: ways.iter().map(|way| (*way).to_owned()).collect(),
            ..Placement::default()
        };
        ledger.apply(&event(P, 2 * SECOND, Body::Placed(Box::new(placement))));
        let stats = stats(&ledger);
        assert_eq!(stats.hides_ooms(), hidden, "{ways:?}");
        assert_eq!(ledger.hidden(P).ooms, hidden, "{ways:?}");
        let codes = stats.coverage.iter().map(|note| note.code.as_str());
        assert_eq!(
            codes.filter(|code| *code == "oom_unseen").count(),
            usize::from(hidden)
        );
    }
}

/// One step of a program: the operation, with address, size, kind of memory, page size and component where it has them.
#[derive(Clone, Debug)]
enum Step {
    Alloc(u64, u64, u8, u8, u8),
    Free(u64),
    Create(u64, u64, u8, u8),
    Release(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..12u64, 1..5000u64, 0..4u8, 0..3u8, 0..6u8)
            .prop_map(|(at, size, space, page, module)| Step::Alloc(at, size, space, page, module)),
        (0..12u64).prop_map(Step::Free),
        (0..6u64, 1..5000u64, 0..3u8, 0..6u8)
            .prop_map(|(at, size, page, module)| Step::Create(at, size, page, module)),
        (0..6u64).prop_map(Step::Release),
    ]
}

fn page(number: u8) -> HalPage {
    [HalPage::Normal, HalPage::Huge, HalPage::Giant][usize::from(number)]
}

proptest! {
    /// Sums by component, on the device and on the host, are those of a plain list of live allocations.
    #[test]
    fn components_add_up(steps in proptest::collection::vec(step(), 1..120)) {
        let mut c = plain();
        // Address or handle → (host, size, facts).
        let mut live: BTreeMap<(bool, u64), (bool, u64, HalFacts)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Alloc(at, size, space, page_number, module) => {
                    let space = [HalSpace::Svm, HalSpace::Device, HalSpace::Host, HalSpace::Dvpp][usize::from(space)];
                    let hal = asked(space, page(page_number), module);
                    // Allocations never overlap; addresses of device and host differ.
                    let host = space == HalSpace::Host;
                    let address = (at + 1) * 0x10000 + if host { 1 << 40 } else { 0 };
                    send(&mut c, CallOp::Alloc, address, size, Some(hal));
                    live.insert((false, address), (host, size, hal));
                }
                Step::Free(at) => {
                    for address in [(at + 1) * 0x10000, (at + 1) * 0x10000 + (1 << 40)] {
                        send(&mut c, CallOp::Free, address, 0, None);
                        live.remove(&(false, address));
                    }
                }
                Step::Create(at, size, page_number, module) => {
                    let hal = HalFacts { created: true, ..asked(HalSpace::Device, page(page_number), module) };
                    send(&mut c, CallOp::Create, at + 1, size, Some(hal));
                    live.insert((true, at + 1), (false, size, hal));
                }
                Step::Release(at) => {
                    send(&mut c, CallOp::Release, at + 1, 0, None);
                    live.remove(&(true, at + 1));
                }
            }
            for host in [false, true] {
                let mut wanted: BTreeMap<u32, (u64, u64, u64, u64)> = BTreeMap::new();
                for (_, size, hal) in live.values().filter(|(own, ..)| *own == host) {
                    let sum = wanted.entry(u32::from(hal.module.0)).or_default();
                    sum.0 += 1;
                    sum.1 += size;
                    match hal.page {
                        HalPage::Normal => {}
                        HalPage::Huge => sum.2 += size,
                        HalPage::Giant => sum.3 += size,
                    }
                }
                let report = stats(&c.ledger);
                let found: Vec<v1::Component> = if host {
                    report.host_components
                } else {
                    report.devices.first().map_or_else(Vec::new, |d| d.components.clone())
                };
                let found: BTreeMap<u32, _> = found
                    .iter()
                    .map(|c| (c.module.unwrap(), (c.count, c.bytes, c.huge_page_bytes, c.giant_page_bytes)))
                    .collect();
                prop_assert_eq!(&found, &wanted);
                let sum = wanted.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
                let whole = if host { report.host } else { report.devices.first().and_then(|d| d.direct) }.unwrap_or_default();
                prop_assert_eq!((whole.count, whole.bytes), sum);
            }
        }
    }
}
