//! The CUDA runtime: `cuda_runtime_api.h` of CUDA 13.0, and `_ptsz` exports of libcudart.

use memscope_common::{Op, SizeMode};

use super::{Layer, Purpose, Row, Vendor};

const fn call(name: &'static str, op: Op) -> Row {
    Row::new(
        name,
        Vendor::Cuda,
        Layer::Runtime,
        "libcudart.so",
        Purpose::Call(op),
    )
    .returning()
}

pub(super) const ROWS: &[Row] = &[
    call("cudaMalloc", Op::Alloc).ptr_out(0).size(1).essential(),
    call("cudaMallocPitch", Op::Alloc)
        .ptr_out(0)
        .extra(1)
        .size_as(3, SizeMode::Pitch),
    // The extent, 24 bytes by value, lies on the stack.
    call("cudaMalloc3D", Op::Alloc)
        .ptr_out(0)
        .size_as(0, SizeMode::Extent)
        .stack(),
    call("cudaMallocManaged", Op::ManagedAlloc)
        .ptr_out(0)
        .size(1)
        .since(6000),
    call("cudaFree", Op::Free).ptr(0).essential(),
    call("cudaMallocArray", Op::ArrayAlloc).handle_out(0),
    call("cudaMalloc3DArray", Op::ArrayAlloc).handle_out(0),
    call("cudaMallocMipmappedArray", Op::ArrayAlloc)
        .handle_out(0)
        .since(5000),
    call("cudaFreeArray", Op::ArrayFree).handle(0),
    call("cudaFreeMipmappedArray", Op::ArrayFree)
        .handle(0)
        .since(5000),
    call("cudaMallocHost", Op::HostAlloc).ptr_out(0).size(1),
    call("cudaHostAlloc", Op::HostAlloc).ptr_out(0).size(1),
    call("cudaFreeHost", Op::HostFree).ptr(0),
    call("cudaHostRegister", Op::HostRegister).ptr(0).size(1),
    call("cudaHostUnregister", Op::HostUnregister).ptr(0),
    call("cudaMallocAsync", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .stream(2)
        .since(11020),
    call("cudaMallocAsync_ptsz", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .stream(2)
        .per_thread()
        .since(11020),
    call("cudaMallocFromPoolAsync", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .handle(2)
        .stream(3)
        .since(11020),
    call("cudaMallocFromPoolAsync_ptsz", Op::AsyncAlloc)
        .ptr_out(0)
        .size(1)
        .handle(2)
        .stream(3)
        .per_thread()
        .since(11020),
    call("cudaFreeAsync", Op::AsyncFree)
        .ptr(0)
        .stream(1)
        .since(11020),
    call("cudaFreeAsync_ptsz", Op::AsyncFree)
        .ptr(0)
        .stream(1)
        .per_thread()
        .since(11020),
    // The exported handle travels by value on the stack; its 64 bytes are not needed.
    call("cudaIpcOpenMemHandle", Op::IpcOpen)
        .ptr_out(0)
        .since(4010),
    call("cudaIpcCloseMemHandle", Op::IpcClose)
        .ptr(0)
        .since(4010),
    call("cudaMemPoolImportPointer", Op::IpcOpen)
        .ptr_out(0)
        .handle(1)
        .since(11020),
    call("cudaMemGetInfo", Op::MemInfo)
        .extra(0)
        .size_as(1, SizeMode::Out),
    call("cudaSetDevice", Op::SetDevice).size(0),
    call("cudaDeviceReset", Op::Reset),
];
