/* Addresses, physical memory and mappings of AscendCL, and memory shared between processes. */
#include "simcann.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_BYTES = 65 };

/* What a key was opened as: aclrtIpcMemClose names it by its key. */
struct opened {
    char key[KEY_BYTES];
    void *pointer;
    struct opened *next;
};

static struct opened *opened;

EXPORT aclError aclrtReserveMemAddress(void **pointer, size_t size, size_t alignment, void *wish, uint64_t flags) {
    struct simcann_call call;
    void *address = NULL;
    int result = simcann_begin(&call, "aclrtReserveMemAddress");
    if (result == 0 && (!pointer || size == 0)) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) result = rtReserveMemAddress(&address, size, alignment, wish, flags);
    if (result == 0) *pointer = address;
    return simcann_end(&call, (uintptr_t)address, size, simcann_current_device(), NULL, result);
}

static aclError with_one(const char *function, rtError_t (*with)(void *), void *pointer) {
    struct simcann_call call;
    int result = simcann_begin(&call, function);
    if (result == 0 && !pointer) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) result = with(pointer);
    return simcann_end(&call, (uintptr_t)pointer, 0, simcann_current_device(), NULL, result);
}

EXPORT aclError aclrtReleaseMemAddress(void *pointer) {
    return with_one("aclrtReleaseMemAddress", rtReleaseMemAddress, pointer);
}

EXPORT aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
    return with_one("aclrtFreePhysical", rtFreePhysical, handle);
}

EXPORT aclError aclrtUnmapMem(void *pointer) { return with_one("aclrtUnmapMem", rtUnmapMem, pointer); }

static uint32_t pages(aclrtMemAttr attribute) {
    switch (attribute) {
    case ACL_DDR_MEM_HUGE:
    case ACL_HBM_MEM_HUGE:
    case ACL_DDR_MEM_P2P_HUGE:
    case ACL_HBM_MEM_P2P_HUGE: return MEM_HUGE_PAGE_TYPE;
    case ACL_HBM_MEM_HUGE1G:
    case ACL_HBM_MEM_P2P_HUGE1G: return MEM_GIANT_PAGE_TYPE;
    default: return MEM_NORMAL_PAGE_TYPE;
    }
}

EXPORT aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size, const aclrtPhysicalMemProp *properties,
                                    uint64_t flags) {
    struct simcann_call call;
    void *made = NULL;
    int device = -1, result = simcann_begin(&call, "aclrtMallocPhysical");
    if (result == 0 && (!handle || !properties || size == 0)) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) {
        bool on_device = properties->location.type == ACL_MEM_LOCATION_TYPE_DEVICE;
        rtDrvMemProp_t own = {
            .side = on_device ? MEM_DEV_SIDE : MEM_HOST_SIDE,
            .devid = properties->location.id,
            .module_id = MODULE_APP,
            .pg_type = pages(properties->memAttr),
        };
        device = on_device ? (int)own.devid : -1;
        result = rtMallocPhysical(&made, size, &own, flags);
    }
    if (result == 0) *handle = made;
    return simcann_end(&call, (uintptr_t)made, size, device, NULL, result);
}

EXPORT aclError aclrtMapMem(void *pointer, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtMapMem");
    if (result == 0 && (!pointer || !handle || size == 0)) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) result = rtMapMem(pointer, size, offset, handle, flags);
    return simcann_end(&call, (uintptr_t)pointer, size, simcann_current_device(), NULL, result);
}

EXPORT aclError aclrtMemGetAllocationGranularity(const aclrtPhysicalMemProp *properties, int option,
                                                 size_t *granularity) {
    (void)option;
    if (!properties || !granularity) return ACL_ERROR_INVALID_PARAM;
    *granularity = pages(properties->memAttr) == MEM_GIANT_PAGE_TYPE ? 1ul << 30 : 2ul << 20;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, int type, uint64_t flags,
                                                uint64_t *shareable) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtMemExportToShareableHandle");
    if (result == 0) result = rtMemExportToShareableHandle(handle, type, flags, shareable);
    return simcann_end(&call, (uintptr_t)handle, 0, simcann_current_device(), NULL, result);
}

EXPORT aclError aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t *pids, size_t count) {
    (void)shareable;
    return pids && count != 0 ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORT aclError aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, aclrtDrvMemHandle *handle) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtMemImportFromShareableHandle");
    if (result == 0 && !handle) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) result = rtMemImportFromShareableHandle(shareable, device, handle);
    return simcann_end(&call, result == 0 ? (uintptr_t)*handle : 0, 0, device, NULL, result);
}

EXPORT aclError aclrtDeviceGetBareTgid(int32_t *pid) {
    if (!pid) return ACL_ERROR_INVALID_PARAM;
    *pid = (int32_t)getpid();
    return ACL_SUCCESS;
}

EXPORT aclError aclrtIpcMemGetExportKey(void *pointer, size_t size, char *key, size_t length, uint64_t flags) {
    struct simcann_call call;
    (void)flags;
    int result = simcann_begin(&call, "aclrtIpcMemGetExportKey");
    if (result == 0 && (!pointer || !key || size == 0)) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) result = rtIpcSetMemoryName(pointer, size, key, (uint32_t)length);
    return simcann_end(&call, (uintptr_t)pointer, size, simcann_current_device(), NULL, result);
}

EXPORT aclError aclrtIpcMemSetImportPid(const char *key, int32_t *pids, size_t count) {
    return key && pids && count != 0 ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORT aclError aclrtIpcMemImportByKey(void **pointer, const char *key, uint64_t flags) {
    struct simcann_call call;
    void *memory = NULL;
    (void)flags;
    int result = simcann_begin(&call, "aclrtIpcMemImportByKey");
    if (result == 0 && (!pointer || !key || strlen(key) >= KEY_BYTES)) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) result = rtIpcOpenMemory(&memory, key);
    if (result == 0) {
        struct opened *it = calloc(1, sizeof *it);
        strcpy(it->key, key);
        it->pointer = *pointer = memory;
        it->next = opened;
        opened = it;
    }
    return simcann_end(&call, (uintptr_t)memory, 0, simcann_current_device(), NULL, result);
}

/* Of the owner's key as well as of one that was imported: the owner has nothing to close. */
EXPORT aclError aclrtIpcMemClose(const char *key) {
    struct simcann_call call;
    void *memory = NULL;
    int result = simcann_begin(&call, "aclrtIpcMemClose");
    if (result == 0 && !key) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) {
        struct opened **link = &opened;
        while (*link && strcmp((*link)->key, key) != 0) link = &(*link)->next;
        if (*link) {
            struct opened *gone = *link;
            memory = gone->pointer;
            result = rtIpcCloseMemory(memory);
            *link = gone->next;
            free(gone);
        }
    }
    return simcann_end(&call, (uintptr_t)memory, 0, simcann_current_device(), NULL, result);
}
