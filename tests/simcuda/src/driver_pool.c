/* Stream-ordered memory: pools, cuMemAllocAsync and its relatives.
 *
 * A pool reserves device memory in chunks and keeps it after a free until a synchronisation, where it
 * gives back what exceeds its release threshold. Fragmentation inside a pool is not modelled. */
#include "simcuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK = 32 << 20 };

struct simcuda_pool {
    int device; /* -1: memory of the host */
    size_t used, used_high, reserved, reserved_high;
    uint64_t release_threshold;
    int reuse[3];
    bool is_default, dying;
    size_t live; /* allocations */
    struct simcuda_pool *next;
};

static struct simcuda_pool *pools;
static struct simcuda_pool *default_pools[SIMCUDA_MAX_DEVICES], *current_pools[SIMCUDA_MAX_DEVICES];

static struct simcuda_pool *new_pool(int device) {
    struct simcuda_pool *pool = calloc(1, sizeof *pool);
    pool->device = device;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->next = pools;
    pools = pool;
    return pool;
}

static struct simcuda_pool *default_pool(int device) {
    if (!default_pools[device]) {
        default_pools[device] = new_pool(device);
        default_pools[device]->is_default = true;
    }
    return default_pools[device];
}

static struct simcuda_pool *current_pool(int device) {
    return current_pools[device] ? current_pools[device] : default_pool(device);
}

static struct simcuda_pool *pool_of(CUmemoryPool handle) {
    for (struct simcuda_pool *it = pools; it; it = it->next)
        if ((CUmemoryPool)it == handle) return it;
    return NULL;
}

static void shrink(struct simcuda_pool *pool, size_t keep) {
    size_t wanted = round_up(pool->used, CHUNK);
    if (wanted < keep) wanted = keep;
    if (pool->device < 0 || wanted >= pool->reserved) return;
    simcuda_discharge(pool->device, pool->reserved - wanted);
    pool->reserved = wanted;
}

