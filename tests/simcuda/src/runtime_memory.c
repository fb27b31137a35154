/* The runtime's allocator functions. Each asks the driver for the memory, as the real ones do, so one
 * cudaMalloc is seen twice by a tool that watches both libraries. */
#include "runtime.h"

#include <string.h>

/* Exported, but declared only for code that is compiled for per-thread default streams. */
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);

/* An allocation through the driver, with the log line of the outer function around it. */
#define AROUND(name, pointer, size, stream, inner)                                                        \
    struct simcuda_call call;                                                                             \
    int result = simcuda_begin(&call, name);                                                              \
    if (result == 0) result = simcuda_ready();                                                            \
    int device = simcuda_current_device();                                                                \
    if (result == 0) result = (int)(inner);                                                               \
    return simcuda_result(simcuda_end(&call, (uintptr_t)(result == 0 ? (pointer) : 0), size, device, stream, result))

cudaError_t cudaMalloc(void **out, size_t size) {
    CUdeviceptr address = 0;
    if (!out) return simcuda_result(cudaErrorInvalidValue);
    *out = NULL;
    /* Zero bytes are no error here, unlike in the driver. */
    AROUND("cudaMalloc", address, size, NULL,
           size == 0 ? 0 : cuMemAlloc_v2(&address, size) ?: (*out = (void *)address, 0));
}

cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags) {
    CUdeviceptr address = 0;
    AROUND("cudaMallocManaged", address, size, NULL,
           size == 0 ? CUDA_ERROR_INVALID_VALUE : cuMemAllocManaged(&address, size, flags) ?: (*out = (void *)address, 0));
}

cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height) {
    CUdeviceptr address = 0;
    size_t row = 0;
    AROUND("cudaMallocPitch", address, row * height, NULL,
           cuMemAllocPitch_v2(&address, &row, width, height, 16) ?: (*out = (void *)address, *pitch = row, 0));
}

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *out, struct cudaExtent extent) {
    CUdeviceptr address = 0;
    size_t pitch = 0;
    AROUND("cudaMalloc3D", address, pitch * extent.height * extent.depth, NULL,
           cuMemAllocPitch_v2(&address, &pitch, extent.width, extent.height * extent.depth, 16)
               ?: (*out = (struct cudaPitchedPtr){(void *)address, pitch, extent.width, extent.height}, 0));
}

/* The kind is part of the release: the runtime's cudaFree takes linear, managed and pool memory. */
cudaError_t cudaFree(void *pointer) {
    AROUND("cudaFree", pointer, 0, NULL, pointer ? cuMemFree_v2((CUdeviceptr)pointer) : 0);
}

static cudaError_t host(const char *name, void **out, size_t size, unsigned flags) {
    void *address = NULL;
    AROUND(name, address, size, NULL, size == 0 ? 0 : cuMemHostAlloc(&address, size, flags) ?: (*out = address, 0));
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) { return host("cudaHostAlloc", out, size, flags); }

cudaError_t cudaMallocHost(void **out, size_t size) { return host("cudaMallocHost", out, size, 0); }

cudaError_t cudaFreeHost(void *pointer) {
    AROUND("cudaFreeHost", pointer, 0, NULL, cuMemFreeHost(pointer));
}

cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) {
    AROUND("cudaHostRegister", pointer, size, NULL, cuMemHostRegister_v2(pointer, size, flags));
}

cudaError_t cudaHostUnregister(void *pointer) {
    AROUND("cudaHostUnregister", pointer, 0, NULL, cuMemHostUnregister(pointer));
}

cudaError_t cudaHostGetDevicePointer(void **out, void *pointer, unsigned flags) {
    (void)flags;
    *out = pointer;
    return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *pointer) {
    return simcuda_result((int)cuMemHostGetFlags(flags, pointer));
}

static cudaError_t in_stream_order(const char *name, void **out, size_t size, cudaMemPool_t pool, bool from_pool,
                                   cudaStream_t stream, bool per_thread) {
    CUdeviceptr address = 0;
    AROUND(name, address, size, stream,
           size == 0   ? (*out = NULL, 0)
           : from_pool ? (per_thread ? cuMemAllocFromPoolAsync_ptsz : cuMemAllocFromPoolAsync)(
                             &address, size, (CUmemoryPool)pool, (CUstream)stream)
                             ?: (*out = (void *)address, 0)
                       : (per_thread ? cuMemAllocAsync_ptsz : cuMemAllocAsync)(&address, size, (CUstream)stream)
                             ?: (*out = (void *)address, 0));
}

cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t stream) {
    return in_stream_order("cudaMallocAsync", out, size, NULL, false, stream, false);
}

cudaError_t cudaMallocAsync_ptsz(void **out, size_t size, cudaStream_t stream) {
    return in_stream_order("cudaMallocAsync_ptsz", out, size, NULL, false, stream, true);
}

cudaError_t cudaMallocFromPoolAsync(void **out, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
    return in_stream_order("cudaMallocFromPoolAsync", out, size, pool, true, stream, false);
}

cudaError_t cudaMallocFromPoolAsync_ptsz(void **out, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
    return in_stream_order("cudaMallocFromPoolAsync_ptsz", out, size, pool, true, stream, true);
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    AROUND("cudaFreeAsync", pointer, 0, stream, pointer ? cuMemFreeAsync((CUdeviceptr)pointer, (CUstream)stream) : 0);
}

