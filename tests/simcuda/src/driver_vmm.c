/* Virtual memory management: addresses, physical memory, and the mapping of one into the other.
 * PyTorch's expandable segments live here. */
#include "simcuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GRANULARITY = 2 << 20 };

/* The user's handle and every mapping hold a reference; memory goes back with the last one. */
struct simcuda_physical {
    int device;
    uint64_t offset;
    size_t size;
    int references;
    int imported_file; /* -1 unless another process owns the memory, or it is the host's (device -1) */
    CUmemAllocationProp properties;
    struct simcuda_physical *next;
};

static struct simcuda_physical *physicals;

static struct simcuda_physical *physical_of(CUmemGenericAllocationHandle handle) {
    for (struct simcuda_physical *it = physicals; it; it = it->next)
        if ((CUmemGenericAllocationHandle)(uintptr_t)it == handle) return it;
    return NULL;
}

static struct simcuda_physical *new_physical(int device, size_t size) {
    struct simcuda_physical *physical = calloc(1, sizeof *physical);
    physical->device = device;
    physical->size = size;
    physical->references = 1;
    physical->imported_file = -1;
    physical->next = physicals;
    physicals = physical;
    return physical;
}

static void drop(struct simcuda_physical *physical) {
    if (--physical->references != 0) return;
    struct simcuda_physical **link = &physicals;
    while (*link != physical) link = &(*link)->next;
    *link = physical->next;
    if (physical->imported_file >= 0) {
        close(physical->imported_file);
    } else {
        simcuda_discharge(physical->device, physical->size);
        simcuda_give_back(physical->device, physical->offset, physical->size);
    }
    free(physical);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                              CUmemAllocationGranularity_flags option) {
    (void)option;
    if (!granularity || !properties) return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish,
                                    unsigned long long flags) {
    struct simcuda_call call;
    uintptr_t address = 0;
    (void)wish;
    CUresult result = (CUresult)simcuda_begin(&call, "cuMemAddressReserve");
    if (result == CUDA_SUCCESS && (!out || size == 0 || size % GRANULARITY != 0 || flags != 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        size_t unit = alignment > GRANULARITY ? alignment : GRANULARITY;
        address = simcuda_reserve(size, unit);
        if (address == 0) result = CUDA_ERROR_OUT_OF_MEMORY;
        else *out = address;
    }
    return (CUresult)simcuda_end(&call, address, size, simcuda_current_device(), NULL, result);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
    struct simcuda_call call;
    CUresult result = (CUresult)simcuda_begin(&call, "cuMemAddressFree");
    if (result == CUDA_SUCCESS && (size == 0 || simcuda_reserved_at(pointer) != size)) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) simcuda_unreserve(pointer);
    return (CUresult)simcuda_end(&call, pointer, size, simcuda_current_device(), NULL, result);
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                            const CUmemAllocationProp *properties, unsigned long long flags) {
    struct simcuda_call call;
    uint64_t offset = 0;
    struct simcuda_physical *physical = NULL;
    bool of_host = properties && (int)properties->location.type == LOCATION_HOST;
    int device = properties && !of_host ? properties->location.id : -1, file = -1;
    CUresult result = (CUresult)simcuda_begin(&call, "cuMemCreate");
    if (result == CUDA_SUCCESS) {
        if (!out || !properties || size == 0 || size % GRANULARITY != 0 || flags != 0)
            result = CUDA_ERROR_INVALID_VALUE;
        else if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE && !of_host)
            result = CUDA_ERROR_NOT_SUPPORTED;
        /* PyTorch asks for a fabric handle first, and takes a file descriptor when it is refused. */
        else if (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
            result = CUDA_ERROR_NOT_SUPPORTED;
        else if (of_host) {
            file = memfd_create("simcuda-host", MFD_CLOEXEC);
            if (file < 0 || ftruncate(file, (off_t)size) != 0) result = CUDA_ERROR_OUT_OF_MEMORY;
        } else if (device < 0 || device >= simcuda_settings()->devices)
            result = CUDA_ERROR_INVALID_DEVICE;
        else
            result = simcuda_charge(device, size);
    }
    if (result == CUDA_SUCCESS && !of_host) {
        result = simcuda_take(device, size, GRANULARITY, &offset);
        if (result != CUDA_SUCCESS) simcuda_discharge(device, size);
    }
    if (result == CUDA_SUCCESS) {
        physical = new_physical(device, size);
        physical->offset = offset;
        physical->imported_file = file;
        physical->properties = *properties;
        *out = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    }
    return (CUresult)simcuda_end(&call, (uintptr_t)physical, size, device, NULL, result);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct simcuda_call call;
    size_t size = 0;
    int device = -1;
    CUresult result = (CUresult)simcuda_begin(&call, "cuMemRelease");
    if (result == CUDA_SUCCESS) {
        struct simcuda_physical *physical = physical_of(handle);
        if (physical) {
            size = physical->size;
            device = physical->device;
            drop(physical);
        } else {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return (CUresult)simcuda_end(&call, (uintptr_t)handle, size, device, NULL, result);
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    struct simcuda_call call;
    int device = -1;
    CUresult result = (CUresult)simcuda_begin(&call, "cuMemMap");
    struct simcuda_physical *physical = physical_of(handle);
    if (result == CUDA_SUCCESS) {
        if (!physical || flags != 0 || offset != 0 || size == 0 || size % GRANULARITY != 0 ||
            (physical->size != 0 && size > physical->size) || !simcuda_is_reserved(pointer, size))
            result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        device = physical->device;
        struct simcuda_range *range = simcuda_track(pointer, size, KIND_MAPPED, device);
        if (!range) {
            result = CUDA_ERROR_INVALID_VALUE; /* mapped already */
        } else {
            int file = physical->imported_file >= 0 ? physical->imported_file : simcuda_device_file(device);
            void *at = mmap((void *)pointer, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file,
                            (off_t)physical->offset);
            if (at == MAP_FAILED) {
                simcuda_untrack(range);
                result = CUDA_ERROR_OPERATING_SYSTEM;
            } else {
                range->owner = physical;
                physical->references++;
            }
        }
    }
    return (CUresult)simcuda_end(&call, pointer, size, device, NULL, result);
}

/* Walks the mappings that make up [pointer, pointer + size); they must cover it exactly. */
static CUresult each_mapping(uintptr_t pointer, size_t size, bool (*visit)(struct simcuda_range *)) {
    uintptr_t at = pointer, end = pointer + size;
    while (at < end) {
        struct simcuda_range *range = simcuda_find(at);
        if (!range || range->kind != KIND_MAPPED || range->base != at || range->base + range->size > end)
            return CUDA_ERROR_INVALID_VALUE;
        at += range->size;
        if (visit && !visit(range)) return CUDA_ERROR_OPERATING_SYSTEM;
    }
    return size == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static bool unmap(struct simcuda_range *range) {
    void *base = (void *)range->base;
    if (mmap(base, range->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != base)
        return false;
    drop(range->owner);
    simcuda_untrack(range);
    return true;
}

static bool allow_access(struct simcuda_range *range) {
    return mprotect((void *)range->base, range->size, PROT_READ | PROT_WRITE) == 0;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
    struct simcuda_call call;
    CUresult result = (CUresult)simcuda_begin(&call, "cuMemUnmap");
    struct simcuda_range *first = simcuda_find(pointer);
    int device = first ? first->device : -1;
    if (result == CUDA_SUCCESS) result = each_mapping(pointer, size, NULL);
    if (result == CUDA_SUCCESS) result = each_mapping(pointer, size, unmap);
    return (CUresult)simcuda_end(&call, pointer, size, device, NULL, result);
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count) {
    int error = simcuda_fail("cuMemSetAccess");
    if (error) return (CUresult)error;
    if (!access || count == 0) return CUDA_ERROR_INVALID_VALUE;
    simcuda_lock();
    CUresult result = each_mapping(pointer, size, allow_access);
    simcuda_unlock();
    return result;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer) {
    (void)location;
    simcuda_lock();
    struct simcuda_range *range = simcuda_find(pointer);
    simcuda_unlock();
    *flags = range ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
    simcuda_lock();
    struct simcuda_range *range = simcuda_find((uintptr_t)address);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (range && range->kind == KIND_MAPPED) {
        struct simcuda_physical *physical = range->owner;
        physical->references++;
        *out = (CUmemGenericAllocationHandle)(uintptr_t)physical;
        result = CUDA_SUCCESS;
    }
    simcuda_unlock();
    return result;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out,
                                                       CUmemGenericAllocationHandle handle) {
    simcuda_lock();
    struct simcuda_physical *physical = physical_of(handle);
    if (physical) *out = physical->properties;
    simcuda_unlock();
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The descriptor is a new opening of the device's memory file, and its file position says where the
 * memory starts: the position travels with the descriptor into another process. */
EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type, unsigned long long flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    simcuda_lock();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct simcuda_physical *physical = physical_of(handle);
    if (physical) {
        char path[64];
        int source = physical->imported_file >= 0 ? physical->imported_file : simcuda_device_file(physical->device);
        snprintf(path, sizeof path, "/proc/self/fd/%d", source);
        int file = open(path, O_RDWR | O_CLOEXEC);
        if (file >= 0 && lseek(file, (off_t)physical->offset, SEEK_SET) >= 0) {
            *(int *)out = file;
            result = CUDA_SUCCESS;
        } else {
            result = CUDA_ERROR_OPERATING_SYSTEM;
        }
    }
    simcuda_unlock();
    return result;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle,
                                               CUmemAllocationHandleType type) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    int file = fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 200);
    if (file < 0) return CUDA_ERROR_INVALID_VALUE;
    off_t offset = lseek(file, 0, SEEK_CUR);
    if (offset < 0) {
        close(file);
        return CUDA_ERROR_INVALID_VALUE;
    }
    simcuda_lock();
    int device = simcuda_current_device();
    struct simcuda_physical *physical = new_physical(device < 0 ? 0 : device, 0);
    physical->imported_file = file;
    physical->offset = (uint64_t)offset;
    physical->properties = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = physical->device},
    };
    *out = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    simcuda_unlock();
    return CUDA_SUCCESS;
}
