//! Ascend: CANN's runtime API (`acl/acl_rt.h`, the functions `aclrt…`) and the driver below it (`ascend_hal.h`, the
//! functions `hal…`), by the public headers of CANN 8 and 9; and what launches kernels, of `libruntime.so`.
//!
//! A runtime call that allocates makes one of the driver's inside; the outer one is the record, as everywhere. What only
//! the driver is told (the component that asks, the device, the pages) goes with it. Components of CANN (HCCL, GE, the
//! runtime itself) call the driver without a runtime function around it: then the driver's call is the record, also
//! inside a call that only selects or resets a device.
//!
//! From CANN 8.5 on `aclrtX` may live in `libacl_rt.so` and calls `aclrtXImpl`; the names that programs link with are the
//! same. The driver's `hal…Inner` are other names of the same functions, for tools that put themselves in front.

use memscope_common::{AscendExtra, Op, SizeMode};

use crate::{Facts, Layer, Library, Purpose, Row, Vendor};

pub(crate) const FACTS: Facts = Facts {
    vendor: Vendor::Ascend,
    name: "Huawei Ascend",
    device_kind: "npu",
    visible_devices: "ASCEND_RT_VISIBLE_DEVICES",
    settings: &[
        "ASCEND_RT_VISIBLE_DEVICES",
        "TASK_QUEUE_ENABLE",
        "ASCEND_LAUNCH_BLOCKING",
        "PYTORCH_NPU_ALLOC_CONF",
        "PYTORCH_NO_NPU_MEMORY_CACHING",
    ],
    libraries: &[
        Library::of_device("libascendcl"),
        Library::of_device("libacl_rt"),
        Library::of_device("libascend_hal"),
        Library::of_framework("libtorch_npu"),
    ],
    rows: &[ROWS],
};

const fn acl(name: &'static str, op: Op) -> Row {
    call(name, Layer::Runtime, "libascendcl.so", op)
}

const fn hal(name: &'static str, op: Op) -> Row {
    call(name, Layer::Driver, "libascend_hal.so", op)
}

const fn call(name: &'static str, layer: Layer, library: &'static str, op: Op) -> Row {
    Row::new(
        name,
        Some(Vendor::Ascend),
        layer,
        library,
        Purpose::Call(op),
    )
    .returning()
    .apart()
}

/// The lowest functions that have names: `aclrtLaunchKernel…` makes one of these calls each, so that these alone are
/// counted and a launch counts once. A captured graph is one launch.
const fn launch(name: &'static str) -> Row {
    Row::new(
        name,
        Some(Vendor::Ascend),
        Layer::Mark,
        "libruntime.so",
        Purpose::Launch,
    )
}

