//! NVIDIA CUDA. The table of the runtime follows `cuda_runtime_api.h` of CUDA 13.0 and the `_ptsz` exports of
//! libcudart. The table of the driver follows `cuda.h` of CUDA 13.0, the older variants that libcuda still exports, and
//! the version notes of `cudaTypedefs.h`.

use memscope_common::{Op, SizeMode};

use crate::{Facts, Layer, Library, Purpose, Row, Vendor};

pub(crate) const FACTS: Facts = Facts {
    vendor: Vendor::Cuda,
    name: "NVIDIA CUDA",
    device_kind: "cuda",
    visible_devices: "CUDA_VISIBLE_DEVICES",
    settings: &[
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
    ],
    libraries: &[
        Library::of_device("libcudart"),
        Library::of_device("libcuda"),
        Library::of_framework("libc10_cuda"),
    ],
    rows: &[RUNTIME, DRIVER, LAUNCHES],
};

const fn runtime(name: &'static str, op: Op) -> Row {
    Row::new(
        name,
        Some(Vendor::Cuda),
        Layer::Runtime,
        "libcudart.so",
        Purpose::Call(op),
    )
    .returning()
}

const fn driver(name: &'static str, op: Op, since: u32) -> Row {
    Row::new(
        name,
        Some(Vendor::Cuda),
        Layer::Driver,
        "libcuda.so",
        Purpose::Call(op),
    )
    .returning()
    .since(since)
}

/// A launch of a kernel. The runtime's launches (`cudaLaunchKernel` and similar functions) each make one of these calls
/// of the driver, so only the driver's functions are probed. A graph is one launch. The handle is the address of the driver's object
/// for the kernel.
const fn launch(name: &'static str) -> Row {
    Row::new(
        name,
        Some(Vendor::Cuda),
        Layer::Mark,
        "libcuda.so",
        Purpose::Launch,
    )
}

