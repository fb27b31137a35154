/* Virtual memory management: addresses, physical memory, and the mapping of one into the other.
 * Expandable segments live here. Sharing between processes as well: a name or a number leads to the
 * memory file of the process that owns the memory. */
#include "simcann.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GRANULARITY = 2 << 20 };

/* The user's handle and every mapping hold a reference; memory goes back with the last one. */
struct drv_mem_handle {
    int device; /* -1: host memory */
    uint64_t offset;
    size_t size;
    int references;
    int file; /* -1 unless the memory is another process's, or the host's */
    struct drv_mem_handle *next;
};

/* What a shareable handle leads to: a small memory file of the exporter. */
struct exported {
    int file, device;
    uint64_t offset, size;
};

static struct drv_mem_handle *handles;

static bool known(const drv_mem_handle_t *handle) {
    for (struct drv_mem_handle *it = handles; it; it = it->next)
        if (it == handle) return true;
    return false;
}

static drv_mem_handle_t *new_handle(int device, size_t size) {
    drv_mem_handle_t *handle = calloc(1, sizeof *handle);
    *handle = (drv_mem_handle_t){.device = device, .size = size, .references = 1, .file = -1, .next = handles};
    handles = handle;
    return handle;
}

static void drop(drv_mem_handle_t *handle) {
    if (--handle->references != 0) return;
    struct drv_mem_handle **link = &handles;
    while (*link != handle) link = &(*link)->next;
    *link = handle->next;
    if (handle->file >= 0) {
        close(handle->file);
    } else {
        simcann_discharge(handle->device, handle->size);
        simcann_give_back(handle->device, handle->offset, handle->size);
    }
    free(handle);
}

EXPORT int halMemGetAllocationGranularity(const struct drv_mem_prop *properties, int option, size_t *granularity) {
    (void)option;
    if (!granularity || !properties) return DRV_ERROR_INVALID_VALUE;
    *granularity = properties->pg_type == MEM_GIANT_PAGE_TYPE ? 1ul << 30 : GRANULARITY;
    return DRV_ERROR_NONE;
}

EXPORT int halMemAddressReserve(void **pointer, size_t size, size_t alignment, void *wish, uint64_t flag) {
    struct simcann_call call;
    uintptr_t address = 0;
    (void)wish;
    int result = simcann_begin(&call, "halMemAddressReserve");
    call.flagged = true;
    call.flag = flag;
    if (result == 0 && (!pointer || size == 0)) result = DRV_ERROR_INVALID_VALUE;
    if (result == 0) {
        size = round_up(size, GRANULARITY);
        size_t unit = alignment > GRANULARITY ? alignment : GRANULARITY;
        address = simcann_reserve(size, unit);
        if (address == 0) result = DRV_ERROR_OUT_OF_MEMORY;
        else *pointer = (void *)address;
    }
    return simcann_end(&call, address, size, -1, NULL, result);
}

EXPORT int halMemAddressFree(void *pointer) {
    struct simcann_call call;
    size_t size = 0;
    int result = simcann_begin(&call, "halMemAddressFree");
    if (result == 0) size = simcann_reserved_at((uintptr_t)pointer);
    if (result == 0 && size == 0) result = DRV_ERROR_INVALID_VALUE;
    if (result == 0) simcann_unreserve((uintptr_t)pointer);
    return simcann_end(&call, (uintptr_t)pointer, size, -1, NULL, result);
}

/* The same facts as in the flag of halMemAlloc, so that a log has one form for both. */
static uint64_t as_flag(const struct drv_mem_prop *properties) {
    uint64_t flag = properties->devid & MEM_DEVICE_MASK;
    flag |= (properties->side == MEM_HOST_SIDE ? MEM_SPACE_HOST : MEM_SPACE_DEVICE) << MEM_SPACE_SHIFT;
    if (properties->side != MEM_HOST_SIDE && properties->mem_type == 0) flag |= MEM_TYPE_HBM;
    if (properties->pg_type == MEM_HUGE_PAGE_TYPE) flag |= MEM_PAGE_HUGE;
    if (properties->pg_type == MEM_GIANT_PAGE_TYPE) flag |= MEM_PAGE_GIANT;
    return flag | (uint64_t)(properties->module_id & 0xff) << MEM_MODULE_SHIFT;
}

