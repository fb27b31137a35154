//! Ascend: CANN's runtime API (`acl/acl_rt.h`, the functions `aclrt…`) and the driver below it (`ascend_hal.h`, the
//! functions `hal…`), by the public headers of CANN 8 and 9; and the functions of `libruntime.so` that launch kernels.
//!
//! A runtime call that allocates calls the driver; the outer call becomes the record, as with every vendor. What only
//! the driver is given (the component that asks, the device, the pages) is added to that record. Components of CANN
//! (HCCL, GE, the runtime itself) call the driver without a runtime function around it: then the driver's call becomes
//! the record, also inside a call that only selects or resets a device.
//!
//! From CANN 8.5 on `aclrtX` may be in `libacl_rt.so`, where it calls `aclrtXImpl`; the names that programs link with
//! are the same. The driver's `hal…Inner` are other names of the same functions, for tools that intercept the usual
//! names.

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

/// A launch of a kernel. These are the lowest functions that are exported: each `aclrtLaunchKernel…` calls one of them,
/// so only these are probed, and a launch counts once. A captured graph is one launch.
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
    // Memory of the device. Arguments: (void **, size_t, policy [, config]).
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
    // Page-locked memory of the host. Arguments: (void **, size_t [, config]).
    acl("aclrtMallocHost", Op::HostAlloc).ptr_out(0).size(1),
    acl("aclrtMallocHostWithCfg", Op::HostAlloc)
        .ptr_out(0)
        .size(1),
    acl("aclrtFreeHost", Op::HostFree).ptr(0),
    acl("aclrtFreeHostWithDevSync", Op::HostFree).ptr(0),
    // Arguments: (void *, uint64_t, type, void **); of V2: (void *, uint64_t, uint32_t flags).
    acl("aclrtHostRegister", Op::HostRegister).ptr(0).size(1),
    acl(REGISTER_BY_FLAGS, Op::HostRegister)
        .ptr(0)
        .size(1)
        .extra(2),
    acl("aclrtHostUnregister", Op::HostUnregister).ptr(0),
    // Address space and physical memory. The functions that release addresses and those that unmap are given no size.
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
    // `aclrtIpcMemClose` is given a key and no address, so it has no row: the driver's call inside it has the address.
    acl("aclrtIpcMemImportByKey", Op::IpcOpen).ptr_out(0),
    // Arguments: (attribute, size_t *free, size_t *total).
    acl("aclrtGetMemInfo", Op::MemInfo)
        .handle(0)
        .extra(1)
        .size_as(2, SizeMode::Out),
    // Devices and contexts. According to CANN's documentation a reset counts references, and releases contexts and
    // streams; destroying a context releases what belongs to the context. Neither is documented to free allocated
    // memory, and memory that is freed inside such a call is freed by calls that have probes. So these functions only
    // end the thread's choice of a device.
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

/// Registers memory for the purpose that its flags say, which need not be page-locking.
const REGISTER_BY_FLAGS: &str = "aclrtHostRegisterV2";