const ROWS: &[Row] = &[
    // Memory of the device: (void **, size_t, policy [, config]).
    acl("aclrtMalloc", Op::Alloc).ptr_out(0).size(1),
    acl("aclrtMallocAlign32", Op::Alloc).ptr_out(0).size(1),
    acl("aclrtMallocCached", Op::Alloc).ptr_out(0).size(1),
    acl("aclrtMallocWithCfg", Op::Alloc).ptr_out(0).size(1),
    acl("aclrtMallocForTaskScheduler", Op::Alloc)
        .ptr_out(0)
        .size(1),
    acl("aclrtMemAllocManaged", Op::ManagedAlloc)
        .ptr_out(0)
        .size(1),
    acl("aclrtFree", Op::Free).ptr(0),
    acl("aclrtFreeWithDevSync", Op::Free).ptr(0),
    // Page-locked memory of the host: (void **, size_t [, config]).
    acl("aclrtMallocHost", Op::HostAlloc).ptr_out(0).size(1),
    acl("aclrtMallocHostWithCfg", Op::HostAlloc)
        .ptr_out(0)
        .size(1),
    acl("aclrtFreeHost", Op::HostFree).ptr(0),
    acl("aclrtFreeHostWithDevSync", Op::HostFree).ptr(0),
    // (void *, uint64_t, type, void **); V2: (void *, uint64_t, uint32_t flags).
    acl("aclrtHostRegister", Op::HostRegister).ptr(0).size(1),
    acl(REGISTER_BY_FLAGS, Op::HostRegister)
        .ptr(0)
        .size(1)
        .extra(2),
    acl("aclrtHostUnregister", Op::HostUnregister).ptr(0),
    // Address space and physical memory. Neither what releases addresses nor what unmaps says how much.
    acl("aclrtReserveMemAddress", Op::Reserve)
        .ptr_out(0)
        .size(1),
    acl("aclrtReserveMemAddressNoUCMemory", Op::Reserve)
        .ptr_out(0)
        .size(1),
    acl("aclrtReleaseMemAddress", Op::ReserveFree).ptr(0),
    acl("aclrtMallocPhysical", Op::Create)
        .handle_out(0)
        .size(1)
        .told(AscendExtra::Location),
    acl("aclrtFreePhysical", Op::Release).handle(0),
    acl("aclrtMapMem", Op::Map)
        .ptr(0)
        .size(1)
        .extra(2)
        .handle(3),
    acl("aclrtUnmapMem", Op::Unmap).ptr(0),
    acl("aclrtMemRetainAllocationHandle", Op::Retain)
        .ptr(0)
        .handle_out(1),
    acl("aclrtMemImportFromShareableHandle", Op::Import).handle_out(2),
    acl("aclrtMemImportFromShareableHandleV2", Op::Import).handle_out(3),
    // `aclrtIpcMemClose` names a key and no address: the driver's call inside it tells that.
    acl("aclrtIpcMemImportByKey", Op::IpcOpen).ptr_out(0),
    // (attribute, size_t *free, size_t *total).
    acl("aclrtGetMemInfo", Op::MemInfo)
        .handle(0)
        .extra(1)
        .size_as(2, SizeMode::Out),
    // Devices and contexts. By its documentation a reset, which counts, gives back contexts and streams, and the end of a
    // context what is the context's own: neither is said to free memory that somebody has allocated. What is freed
    // inside is freed by calls that are seen. So these do no more than take the thread's device.
    acl("aclrtSetDevice", Op::SetDevice).size(0),
    acl("aclrtResetDevice", Op::PopContext),
    acl("aclrtResetDeviceForce", Op::PopContext),
    acl("aclrtCreateContext", Op::SetContext)
        .handle_out(0)
        .size(1),
    acl("aclrtSetCurrentContext", Op::SetContext).handle(0),
    acl("aclrtDestroyContext", Op::PopContext),
    // The driver.
    hal("halMemAlloc", Op::Alloc)
        .ptr_out(0)
        .size(1)
        .extra(2)
        .told(AscendExtra::Flags)
        .essential(),
    hal("halMemAllocInner", Op::Alloc)
        .ptr_out(0)
        .size(1)
        .extra(2)
        .told(AscendExtra::Flags),
    hal("halMemFree", Op::Free).ptr(0).essential(),
    hal("halMemFreeInner", Op::Free).ptr(0),
    hal("halMemCreate", Op::Create)
        .handle_out(0)
        .size(1)
        .told(AscendExtra::Properties),
    hal("halMemCreateInner", Op::Create)
        .handle_out(0)
        .size(1)
        .told(AscendExtra::Properties),
    hal("halMemRelease", Op::Release).handle(0),
    hal("halMemReleaseInner", Op::Release).handle(0),
    hal("halMemAddressReserve", Op::Reserve).ptr_out(0).size(1),
    hal("halMemAddressFree", Op::ReserveFree).ptr(0),
    hal("halMemMap", Op::Map).ptr(0).size(1).extra(2).handle(3),
    hal("halMemUnmap", Op::Unmap).ptr(0),
    hal("halMemRetainAllocationHandle", Op::Retain)
        .handle_out(0)
        .ptr(1),
    hal("halMemImportFromShareableHandle", Op::Import).handle_out(2),
    hal("halMemImportFromShareableHandleV2", Op::Import).handle_out(3),
    hal("halShmemOpenHandle", Op::IpcOpen).ptr_out(1),
    hal("halShmemOpenHandleByDevId", Op::IpcOpen).ptr_out(2),
    hal("halShmemCloseHandle", Op::IpcClose).ptr(0),
    launch("rtKernelLaunch"),
    launch("rtKernelLaunchWithFlag"),
    launch("rtKernelLaunchWithFlagV2"),
    launch("rtKernelLaunchWithHandle"),
    launch("rtKernelLaunchWithHandleV2"),
    launch("rtVectorCoreKernelLaunch"),
    launch("rtVectorCoreKernelLaunchWithHandle"),
    launch("rtAicpuKernelLaunchWithFlag"),
    launch("rtAicpuKernelLaunchExWithArgs"),
    launch("rtCpuKernelLaunchWithFlag"),
    launch("rtLaunchKernelByFuncHandle"),
    launch("rtLaunchKernelByFuncHandleV2"),
    launch("rtLaunchKernelByFuncHandleV3"),
    launch("rtsLaunchKernelWithConfig"),
    launch("rtsLaunchKernelWithDevArgs"),
    launch("rtsLaunchKernelWithHostArgs"),
    launch("rtsLaunchCpuKernel"),
    launch("rtModelExecute"),
];

/// Registers memory for what its flags say, which need not be page-locking.
const REGISTER_BY_FLAGS: &str = "aclrtHostRegisterV2";