EXPORT int halMemCreate(drv_mem_handle_t **out, size_t size, const struct drv_mem_prop *properties, uint64_t flag) {
    struct simcann_call call;
    drv_mem_handle_t *handle = NULL;
    uint64_t offset = 0;
    int device = -1, result = simcann_begin(&call, "halMemCreate");
    (void)flag;
    if (result == 0 && (!out || !properties || size == 0 || size % GRANULARITY != 0)) result = DRV_ERROR_INVALID_VALUE;
    if (properties) {
        call.flagged = true;
        call.flag = as_flag(properties);
        if (properties->side != MEM_HOST_SIDE) device = simcann_ordinal((int)properties->devid);
    }
    if (result == 0 && properties->side == MEM_HOST_SIDE) {
        int file = memfd_create("simcann-host", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)size) != 0) {
            if (file >= 0) close(file);
            result = DRV_ERROR_OUT_OF_MEMORY;
        } else {
            handle = new_handle(-1, size);
            handle->file = file;
        }
    } else if (result == 0) {
        if (device < 0) result = DRV_ERROR_INVALID_DEVICE;
        if (result == 0) result = simcann_charge(device, size);
        if (result == 0) {
            result = simcann_take(device, size, GRANULARITY, &offset);
            if (result != 0) simcann_discharge(device, size);
        }
        if (result == 0) {
            handle = new_handle(device, size);
            handle->offset = offset;
        }
    }
    if (result == 0) *out = handle;
    return simcann_end(&call, (uintptr_t)handle, size, device, NULL, result);
}

EXPORT int halMemRelease(drv_mem_handle_t *handle) {
    struct simcann_call call;
    size_t size = 0;
    int device = -1, result = simcann_begin(&call, "halMemRelease");
    if (result == 0 && !known(handle)) result = DRV_ERROR_INVALID_VALUE;
    if (result == 0) {
        size = handle->size;
        device = handle->device;
        drop(handle);
    }
    return simcann_end(&call, (uintptr_t)handle, size, device, NULL, result);
}

EXPORT int halMemMap(void *pointer, size_t size, size_t offset, drv_mem_handle_t *handle, uint64_t flag) {
    struct simcann_call call;
    uintptr_t address = (uintptr_t)pointer;
    int device = -1, result = simcann_begin(&call, "halMemMap");
    call.flagged = true;
    call.flag = flag;
    if (result == 0 && (!known(handle) || size == 0 || offset + size > handle->size || !simcann_is_reserved(address, size)))
        result = DRV_ERROR_INVALID_VALUE;
    if (result == 0) {
        device = handle->device;
        int file = handle->file >= 0 ? handle->file : simcann_device_file(device);
        struct simcann_range *range = simcann_track(address, size, KIND_MAPPED, device);
        if (!range) {
            result = DRV_ERROR_INVALID_VALUE;
        } else if (mmap(pointer, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                        (off_t)(handle->offset + offset)) == MAP_FAILED) {
            simcann_untrack(range);
            result = DRV_ERROR_INNER_ERR;
        } else {
            range->owner = handle;
            handle->references++;
        }
    }
    return simcann_end(&call, address, size, device, NULL, result);
}

EXPORT int halMemUnmap(void *pointer) {
    struct simcann_call call;
    size_t size = 0;
    int device = -1, result = simcann_begin(&call, "halMemUnmap");
    if (result == 0) {
        struct simcann_range *range = simcann_find((uintptr_t)pointer);
        if (!range || range->kind != KIND_MAPPED || range->base != (uintptr_t)pointer) {
            result = DRV_ERROR_INVALID_VALUE;
        } else {
            size = range->size;
            device = range->device;
            /* The addresses stay reserved. */
            mmap(pointer, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            drv_mem_handle_t *handle = range->owner;
            simcann_untrack(range);
            drop(handle);
        }
    }
    return simcann_end(&call, (uintptr_t)pointer, size, device, NULL, result);
}

EXPORT int halMemSetAccess(void *pointer, size_t size, const void *description, size_t count) {
    (void)pointer, (void)size, (void)description, (void)count;
    return DRV_ERROR_NONE;
}

/* ---- sharing between processes ---- */

static int file_of_process(int pid, int file) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, file);
    return open(path, O_RDWR | O_CLOEXEC);
}

EXPORT int halMemExportToShareableHandle(drv_mem_handle_t *handle, int type, uint64_t flags, uint64_t *shareable) {
    struct simcann_call call;
    size_t size = 0;
    int device = -1, result = simcann_begin(&call, "halMemExportToShareableHandle");
    (void)type, (void)flags;
    if (result == 0 && (!shareable || !known(handle))) result = DRV_ERROR_INVALID_VALUE;
    if (result == 0) {
        device = handle->device;
        size = handle->size;
        struct exported exported = {
            .file = handle->file >= 0 ? handle->file : simcann_device_file(device),
            .device = device,
            .offset = handle->offset,
            .size = size,
        };
        /* Stays open until the process ends, as the real one's handle stays valid. */
        int file = memfd_create("simcann-exported", MFD_CLOEXEC);
        if (file < 0 || write(file, &exported, sizeof exported) != sizeof exported) result = DRV_ERROR_INNER_ERR;
        else *shareable = (uint64_t)getpid() << 32 | (uint32_t)file;
    }
    return simcann_end(&call, (uintptr_t)handle, size, device, NULL, result);
}

