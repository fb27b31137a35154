/* halMemAlloc and its relatives: plain device memory, pinned and registered host memory. */
#include "simcann.h"

#include <stdlib.h>
#include <sys/mman.h>

static int allocate_device(size_t size, uint64_t flag, int device, uintptr_t *address) {
    uint64_t offset;
    size_t alignment = flag & MEM_PAGE_GIANT ? 1ul << 30 : 0;
    int result = simcann_charge(device, size);
    if (result != 0) return result;
    result = simcann_take(device, size, alignment, &offset);
    if (result != 0) {
        simcann_discharge(device, size);
        return result;
    }
    struct simcann_range *range = simcann_track(simcann_device_address(device, offset), size, KIND_DEVICE, device);
    if (!range) abort();
    range->offset = offset;
    range->held = size;
    *address = range->base;
    return DRV_ERROR_NONE;
}

static int allocate_host(size_t size, uintptr_t *address) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return DRV_ERROR_OUT_OF_MEMORY;
    struct simcann_range *range = simcann_track((uintptr_t)memory, size, KIND_HOST, -1);
    if (!range) abort();
    range->mapping = memory;
    range->mapping_size = size;
    *address = range->base;
    return DRV_ERROR_NONE;
}

EXPORT int halMemAlloc(void **pointer, unsigned long long size, unsigned long long flag) {
    struct simcann_call call;
    uintptr_t address = 0;
    bool host = (flag >> MEM_SPACE_SHIFT & 0xf) == MEM_SPACE_HOST;
    int device = host ? -1 : simcann_ordinal((int)(flag & MEM_DEVICE_MASK));
    int result = simcann_begin(&call, "halMemAlloc");
    call.flagged = true;
    call.flag = flag;
    if (result == 0 && (!pointer || size == 0)) result = DRV_ERROR_INVALID_VALUE;
    if (result == 0 && !host && device < 0) result = DRV_ERROR_INVALID_DEVICE;
    if (result == 0) result = host ? allocate_host(size, &address) : allocate_device(size, flag, device, &address);
    if (result == 0) *pointer = (void *)address;
    return simcann_end(&call, address, size, device, NULL, result);
}

EXPORT int halMemFree(void *pointer) {
    struct simcann_call call;
    size_t size = 0;
    int device = -1, result = simcann_begin(&call, "halMemFree");
    if (result == 0) {
        struct simcann_range *range = simcann_find((uintptr_t)pointer);
        if (!range || range->base != (uintptr_t)pointer || (range->kind != KIND_DEVICE && range->kind != KIND_HOST)) {
            result = DRV_ERROR_INVALID_VALUE;
        } else {
            size = range->size;
            device = range->device;
            if (range->kind == KIND_HOST) {
                munmap(range->mapping, range->mapping_size);
            } else {
                simcann_discharge(device, size);
                simcann_give_back(device, range->offset, range->held);
            }
            simcann_untrack(range);
        }
    }
    return simcann_end(&call, (uintptr_t)pointer, size, device, NULL, result);
}

EXPORT int halHostRegister(void *pointer, uint64_t size, uint32_t flag, uint32_t device, void **device_pointer) {
    struct simcann_call call;
    (void)device;
    int result = simcann_begin(&call, "halHostRegister");
    call.flagged = true;
    call.flag = flag;
    if (result == 0 && (!pointer || size == 0)) result = DRV_ERROR_INVALID_VALUE;
    if (result == 0) {
        struct simcann_range *range = simcann_track((uintptr_t)pointer, size, KIND_REGISTERED, -1);
        if (!range) result = DRV_ERROR_INVALID_VALUE;
        else range->flags = flag;
    }
    if (result == 0 && device_pointer) *device_pointer = pointer;
    return simcann_end(&call, (uintptr_t)pointer, size, -1, NULL, result);
}

static int unregister(const char *function, void *pointer) {
    struct simcann_call call;
    size_t size = 0;
    int result = simcann_begin(&call, function);
    if (result == 0) {
        struct simcann_range *range = simcann_find((uintptr_t)pointer);
        if (!range || range->base != (uintptr_t)pointer || range->kind != KIND_REGISTERED) {
            result = DRV_ERROR_INVALID_VALUE;
        } else {
            size = range->size;
            simcann_untrack(range);
        }
    }
    return simcann_end(&call, (uintptr_t)pointer, size, -1, NULL, result);
}

EXPORT int halHostUnregister(void *pointer, uint32_t device) {
    (void)device;
    return unregister("halHostUnregister", pointer);
}

EXPORT int halHostUnregisterEx(void *pointer, uint32_t device, uint32_t flag) {
    (void)device, (void)flag;
    return unregister("halHostUnregisterEx", pointer);
}
