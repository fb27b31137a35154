/* cuMemAlloc and its relatives: linear, pitched, managed, pinned and array memory. */
#include "simcuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PITCH = 512, PAGE_BYTES = 4096 };

/* Takes memory of the current device and tracks it. */
static CUresult allocate(size_t size, enum simcuda_kind kind, int device, uintptr_t *address) {
    uint64_t offset;
    CUresult result = simcuda_charge(device, size);
    if (result != CUDA_SUCCESS) return result;
    result = simcuda_take(device, size, 0, &offset);
    if (result != CUDA_SUCCESS) {
        simcuda_discharge(device, size);
        return result;
    }
    struct simcuda_range *range = simcuda_track(simcuda_device_address(device, offset), size, kind, device);
    if (!range) abort();
    range->offset = offset;
    range->held = size;
    range->context = simcuda_current_context();
    *address = range->base;
    return CUDA_SUCCESS;
}

static void release(struct simcuda_range *range) {
    simcuda_discharge(range->device, range->size);
    simcuda_give_back(range->device, range->offset, range->held);
    simcuda_untrack(range);
}

static CUresult check(struct simcuda_call *call, const void *out, size_t size, int device) {
    if (call->injected) return (CUresult)call->injected;
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (!out || size == 0) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
    struct simcuda_call call;
    uintptr_t address = 0;
    simcuda_begin(&call, "cuMemAlloc_v2");
    int device = simcuda_current_device();
    CUresult result = check(&call, out, size, device);
    if (result == CUDA_SUCCESS) result = allocate(size, KIND_DEVICE, device, &address);
    if (result == CUDA_SUCCESS) *out = address;
    return (CUresult)simcuda_end(&call, address, size, device, NULL, result);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                   unsigned element) {
    struct simcuda_call call;
    uintptr_t address = 0;
    size_t row = round_up(width, PITCH), size = row * height;
    (void)element;
    simcuda_begin(&call, "cuMemAllocPitch_v2");
    int device = simcuda_current_device();
    CUresult result = check(&call, pitch ? out : NULL, size, device);
    if (result == CUDA_SUCCESS) result = allocate(size, KIND_DEVICE, device, &address);
    if (result == CUDA_SUCCESS) {
        *out = address;
        *pitch = row;
    }
    return (CUresult)simcuda_end(&call, address, size, device, NULL, result);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags) {
    struct simcuda_call call;
    uintptr_t address = 0;
    simcuda_begin(&call, "cuMemAllocManaged");
    int device = simcuda_current_device();
    CUresult result = check(&call, out, size, device);
    if (result == CUDA_SUCCESS) {
        void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        struct simcuda_range *range = NULL;
        if (memory != MAP_FAILED) range = simcuda_track((uintptr_t)memory, size, KIND_MANAGED, device);
        if (range) {
            range->flags = flags;
            range->mapping = memory;
            range->mapping_size = size;
            range->context = simcuda_current_context();
            *out = address = range->base;
        } else {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return (CUresult)simcuda_end(&call, address, size, device, NULL, result);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct simcuda_call call;
    size_t size = 0;
    int device = simcuda_current_device();
    CUresult result = (CUresult)simcuda_begin(&call, "cuMemFree_v2");
    if (result == CUDA_SUCCESS && pointer != 0) {
        struct simcuda_range *range = simcuda_find(pointer);
        if (!range || range->base != pointer) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            size = range->size;
            device = range->device;
            if (range->kind == KIND_DEVICE) {
                release(range);
            } else if (range->kind == KIND_POOL) {
                simcuda_pool_release(range);
            } else if (range->kind == KIND_MANAGED) {
                munmap(range->mapping, range->mapping_size);
                simcuda_untrack(range);
            } else {
                result = CUDA_ERROR_INVALID_VALUE;
                size = 0;
            }
            /* A synchronous free waits for the device. */
            if (result == CUDA_SUCCESS) simcuda_pools_synchronized(device);
        }
    }
    return (CUresult)simcuda_end(&call, pointer, size, device, NULL, result);
}

static CUresult allocate_host(size_t size, unsigned flags, uintptr_t *address) {
    size_t mapped = round_up(size, PAGE_BYTES);
    void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    struct simcuda_range *range =
        simcuda_track((uintptr_t)memory, size, KIND_HOST, simcuda_current_device());
    if (!range) abort();
    range->flags = flags;
    range->mapping = memory;
    range->mapping_size = mapped;
    range->context = simcuda_current_context();
    *address = range->base;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    struct simcuda_call call;
    uintptr_t address = 0;
    simcuda_begin(&call, "cuMemHostAlloc");
    int device = simcuda_current_device();
    CUresult result = check(&call, out, size, device);
    if (result == CUDA_SUCCESS) result = allocate_host(size, flags, &address);
    if (result == CUDA_SUCCESS) *out = (void *)address;
    return (CUresult)simcuda_end(&call, address, size, device, NULL, result);
}

EXPORT CUresult cuMemAllocHost_v2(void **out, size_t size) {
    struct simcuda_call call;
    uintptr_t address = 0;
    simcuda_begin(&call, "cuMemAllocHost_v2");
    int device = simcuda_current_device();
    CUresult result = check(&call, out, size, device);
    if (result == CUDA_SUCCESS) result = allocate_host(size, 0, &address);
    if (result == CUDA_SUCCESS) *out = (void *)address;
    return (CUresult)simcuda_end(&call, address, size, device, NULL, result);
}

EXPORT CUresult cuMemFreeHost(void *pointer) {
    struct simcuda_call call;
    size_t size = 0;
    CUresult result = (CUresult)simcuda_begin(&call, "cuMemFreeHost");
    if (result == CUDA_SUCCESS && pointer) {
        struct simcuda_range *range = simcuda_find((uintptr_t)pointer);
        if (range && range->kind == KIND_HOST && range->base == (uintptr_t)pointer) {
            size = range->size;
            munmap(range->mapping, range->mapping_size);
            simcuda_untrack(range);
        } else {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return (CUresult)simcuda_end(&call, (uintptr_t)pointer, size, simcuda_current_device(), NULL, result);
}

EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags) {
    struct simcuda_call call;
    simcuda_begin(&call, "cuMemHostRegister_v2");
    int device = simcuda_current_device();
    CUresult result = check(&call, pointer, size, device);
    if (result == CUDA_SUCCESS) {
        struct simcuda_range *range = simcuda_track((uintptr_t)pointer, size, KIND_REGISTERED, device);
        if (range) {
            range->flags = flags;
            range->context = simcuda_current_context();
        } else {
            result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        }
    }
    return (CUresult)simcuda_end(&call, (uintptr_t)pointer, size, device, NULL, result);
}

EXPORT CUresult cuMemHostUnregister(void *pointer) {
    struct simcuda_call call;
    size_t size = 0;
    CUresult result = (CUresult)simcuda_begin(&call, "cuMemHostUnregister");
    if (result == CUDA_SUCCESS) {
        struct simcuda_range *range = simcuda_find((uintptr_t)pointer);
        if (range && range->kind == KIND_REGISTERED && range->base == (uintptr_t)pointer) {
            size = range->size;
            simcuda_untrack(range);
        } else {
            result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        }
    }
    return (CUresult)simcuda_end(&call, (uintptr_t)pointer, size, simcuda_current_device(), NULL, result);
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned flags) {
    (void)flags;
    *out = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *pointer) {
    simcuda_lock();
    struct simcuda_range *range = simcuda_find((uintptr_t)pointer);
    if (range) *flags = range->flags;
    simcuda_unlock();
    return range ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static size_t element_bytes(CUarray_format format) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    default: return 4;
    }
}

static CUresult create_array(const char *function, CUarray *out, size_t width, size_t height,
                             size_t depth, size_t element) {
    struct simcuda_call call;
    uintptr_t address = 0;
    size_t size = width * (height ? height : 1) * (depth ? depth : 1) * element;
    simcuda_begin(&call, function);
    int device = simcuda_current_device();
    CUresult result = check(&call, out, size, device);
    if (result == CUDA_SUCCESS) result = allocate(size, KIND_ARRAY, device, &address);
    if (result == CUDA_SUCCESS) *out = (CUarray)address;
    return (CUresult)simcuda_end(&call, address, size, device, NULL, result);
}

EXPORT CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *array) {
    return create_array("cuArrayCreate_v2", out, array->Width, array->Height, 0,
                        element_bytes(array->Format) * array->NumChannels);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *array) {
    return create_array("cuArray3DCreate_v2", out, array->Width, array->Height, array->Depth,
                        element_bytes(array->Format) * array->NumChannels);
}