cudaError_t cudaFreeAsync_ptsz(void *pointer, cudaStream_t stream) {
    AROUND("cudaFreeAsync_ptsz", pointer, 0, stream,
           pointer ? cuMemFreeAsync_ptsz((CUdeviceptr)pointer, (CUstream)stream) : 0);
}

static CUDA_ARRAY3D_DESCRIPTOR descriptor(const struct cudaChannelFormatDesc *format, struct cudaExtent extent) {
    int bits[4] = {format->x, format->y, format->z, format->w}, channels = 0;
    for (int i = 0; i < 4; i++) channels += bits[i] != 0;
    CUarray_format kind = bits[0] <= 8 ? CU_AD_FORMAT_UNSIGNED_INT8
                          : bits[0] <= 16 ? CU_AD_FORMAT_UNSIGNED_INT16
                                          : CU_AD_FORMAT_UNSIGNED_INT32;
    return (CUDA_ARRAY3D_DESCRIPTOR){.Width = extent.width, .Height = extent.height, .Depth = extent.depth,
                                     .Format = kind, .NumChannels = (unsigned)channels};
}

static size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array) {
    size_t element = array->Format == CU_AD_FORMAT_UNSIGNED_INT8 ? 1 : array->Format == CU_AD_FORMAT_UNSIGNED_INT16 ? 2 : 4;
    return array->Width * (array->Height ? array->Height : 1) * (array->Depth ? array->Depth : 1) * element *
           array->NumChannels;
}

cudaError_t cudaMallocArray(cudaArray_t *out, const struct cudaChannelFormatDesc *format, size_t width, size_t height,
                            unsigned flags) {
    CUarray array = NULL;
    CUDA_ARRAY3D_DESCRIPTOR full = descriptor(format, (struct cudaExtent){width, height, 0});
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = width, .Height = height, .Format = full.Format, .NumChannels = full.NumChannels};
    (void)flags;
    AROUND("cudaMallocArray", array, array_bytes(&full), NULL, cuArrayCreate_v2(&array, &flat) ?: (*out = (cudaArray_t)array, 0));
}

cudaError_t cudaMalloc3DArray(cudaArray_t *out, const struct cudaChannelFormatDesc *format, struct cudaExtent extent,
                              unsigned flags) {
    CUarray array = NULL;
    CUDA_ARRAY3D_DESCRIPTOR full = descriptor(format, extent);
    (void)flags;
    AROUND("cudaMalloc3DArray", array, array_bytes(&full), NULL, cuArray3DCreate_v2(&array, &full) ?: (*out = (cudaArray_t)array, 0));
}

cudaError_t cudaFreeArray(cudaArray_t array) {
    AROUND("cudaFreeArray", array, 0, NULL, array ? cuArrayDestroy((CUarray)array) : 0);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    NEEDS_DEVICE("cudaMemGetInfo");
    return simcuda_result((int)cuMemGetInfo_v2(available, total));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *pointer) {
    NEEDS_DEVICE("cudaIpcGetMemHandle");
    return simcuda_result((int)cuIpcGetMemHandle((CUipcMemHandle *)out, (CUdeviceptr)pointer));
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t in, unsigned flags) {
    CUdeviceptr address = 0;
    CUipcMemHandle handle;
    memcpy(&handle, &in, sizeof handle);
    AROUND("cudaIpcOpenMemHandle", address, 0, NULL, cuIpcOpenMemHandle_v2(&address, handle, flags) ?: (*out = (void *)address, 0));
}

cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    AROUND("cudaIpcCloseMemHandle", pointer, 0, NULL, cuIpcCloseMemHandle((CUdeviceptr)pointer));
}

/* The runtime's pool handles, attributes and access descriptions are the driver's. */
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    NEEDS_DEVICE("cudaDeviceGetDefaultMemPool");
    return simcuda_result((int)cuDeviceGetDefaultMemPool((CUmemoryPool *)pool, device));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
    NEEDS_DEVICE("cudaDeviceGetMemPool");
    return simcuda_result((int)cuDeviceGetMemPool((CUmemoryPool *)pool, device));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    NEEDS_DEVICE("cudaDeviceSetMemPool");
    return simcuda_result((int)cuDeviceSetMemPool(device, (CUmemoryPool)pool));
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
    NEEDS_DEVICE("cudaMemPoolCreate");
    CUmemPoolProps same = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                           .location = {.type = (CUmemLocationType)properties->location.type,
                                        .id = properties->location.id}};
    return simcuda_result((int)cuMemPoolCreate((CUmemoryPool *)pool, &same));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return simcuda_result((int)cuMemPoolDestroy((CUmemoryPool)pool)); }

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
    return simcuda_result((int)cuMemPoolTrimTo((CUmemoryPool)pool, keep));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    return simcuda_result((int)cuMemPoolGetAttribute((CUmemoryPool)pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    return simcuda_result((int)cuMemPoolSetAttribute((CUmemoryPool)pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t count) {
    return simcuda_result((int)cuMemPoolSetAccess((CUmemoryPool)pool, (const CUmemAccessDesc *)access, count));
}

cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags *flags, cudaMemPool_t pool, struct cudaMemLocation *location) {
    (void)pool, (void)location;
    *flags = cudaMemAccessFlagsProtReadWrite;
    return cudaSuccess;
}
