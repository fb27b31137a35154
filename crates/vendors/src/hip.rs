//! AMD ROCm: HIP's runtime, which is one library for what CUDA calls runtime and driver. The table follows
//! `hip_runtime_api.h` and the exported symbols of ROCm 5.2; newer versions keep these names.
//!
//! hipMallocHost, hipMemAllocHost and hipHostAlloc are older names of hipHostMalloc, and hipFreeHost is one of
//! hipHostFree.

use memscope_common::{Op, SizeMode};

use crate::{Facts, Layer, Library, Purpose, Row, Vendor};

const LIBRARY: &str = "libamdhip64.so";

pub(crate) const FACTS: Facts = Facts {
    vendor: Vendor::Hip,
    name: "AMD ROCm",
    device_kind: "hip",
    visible_devices: "HIP_VISIBLE_DEVICES",
    settings: &[
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "PYTORCH_HIP_ALLOC_CONF",
    ],
    libraries: &[
        Library::of_device("libamdhip64"),
        Library::of_framework("libc10_hip"),
    ],
    rows: &[ROWS, LAUNCHES],
};

const fn call(name: &'static str, op: Op) -> Row {
    Row::new(
        name,
        Some(Vendor::Hip),
        Layer::Runtime,
        LIBRARY,
        Purpose::Call(op),
    )
    .returning()
}

/// A launch of a kernel. None of these functions calls another of them by its exported name.
const fn launch(name: &'static str) -> Row {
    Row::new(
        name,
        Some(Vendor::Hip),
        Layer::Mark,
        LIBRARY,
        Purpose::Launch,
    )
}

const ROWS: &[Row] = &[
    // Memory of the device.
    call("hipMalloc", Op::Alloc).ptr_out(0).size(1).essential(),
    call("hipExtMallocWithFlags", Op::Alloc).ptr_out(0).size(1),
    call("hipMallocManaged", Op::ManagedAlloc)
        .ptr_out(0)
        .size(1),
    call("hipMallocPitch", Op::Alloc)
        .ptr_out(0)
        .extra(1)
        .size_as(3, SizeMode::Pitch),
    call("hipMemAllocPitch", Op::Alloc)
        .ptr_out(0)
        .extra(1)
        .size_as(3, SizeMode::Pitch),
    // The extent (24 bytes) is passed by value on the stack.
    call("hipMalloc3D", Op::Alloc)
        .ptr_out(0)
        .size_as(0, SizeMode::Extent)
        .stack(),
    call("hipFree", Op::Free).ptr(0).essential(),
    call("hipMallocArray", Op::ArrayAlloc).handle_out(0),
    call("hipMalloc3DArray", Op::ArrayAlloc).handle_out(0),
    call("hipArrayCreate", Op::ArrayAlloc).handle_out(0),
    call("hipArray3DCreate", Op::ArrayAlloc).handle_out(0),
    call("hipMallocMipmappedArray", Op::ArrayAlloc).handle_out(0),
    call("hipMipmappedArrayCreate", Op::ArrayAlloc).handle_out(0),
    call("hipFreeArray", Op::ArrayFree).handle(0),
    call("hipArrayDestroy", Op::ArrayFree).handle(0),
    call("hipFreeMipmappedArray", Op::ArrayFree).handle(0),
    call("hipMipmappedArrayDestroy", Op::ArrayFree).handle(0),
    // Page-locked memory of the host.
    call("hipHostMalloc", Op::HostAlloc).ptr_out(0).size(1),
    call("hipMallocHost", Op::HostAlloc).ptr_out(0).size(1),
    call("hipMemAllocHost", Op::HostAlloc).ptr_out(0).size(1),
    call("hipHostAlloc", Op::HostAlloc).ptr_out(0).size(1),
    call("hipHostFree", Op::HostFree).ptr(0),
    call("hipFreeHost", Op::HostFree).ptr(0),
    call("hipHostRegister", Op::HostRegister).ptr(0).size(1),
    call("hipHostUnregister", Op::HostUnregister).ptr(0),
    // Stream-ordered memory.
    call("hipMallocAsync", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .stream(2),
    call("hipMallocFromPoolAsync", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .handle(2)
        .stream(3),
    call("hipFreeAsync", Op::AsyncFree).ptr(0).stream(1),
    // Memory of other processes. The exported handle is passed by value on the stack.
    call("hipIpcOpenMemHandle", Op::IpcOpen).ptr_out(0),
    call("hipIpcCloseMemHandle", Op::IpcClose).ptr(0),
    call("hipMemPoolImportPointer", Op::IpcOpen)
        .ptr_out(0)
        .handle(1),
    // Address space and physical memory.
    call("hipMemAddressReserve", Op::Reserve).ptr_out(0).size(1),
    call("hipMemAddressFree", Op::ReserveFree).ptr(0).size(1),
    call("hipMemCreate", Op::Create).handle_out(0).size(1),
    call("hipMemRelease", Op::Release).handle(0),
    call("hipMemMap", Op::Map).ptr(0).size(1).extra(2).handle(3),
    call("hipMemUnmap", Op::Unmap).ptr(0).size(1),
    call("hipMemRetainAllocationHandle", Op::Retain)
        .handle_out(0)
        .ptr(1),
    call("hipMemImportFromShareableHandle", Op::Import).handle_out(0),
    // Devices and contexts.
    call("hipMemGetInfo", Op::MemInfo)
        .extra(0)
        .size_as(1, SizeMode::Out),
    call("hipStreamCreate", Op::NewStream).handle_out(0),
    call("hipStreamCreateWithFlags", Op::NewStream).handle_out(0),
    call("hipStreamCreateWithPriority", Op::NewStream).handle_out(0),
    call("hipMemPoolCreate", Op::PoolOf).handle_out(0).extra(1),
    call("hipDeviceGetDefaultMemPool", Op::PoolOf)
        .handle_out(0)
        .size(1),
    call("hipDeviceGetMemPool", Op::PoolOf)
        .handle_out(0)
        .size(1),
    call("hipSetDevice", Op::SetDevice).size(0),
    call("hipDeviceReset", Op::Reset),
    call("hipCtxSetCurrent", Op::SetContext).handle(0),
    call("hipCtxPushCurrent", Op::PushContext).handle(0),
    call("hipCtxPopCurrent", Op::PopContext).handle_out(0),
    call("hipCtxCreate", Op::PushContext).handle_out(0).size(2),
    call("hipCtxDestroy", Op::Reset).handle(0),
    call("hipDevicePrimaryCtxRetain", Op::PrimaryContext)
        .handle_out(0)
        .size(1),
    // `size` is the device, as for PrimaryContext.
    call("hipDevicePrimaryCtxReset", Op::Reset).size(0),
];

const LAUNCHES: &[Row] = &[
    launch("hipLaunchKernel"),
    launch("hipLaunchKernel_spt"),
    launch("hipExtLaunchKernel"),
    launch("hipModuleLaunchKernel"),
    launch("hipLaunchCooperativeKernel"),
    launch("hipLaunchCooperativeKernel_spt"),
    launch("hipLaunchCooperativeKernelMultiDevice"),
    launch("hipExtLaunchMultiKernelMultiDevice"),
    launch("hipLaunchByPtr"),
    launch("hipGraphLaunch"),
];