EXPORT CUresult cuArrayDestroy(CUarray array) {
    struct simcuda_call call;
    size_t size = 0;
    CUresult result = (CUresult)simcuda_begin(&call, "cuArrayDestroy");
    if (result == CUDA_SUCCESS) {
        struct simcuda_range *range = simcuda_find((uintptr_t)array);
        if (range && range->kind == KIND_ARRAY && range->base == (uintptr_t)array) {
            size = range->size;
            release(range);
        } else {
            result = CUDA_ERROR_INVALID_HANDLE;
        }
    }
    return (CUresult)simcuda_end(&call, (uintptr_t)array, size, simcuda_current_device(), NULL, result);
}

/* Frees a range as the function would that is named in the log. */
static void end(struct simcuda_range *range) {
    struct simcuda_call call = {.function = "cuMemFree_v2"};
    uintptr_t base = range->base;
    size_t size = range->size;
    int device = range->device;
    switch (range->kind) {
    case KIND_DEVICE: release(range); break;
    case KIND_ARRAY: call.function = "cuArrayDestroy", release(range); break;
    case KIND_REGISTERED: call.function = "cuMemHostUnregister", simcuda_untrack(range); break;
    default:
        if (range->kind == KIND_HOST) call.function = "cuMemFreeHost";
        if (range->kind == KIND_IPC) call.function = "cuIpcCloseMemHandle";
        munmap(range->mapping, range->mapping_size);
        simcuda_untrack(range);
    }
    simcuda_log_line(&call, 1, base, size, device, NULL, 0);
}

void simcuda_context_gone(struct simcuda_context *context) {
    simcuda_lock();
    simcuda_each_of(context, end);
    simcuda_unlock();
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    int error = simcuda_fail("cuMemGetInfo_v2");
    if (error) return (CUresult)error;
    int device = simcuda_current_device();
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    simcuda_lock();
    *total = simcuda_settings()->device_bytes[device];
    *available = *total - simcuda_used_bytes(device);
    simcuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    simcuda_lock();
    struct simcuda_range *range = simcuda_find(pointer);
    if (range && base) *base = range->base;
    if (range && size) *size = range->size;
    simcuda_unlock();
    return range ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