const RUNTIME: &[Row] = &[
    runtime("cudaMalloc", Op::Alloc)
        .ptr_out(0)
        .size(1)
        .essential(),
    runtime("cudaMallocPitch", Op::Alloc)
        .ptr_out(0)
        .extra(1)
        .size_as(3, SizeMode::Pitch),
    // The extent (24 bytes) is passed by value on the stack.
    runtime("cudaMalloc3D", Op::Alloc)
        .ptr_out(0)
        .size_as(0, SizeMode::Extent)
        .stack(),
    runtime("cudaMallocManaged", Op::ManagedAlloc)
        .ptr_out(0)
        .size(1)
        .since(6000),
    runtime("cudaFree", Op::Free).ptr(0).essential(),
    runtime("cudaMallocArray", Op::ArrayAlloc).handle_out(0),
    runtime("cudaMalloc3DArray", Op::ArrayAlloc).handle_out(0),
    runtime("cudaMallocMipmappedArray", Op::ArrayAlloc)
        .handle_out(0)
        .since(5000),
    runtime("cudaFreeArray", Op::ArrayFree).handle(0),
    runtime("cudaFreeMipmappedArray", Op::ArrayFree)
        .handle(0)
        .since(5000),
    runtime("cudaMallocHost", Op::HostAlloc).ptr_out(0).size(1),
    runtime("cudaHostAlloc", Op::HostAlloc).ptr_out(0).size(1),
    runtime("cudaFreeHost", Op::HostFree).ptr(0),
    runtime("cudaHostRegister", Op::HostRegister).ptr(0).size(1),
    runtime("cudaHostUnregister", Op::HostUnregister).ptr(0),
    runtime("cudaMallocAsync", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .stream(2)
        .since(11020),
    runtime("cudaMallocAsync_ptsz", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .stream(2)
        .per_thread()
        .since(11020),
    runtime("cudaMallocFromPoolAsync", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .handle(2)
        .stream(3)
        .since(11020),
    runtime("cudaMallocFromPoolAsync_ptsz", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .handle(2)
        .stream(3)
        .per_thread()
        .since(11020),
    runtime("cudaFreeAsync", Op::AsyncFree)
        .ptr(0)
        .stream(1)
        .since(11020),
    runtime("cudaFreeAsync_ptsz", Op::AsyncFree)
        .ptr(0)
        .stream(1)
        .per_thread()
        .since(11020),
    // The exported handle is passed by value on the stack; its 64 bytes are not needed.
    runtime("cudaIpcOpenMemHandle", Op::IpcOpen)
        .ptr_out(0)
        .since(4010),
    runtime("cudaIpcCloseMemHandle", Op::IpcClose)
        .ptr(0)
        .since(4010),
    runtime("cudaMemPoolImportPointer", Op::IpcOpen)
        .ptr_out(0)
        .handle(1)
        .since(11020),
    runtime("cudaMemGetInfo", Op::MemInfo)
        .extra(0)
        .size_as(1, SizeMode::Out),
    // Streams and pools, since a stream-ordered allocation is made where its stream or pool is.
    runtime("cudaStreamCreate", Op::NewStream).handle_out(0),
    runtime("cudaStreamCreateWithFlags", Op::NewStream)
        .handle_out(0)
        .since(5000),
    runtime("cudaStreamCreateWithPriority", Op::NewStream)
        .handle_out(0)
        .since(5050),
    runtime("cudaMemPoolCreate", Op::PoolOf)
        .handle_out(0)
        .extra(1)
        .since(11020),
    runtime("cudaDeviceGetDefaultMemPool", Op::PoolOf)
        .handle_out(0)
        .size(1)
        .since(11020),
    runtime("cudaDeviceGetMemPool", Op::PoolOf)
        .handle_out(0)
        .size(1)
        .since(11020),
    runtime("cudaMemGetDefaultMemPool", Op::PoolOf)
        .handle_out(0)
        .ptr(1)
        .since(13000),
    runtime("cudaMemGetMemPool", Op::PoolOf)
        .handle_out(0)
        .ptr(1)
        .since(13000),
    runtime("cudaSetDevice", Op::SetDevice).size(0),
    runtime("cudaDeviceReset", Op::Reset),
];

const DRIVER: &[Row] = &[
    driver("cuMemAlloc_v2", Op::Alloc, 3020)
        .ptr_out(0)
        .size(1)
        .essential(),
    driver("cuMemAlloc", Op::Alloc, 2000)
        .ptr_out(0)
        .size(1)
        .narrow(),
    driver("cuMemAllocPitch_v2", Op::Alloc, 3020)
        .ptr_out(0)
        .extra(1)
        .size_as(3, SizeMode::Pitch),
    driver("cuMemAllocPitch", Op::Alloc, 2000)
        .ptr_out(0)
        .extra(1)
        .size_as(3, SizeMode::Pitch)
        .narrow(),
    driver("cuMemAllocManaged", Op::ManagedAlloc, 6000)
        .ptr_out(0)
        .size(1),
    driver("cuMemFree_v2", Op::Free, 3020).ptr(0).essential(),
    driver("cuMemFree", Op::Free, 2000).ptr(0).narrow(),
    driver("cuMemAllocHost_v2", Op::HostAlloc, 3020)
        .ptr_out(0)
        .size(1),
    driver("cuMemAllocHost", Op::HostAlloc, 2000)
        .ptr_out(0)
        .size(1)
        .narrow(),
    driver("cuMemHostAlloc", Op::HostAlloc, 2020)
        .ptr_out(0)
        .size(1),
    driver("cuMemFreeHost", Op::HostFree, 2000).ptr(0),
    driver("cuMemHostRegister_v2", Op::HostRegister, 6050)
        .ptr(0)
        .size(1),
    driver("cuMemHostRegister", Op::HostRegister, 4000)
        .ptr(0)
        .size(1),
    driver("cuMemHostUnregister", Op::HostUnregister, 4000).ptr(0),
    driver("cuMemAllocAsync", Op::AsyncAlloc, 11020)
        .ptr_out(0)
        .size(1)
        .stream(2),
    driver("cuMemAllocAsync_ptsz", Op::AsyncAlloc, 11020)
        .ptr_out(0)
        .size(1)
        .stream(2)
        .per_thread(),
    driver("cuMemAllocFromPoolAsync", Op::AsyncAlloc, 11020)
        .ptr_out(0)
        .size(1)
        .handle(2)
        .stream(3),
    driver("cuMemAllocFromPoolAsync_ptsz", Op::AsyncAlloc, 11020)
        .ptr_out(0)
        .size(1)
        .handle(2)
        .stream(3)
        .per_thread(),
    driver("cuMemFreeAsync", Op::AsyncFree, 11020)
        .ptr(0)
        .stream(1),
    driver("cuMemFreeAsync_ptsz", Op::AsyncFree, 11020)
        .ptr(0)
        .stream(1)
        .per_thread(),
    driver("cuArrayCreate_v2", Op::ArrayAlloc, 3020).handle_out(0),
    driver("cuArrayCreate", Op::ArrayAlloc, 2000).handle_out(0),
    driver("cuArray3DCreate_v2", Op::ArrayAlloc, 3020).handle_out(0),
    driver("cuArray3DCreate", Op::ArrayAlloc, 2000).handle_out(0),
    driver("cuArrayDestroy", Op::ArrayFree, 2000).handle(0),
    driver("cuMipmappedArrayCreate", Op::ArrayAlloc, 5000).handle_out(0),
    driver("cuMipmappedArrayDestroy", Op::ArrayFree, 5000).handle(0),
    driver("cuMemAddressReserve", Op::Reserve, 10020)
        .ptr_out(0)
        .size(1),
    driver("cuMemAddressFree", Op::ReserveFree, 10020)
        .ptr(0)
        .size(1),
    driver("cuMemCreate", Op::Create, 10020)
        .handle_out(0)
        .size(1),
    driver("cuMemRelease", Op::Release, 10020).handle(0),
    driver("cuMemMap", Op::Map, 10020)
        .ptr(0)
        .size(1)
        .extra(2)
        .handle(3),
    driver("cuMemUnmap", Op::Unmap, 10020).ptr(0).size(1),
    driver("cuMemRetainAllocationHandle", Op::Retain, 11000)
        .handle_out(0)
        .ptr(1),
    driver("cuMemImportFromShareableHandle", Op::Import, 10020).handle_out(0),
    driver("cuMemPoolImportPointer", Op::IpcOpen, 11020)
        .ptr_out(0)
        .handle(1),
    driver("cuIpcOpenMemHandle_v2", Op::IpcOpen, 11000).ptr_out(0),
    driver("cuIpcOpenMemHandle", Op::IpcOpen, 4010).ptr_out(0),
    driver("cuIpcCloseMemHandle", Op::IpcClose, 4010).ptr(0),
    driver("cuMemGetInfo_v2", Op::MemInfo, 3020)
        .extra(0)
        .size_as(1, SizeMode::Out),
    driver("cuMemGetInfo", Op::MemInfo, 2000)
        .extra(0)
        .size_as(1, SizeMode::Out)
        .narrow(),
    driver("cuStreamCreate", Op::NewStream, 2000).handle_out(0),
    driver("cuStreamCreateWithPriority", Op::NewStream, 5050).handle_out(0),
    driver("cuMemPoolCreate", Op::PoolOf, 11020)
        .handle_out(0)
        .extra(1),
    driver("cuDeviceGetDefaultMemPool", Op::PoolOf, 11020)
        .handle_out(0)
        .size(1),
    driver("cuDeviceGetMemPool", Op::PoolOf, 11020)
        .handle_out(0)
        .size(1),
    driver("cuMemGetDefaultMemPool", Op::PoolOf, 13000)
        .handle_out(0)
        .ptr(1),
    driver("cuMemGetMemPool", Op::PoolOf, 13000)
        .handle_out(0)
        .ptr(1),
    driver("cuCtxSetCurrent", Op::SetContext, 4000).handle(0),
    driver("cuCtxPushCurrent_v2", Op::PushContext, 4000).handle(0),
    driver("cuCtxPushCurrent", Op::PushContext, 2000).handle(0),
    // A caller that does not need the result passes a null pointer.
    driver("cuCtxPopCurrent_v2", Op::PopContext, 4000).handle_out(0),
    driver("cuCtxPopCurrent", Op::PopContext, 2000).handle_out(0),
    driver("cuDevicePrimaryCtxRetain", Op::PrimaryContext, 7000)
        .handle_out(0)
        .size(1),
    // `size` is the device, as for PrimaryContext.
    driver("cuDevicePrimaryCtxReset_v2", Op::Reset, 11000).size(0),
    driver("cuDevicePrimaryCtxReset", Op::Reset, 7000).size(0),
    // A new context becomes the thread's current one: a push whose handle is a result and whose
    // `size` is the device.
    driver("cuCtxCreate_v4", Op::PushContext, 12050)
        .handle_out(0)
        .size(3),
    driver("cuCtxCreate_v3", Op::PushContext, 11040)
        .handle_out(0)
        .size(4),
    driver("cuCtxCreate_v2", Op::PushContext, 3020)
        .handle_out(0)
        .size(2),
    driver("cuCtxCreate", Op::PushContext, 2000)
        .handle_out(0)
        .size(2),
    driver("cuCtxDestroy_v2", Op::Reset, 4000).handle(0),
    driver("cuCtxDestroy", Op::Reset, 2000).handle(0),
];

const LAUNCHES: &[Row] = &[
    launch("cuLaunchKernel").handle(0),
    launch("cuLaunchKernel_ptsz").handle(0),
    launch("cuLaunchKernelEx").handle(1),
    launch("cuLaunchKernelEx_ptsz").handle(1),
    launch("cuLaunchCooperativeKernel").handle(0),
    launch("cuLaunchCooperativeKernel_ptsz").handle(0),
    launch("cuGraphLaunch"),
    launch("cuGraphLaunch_ptsz"),
];