EXPORT int halMemImportFromShareableHandle(uint64_t shareable, uint32_t device, drv_mem_handle_t **out) {
    struct simcann_call call;
    struct exported exported = {0};
    drv_mem_handle_t *handle = NULL;
    int pid = (int)(shareable >> 32), ordinal = simcann_ordinal((int)device);
    int result = simcann_begin(&call, "halMemImportFromShareableHandle");
    if (result == 0 && (!out || ordinal < 0)) result = DRV_ERROR_INVALID_VALUE;
    if (result == 0) {
        int record = file_of_process(pid, (int)(uint32_t)shareable);
        bool read = record >= 0 && pread(record, &exported, sizeof exported, 0) == sizeof exported;
        if (record >= 0) close(record);
        int file = read ? file_of_process(pid, exported.file) : -1;
        if (file < 0) {
            result = DRV_ERROR_INVALID_VALUE;
        } else {
            handle = new_handle(ordinal, exported.size);
            handle->file = file;
            handle->offset = exported.offset;
            *out = handle;
        }
    }
    return simcann_end(&call, (uintptr_t)handle, exported.size, ordinal, NULL, result);
}

EXPORT int halShmemCreateHandle(uint64_t pointer, uint64_t size, char *name, uint32_t length) {
    struct simcann_call call;
    int device = -1, result = simcann_begin(&call, "halShmemCreateHandle");
    struct simcann_range *range = simcann_find((uintptr_t)pointer);
    if (result == 0 && (!name || !range || range->kind != KIND_DEVICE)) result = DRV_ERROR_INVALID_VALUE;
    if (result == 0) {
        device = range->device;
        /* The key is at most 64 characters. */
        int written = snprintf(name, length, "%x.%x.%llx.%llx", (unsigned)getpid(),
                               (unsigned)simcann_device_file(device),
                               (unsigned long long)(range->offset + (pointer - range->base)), (unsigned long long)size);
        if (written < 0 || (uint32_t)written >= length) result = DRV_ERROR_INVALID_VALUE;
    }
    return simcann_end(&call, (uintptr_t)pointer, size, device, NULL, result);
}

EXPORT int halShmemOpenHandle(const char *name, uint64_t *pointer) {
    struct simcann_call call;
    unsigned pid, file;
    unsigned long long offset, size = 0;
    void *memory = NULL;
    int result = simcann_begin(&call, "halShmemOpenHandle");
    if (result == 0 && (!pointer || sscanf(name, "%x.%x.%llx.%llx", &pid, &file, &offset, &size) != 4))
        result = DRV_ERROR_INVALID_VALUE;
    if (result == 0) {
        int mine = file_of_process((int)pid, (int)file);
        uint64_t first = offset / sim_page() * sim_page(), skipped = offset - first;
        memory = mine < 0 ? MAP_FAILED
                          : mmap(NULL, size + skipped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, mine,
                                 (off_t)first);
        if (mine >= 0) close(mine);
        if (memory == MAP_FAILED) {
            memory = NULL;
            result = DRV_ERROR_INVALID_VALUE;
        } else {
            struct simcann_range *range = simcann_track((uintptr_t)memory + skipped, size, KIND_IPC, 0);
            if (!range) abort();
            range->mapping = memory;
            range->mapping_size = size + skipped;
            *pointer = range->base;
            memory = (void *)range->base;
        }
    }
    return simcann_end(&call, (uintptr_t)memory, size, -1, NULL, result);
}

EXPORT int halShmemCloseHandle(uint64_t pointer) {
    struct simcann_call call;
    size_t size = 0;
    int result = simcann_begin(&call, "halShmemCloseHandle");
    if (result == 0) {
        struct simcann_range *range = simcann_find((uintptr_t)pointer);
        if (!range || range->kind != KIND_IPC || range->base != pointer) {
            result = DRV_ERROR_INVALID_VALUE;
        } else {
            size = range->size;
            munmap(range->mapping, range->mapping_size);
            simcann_untrack(range);
        }
    }
    return simcann_end(&call, (uintptr_t)pointer, size, -1, NULL, result);
}