static void bury(struct simcuda_pool *pool) {
    if (!pool->dying || pool->live != 0) return;
    if (pool->device >= 0) simcuda_discharge(pool->device, pool->reserved);
    struct simcuda_pool **link = &pools;
    while (*link != pool) link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

void simcuda_pools_synchronized(int device) {
    simcuda_lock();
    for (struct simcuda_pool *it = pools; it; it = it->next)
        if (it->device == device || device < 0) shrink(it, it->release_threshold);
    simcuda_unlock();
}

static CUresult reserve(struct simcuda_pool *pool, size_t bytes) {
    if (pool->device < 0) return CUDA_SUCCESS;
    size_t wanted = pool->used + bytes;
    if (wanted <= pool->reserved) return CUDA_SUCCESS;
    size_t generous = round_up(wanted, CHUNK);
    size_t exact = round_up(wanted, 512);
    if (simcuda_charge(pool->device, generous - pool->reserved) == CUDA_SUCCESS) {
        pool->reserved = generous;
    } else if (exact > pool->reserved &&
               simcuda_charge(pool->device, exact - pool->reserved) == CUDA_SUCCESS) {
        pool->reserved = exact;
    } else {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

CUresult simcuda_pool_allocate(struct simcuda_pool *pool, size_t size, uintptr_t *address) {
    uint64_t offset;
    size_t held = round_up(size, 512);
    CUresult result = reserve(pool, held);
    if (result != CUDA_SUCCESS) {
        /* What other pools hold without using it goes first. */
        for (struct simcuda_pool *it = pools; it; it = it->next)
            if (it->device == pool->device && it != pool) shrink(it, 0);
        result = reserve(pool, held);
    }
    void *mapping = NULL;
    size_t mapped = round_up(held, 4096);
    if (pool->device < 0) {
        mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapping == MAP_FAILED) result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (result == CUDA_SUCCESS) {
        result = simcuda_take(pool->device, held, 0, &offset);
    }
    if (result != CUDA_SUCCESS) return result;
    uintptr_t base = mapping ? (uintptr_t)mapping : simcuda_device_address(pool->device, offset);
    struct simcuda_range *range = simcuda_track(base, size, KIND_POOL, pool->device);
    if (!range) abort();
    range->mapping = mapping;
    range->mapping_size = mapped;
    range->offset = mapping ? 0 : offset;
    range->held = held;
    range->owner = pool;
    pool->live++;
    pool->used += held;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    *address = range->base;
    return CUDA_SUCCESS;
}

void simcuda_pool_release(struct simcuda_range *range) {
    struct simcuda_pool *pool = range->owner;
    pool->used -= range->held;
    pool->live--;
    if (range->mapping) munmap(range->mapping, range->mapping_size);
    else simcuda_give_back(range->device, range->offset, range->held);
    simcuda_untrack(range);
    bury(pool);
}

static CUresult allocate(const char *function, CUdeviceptr *out, size_t size, CUmemoryPool handle,
                         bool from_handle, CUstream stream) {
    struct simcuda_call call;
    uintptr_t address = 0;
    CUresult result = (CUresult)simcuda_begin(&call, function);
    int device = simcuda_current_device();
    if (result == CUDA_SUCCESS && device < 0) result = CUDA_ERROR_INVALID_CONTEXT;
    /* The memory is the stream's device's, whatever the thread has selected. */
    if (result == CUDA_SUCCESS && stream) device = simcuda_stream_device(stream);
    if (result == CUDA_SUCCESS && device < 0) result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && (!out || size == 0)) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct simcuda_pool *pool = from_handle ? pool_of(handle) : current_pool(device);
        result = pool ? simcuda_pool_allocate(pool, size, &address) : CUDA_ERROR_INVALID_VALUE;
        if (pool) device = pool->device;
    }
    if (result == CUDA_SUCCESS) *out = address;
    return (CUresult)simcuda_end(&call, address, size, device, stream, result);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream) {
    return allocate("cuMemAllocAsync", out, size, NULL, false, stream);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream) {
    return allocate("cuMemAllocAsync_ptsz", out, size, NULL, false, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
    return allocate("cuMemAllocFromPoolAsync", out, size, pool, true, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
    return allocate("cuMemAllocFromPoolAsync_ptsz", out, size, pool, true, stream);
}

static CUresult release(const char *function, CUdeviceptr pointer, CUstream stream) {
    struct simcuda_call call;
    size_t size = 0;
    CUresult result = (CUresult)simcuda_begin(&call, function);
    int device = simcuda_current_device();
    if (result == CUDA_SUCCESS && pointer != 0) {
        struct simcuda_range *range = simcuda_find(pointer);
        if (range && range->base == pointer && range->kind == KIND_POOL) {
            size = range->size;
            device = range->device;
            simcuda_pool_release(range);
        } else if (range && range->base == pointer && range->kind == KIND_DEVICE) {
            /* Memory of cuMemAlloc may be freed in stream order too. */
            size = range->size;
            device = range->device;
            simcuda_discharge(device, range->size);
            simcuda_give_back(device, range->offset, range->held);
            simcuda_untrack(range);
        } else {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return (CUresult)simcuda_end(&call, pointer, size, device, stream, result);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return release("cuMemFreeAsync", pointer, stream);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return release("cuMemFreeAsync_ptsz", pointer, stream);
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
    if (device < 0 || device >= simcuda_settings()->devices) return CUDA_ERROR_INVALID_DEVICE;
    simcuda_lock();
    *out = (CUmemoryPool)default_pool(device);
    simcuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
    if (device < 0 || device >= simcuda_settings()->devices) return CUDA_ERROR_INVALID_DEVICE;
    simcuda_lock();
    *out = (CUmemoryPool)current_pool(device);
    simcuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    if (device < 0 || device >= simcuda_settings()->devices) return CUDA_ERROR_INVALID_DEVICE;
    simcuda_lock();
    struct simcuda_pool *pool = pool_of(handle);
    if (pool) current_pools[device] = pool;
    simcuda_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties) {
    int error = simcuda_fail("cuMemPoolCreate");
    if (error) return (CUresult)error;
    if (!out || !properties) return CUDA_ERROR_INVALID_VALUE;
    bool of_host = (int)properties->location.type == LOCATION_HOST;
    int device = of_host ? -1 : properties->location.id;
    if (!of_host && (device < 0 || device >= simcuda_settings()->devices)) return CUDA_ERROR_INVALID_VALUE;
    simcuda_lock();
    *out = (CUmemoryPool)new_pool(device);
    simcuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    simcuda_lock();
    struct simcuda_pool *pool = pool_of(handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (pool && !pool->is_default) {
        for (int i = 0; i < SIMCUDA_MAX_DEVICES; i++)
            if (current_pools[i] == pool) current_pools[i] = NULL;
        pool->dying = true;
        bury(pool);
        result = CUDA_SUCCESS;
    }
    simcuda_unlock();
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    simcuda_lock();
    struct simcuda_pool *pool = pool_of(handle);
    if (pool) shrink(pool, keep);
    simcuda_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count) {
    (void)access, (void)count;
    simcuda_lock();
    struct simcuda_pool *pool = pool_of(handle);
    simcuda_unlock();
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    simcuda_lock();
    struct simcuda_pool *pool = pool_of(handle);
    CUresult result = pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (pool) {
        switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: *(int *)value = pool->reuse[0]; break;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: *(int *)value = pool->reuse[1]; break;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = pool->reuse[2]; break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(cuuint64_t *)value = pool->release_threshold; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(cuuint64_t *)value = pool->reserved; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(cuuint64_t *)value = pool->reserved_high; break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(cuuint64_t *)value = pool->used; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = pool->used_high; break;
        default: result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    simcuda_unlock();
    return result;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    simcuda_lock();
    struct simcuda_pool *pool = pool_of(handle);
    CUresult result = pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (pool) {
        switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: pool->reuse[0] = *(int *)value; break;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: pool->reuse[1] = *(int *)value; break;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->reuse[2] = *(int *)value; break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->release_threshold = *(cuuint64_t *)value; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            /* Only a reset is allowed. */
            if (*(cuuint64_t *)value != 0) result = CUDA_ERROR_INVALID_VALUE;
            else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool->used_high = pool->used;
            else pool->reserved_high = pool->reserved;
            break;
        default: result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    simcuda_unlock();
    return result;
}
