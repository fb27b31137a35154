//! The CUDA driver: `cuda.h` of CUDA 13.0, the older variants that libcuda still exports, and the
//! version notes of `cudaTypedefs.h`.

use memscope_common::{Op, SizeMode};

use super::{Layer, Purpose, Row, Vendor};

const fn call(name: &'static str, op: Op, since: u32) -> Row {
    Row::new(
        name,
        Vendor::Cuda,
        Layer::Driver,
        "libcuda.so",
        Purpose::Call(op),
    )
    .returning()
    .since(since)
}

pub(super) const ROWS: &[Row] = &[
    call("cuMemAlloc_v2", Op::Alloc, 3020)
        .ptr_out(0)
        .size(1)
        .essential(),
    call("cuMemAlloc", Op::Alloc, 2000)
        .ptr_out(0)
        .size(1)
        .narrow(),
    call("cuMemAllocPitch_v2", Op::Alloc, 3020)
        .ptr_out(0)
        .extra(1)
        .size_as(3, SizeMode::Pitch),
    call("cuMemAllocPitch", Op::Alloc, 2000)
        .ptr_out(0)
        .extra(1)
        .size_as(3, SizeMode::Pitch)
        .narrow(),
    call("cuMemAllocManaged", Op::ManagedAlloc, 6000)
        .ptr_out(0)
        .size(1),
    call("cuMemFree_v2", Op::Free, 3020).ptr(0).essential(),
    call("cuMemFree", Op::Free, 2000).ptr(0).narrow(),
    call("cuMemAllocHost_v2", Op::HostAlloc, 3020)
        .ptr_out(0)
        .size(1),
    call("cuMemAllocHost", Op::HostAlloc, 2000)
        .ptr_out(0)
        .size(1)
        .narrow(),
    call("cuMemHostAlloc", Op::HostAlloc, 2020)
        .ptr_out(0)
        .size(1),
    call("cuMemFreeHost", Op::HostFree, 2000).ptr(0),
    call("cuMemHostRegister_v2", Op::HostRegister, 6050)
        .ptr(0)
        .size(1),
    call("cuMemHostRegister", Op::HostRegister, 4000)
        .ptr(0)
        .size(1),
    call("cuMemHostUnregister", Op::HostUnregister, 4000).ptr(0),
    call("cuMemAllocAsync", Op::AsyncAlloc, 11020)
        .ptr_out(0)
        .size(1)
        .stream(2),
    call("cuMemAllocAsync_ptsz", Op::AsyncAlloc, 11020)
        .ptr_out(0)
        .size(1)
        .stream(2)
        .per_thread(),
    call("cuMemAllocFromPoolAsync", Op::AsyncAlloc, 11020)
        .ptr_out(0)
        .size(1)
        .handle(2)
        .stream(3),
    call("cuMemAllocFromPoolAsync_ptsz", Op::AsyncAlloc, 11020)
        .ptr_out(0)
        .size(1)
        .handle(2)
        .stream(3)
        .per_thread(),
    call("cuMemFreeAsync", Op::AsyncFree, 11020)
        .ptr(0)
        .stream(1),
    call("cuMemFreeAsync_ptsz", Op::AsyncFree, 11020)
        .ptr(0)
        .stream(1)
        .per_thread(),
    call("cuArrayCreate_v2", Op::ArrayAlloc, 3020).handle_out(0),
    call("cuArrayCreate", Op::ArrayAlloc, 2000).handle_out(0),
    call("cuArray3DCreate_v2", Op::ArrayAlloc, 3020).handle_out(0),
    call("cuArray3DCreate", Op::ArrayAlloc, 2000).handle_out(0),
    call("cuArrayDestroy", Op::ArrayFree, 2000).handle(0),
    call("cuMipmappedArrayCreate", Op::ArrayAlloc, 5000).handle_out(0),
    call("cuMipmappedArrayDestroy", Op::ArrayFree, 5000).handle(0),
    call("cuMemAddressReserve", Op::Reserve, 10020)
        .ptr_out(0)
        .size(1),
    call("cuMemAddressFree", Op::ReserveFree, 10020)
        .ptr(0)
        .size(1),
    call("cuMemCreate", Op::Create, 10020).handle_out(0).size(1),
    call("cuMemRelease", Op::Release, 10020).handle(0),
    call("cuMemMap", Op::Map, 10020)
        .ptr(0)
        .size(1)
        .extra(2)
        .handle(3),
    call("cuMemUnmap", Op::Unmap, 10020).ptr(0).size(1),
    call("cuMemRetainAllocationHandle", Op::Retain, 11000)
        .handle_out(0)
        .ptr(1),
    call("cuMemImportFromShareableHandle", Op::Import, 10020).handle_out(0),
    call("cuMemPoolImportPointer", Op::IpcOpen, 11020)
        .ptr_out(0)
        .handle(1),
    call("cuIpcOpenMemHandle_v2", Op::IpcOpen, 11000).ptr_out(0),
    call("cuIpcOpenMemHandle", Op::IpcOpen, 4010).ptr_out(0),
    call("cuIpcCloseMemHandle", Op::IpcClose, 4010).ptr(0),
    call("cuMemGetInfo_v2", Op::MemInfo, 3020)
        .extra(0)
        .size_as(1, SizeMode::Out),
    call("cuMemGetInfo", Op::MemInfo, 2000)
        .extra(0)
        .size_as(1, SizeMode::Out)
        .narrow(),
    call("cuCtxSetCurrent", Op::SetContext, 4000).handle(0),
    call("cuCtxPushCurrent_v2", Op::PushContext, 4000).handle(0),
    call("cuCtxPushCurrent", Op::PushContext, 2000).handle(0),
    // The result may be thrown away: the pointer is then null.
    call("cuCtxPopCurrent_v2", Op::PopContext, 4000).handle_out(0),
    call("cuCtxPopCurrent", Op::PopContext, 2000).handle_out(0),
    call("cuDevicePrimaryCtxRetain", Op::PrimaryContext, 7000)
        .handle_out(0)
        .size(1),
    // `size` is the device, as for PrimaryContext.
    call("cuDevicePrimaryCtxReset_v2", Op::Reset, 11000).size(0),
    call("cuDevicePrimaryCtxReset", Op::Reset, 7000).size(0),
    // A new context becomes the thread's current one: a push whose handle is a result and whose
    // `size` is the device.
    call("cuCtxCreate_v4", Op::PushContext, 12050)
        .handle_out(0)
        .size(3),
    call("cuCtxCreate_v3", Op::PushContext, 11040)
        .handle_out(0)
        .size(4),
    call("cuCtxCreate_v2", Op::PushContext, 3020)
        .handle_out(0)
        .size(2),
    call("cuCtxCreate", Op::PushContext, 2000)
        .handle_out(0)
        .size(2),
    call("cuCtxDestroy_v2", Op::Reset, 4000).handle(0),
    call("cuCtxDestroy", Op::Reset, 2000).handle(0),
];
