/* Memory of the runtime: each function asks the HAL. */
#include "simcann.h"

#include <stdio.h>

static uint64_t with_module(uint64_t flag, uint16_t module) {
    return flag | (uint64_t)(module & 0xff) << MEM_MODULE_SHIFT;
}

/* The runtime takes huge pages where the policy wants them, or has no opinion and the memory is large. */
static uint64_t pages(uint64_t size, uint32_t type) {
    if (type & RT_MEMORY_POLICY_HUGE1G_PAGE_ONLY) return MEM_PAGE_GIANT;
    if (type & RT_MEMORY_POLICY_HUGE_PAGE_ONLY) return MEM_PAGE_HUGE;
    if (type & RT_MEMORY_POLICY_DEFAULT_PAGE_ONLY) return 0;
    return size > 1 << 20 ? MEM_PAGE_HUGE : 0;
}

static rtError_t allocate(const char *function, void **pointer, uint64_t size, uint32_t type, uint16_t module) {
    struct simcann_call call;
    void *memory = NULL;
    int device = simcann_current_device();
    int result = simcann_begin(&call, function);
    if (result == 0 && !pointer) result = ACL_ERROR_RT_PARAM_INVALID;
    if (result == 0 && device < 0) result = ACL_ERROR_RT_CONTEXT_NULL;
    if (result == 0) {
        uint64_t flag = MEM_SPACE_DEVICE << MEM_SPACE_SHIFT | MEM_TYPE_HBM | pages(size, type);
        flag |= (uint64_t)simcann_physical(device);
        result = simcann_error(halMemAlloc(&memory, size, with_module(flag, module)));
    }
    if (result == 0) *pointer = memory;
    return simcann_end(&call, (uintptr_t)memory, size, device, NULL, result);
}

EXPORT rtError_t rtMalloc(void **pointer, uint64_t size, uint32_t type, uint16_t module) {
    return allocate("rtMalloc", pointer, size, type, module);
}

EXPORT rtError_t rtMallocCached(void **pointer, uint64_t size, uint32_t type, uint16_t module) {
    return allocate("rtMallocCached", pointer, size, type, module);
}

static rtError_t release(const char *function, void *pointer) {
    struct simcann_call call;
    int result = simcann_begin(&call, function);
    if (result == 0 && !pointer) result = ACL_ERROR_RT_PARAM_INVALID;
    if (result == 0) result = simcann_error(halMemFree(pointer));
    return simcann_end(&call, (uintptr_t)pointer, 0, simcann_current_device(), NULL, result);
}

EXPORT rtError_t rtFree(void *pointer) { return release("rtFree", pointer); }
EXPORT rtError_t rtFreeWithDevSync(void *pointer) { return release("rtFreeWithDevSync", pointer); }
EXPORT rtError_t rtFreeHost(void *pointer) { return release("rtFreeHost", pointer); }
EXPORT rtError_t rtFreeHostWithDevSync(void *pointer) { return release("rtFreeHostWithDevSync", pointer); }

EXPORT rtError_t rtMallocHost(void **pointer, uint64_t size, uint16_t module) {
    struct simcann_call call;
    void *memory = NULL;
    int result = simcann_begin(&call, "rtMallocHost");
    if (result == 0 && !pointer) result = ACL_ERROR_RT_PARAM_INVALID;
    if (result == 0) {
        int physical = simcann_physical(simcann_current_device());
        uint64_t flag = MEM_SPACE_HOST << MEM_SPACE_SHIFT | (uint64_t)(physical < 0 ? 0 : physical);
        result = simcann_error(halMemAlloc(&memory, size, with_module(flag, module)));
    }
    if (result == 0) *pointer = memory;
    return simcann_end(&call, (uintptr_t)memory, size, simcann_current_device(), NULL, result);
}

static rtError_t register_host(const char *function, void *pointer, uint64_t size, uint32_t flag, void **mapped) {
    struct simcann_call call;
    int physical = simcann_physical(simcann_current_device());
    int result = simcann_begin(&call, function);
    if (result == 0)
        result = simcann_error(halHostRegister(pointer, size, flag, (uint32_t)(physical < 0 ? 0 : physical), mapped));
    return simcann_end(&call, (uintptr_t)pointer, size, simcann_current_device(), NULL, result);
}

EXPORT rtError_t rtHostRegister(void *pointer, uint64_t size, uint32_t type, void **device_pointer) {
    return register_host("rtHostRegister", pointer, size, type, device_pointer);
}

EXPORT rtError_t rtHostRegisterV2(void *pointer, uint64_t size, uint32_t flag) {
    return register_host("rtHostRegisterV2", pointer, size, flag, NULL);
}

EXPORT rtError_t rtHostUnregister(void *pointer) {
    struct simcann_call call;
    int physical = simcann_physical(simcann_current_device());
    int result = simcann_begin(&call, "rtHostUnregister");
    if (result == 0) result = simcann_error(halHostUnregister(pointer, (uint32_t)(physical < 0 ? 0 : physical)));
    return simcann_end(&call, (uintptr_t)pointer, 0, simcann_current_device(), NULL, result);
}

EXPORT rtError_t rtMemGetInfoEx(uint32_t type, size_t *available, size_t *total) {
    (void)type;
    int device = simcann_current_device(), result = simcann_fail("rtMemGetInfoEx");
    if (result != 0) return result;
    if (device < 0) return ACL_ERROR_RT_CONTEXT_NULL;
    if (!available || !total) return ACL_ERROR_RT_PARAM_INVALID;
    simcann_lock();
    *total = simcann_settings()->device_bytes[device];
    *available = *total - simcann_used_bytes(device);
    simcann_unlock();
    return ACL_SUCCESS;
}

EXPORT rtError_t rtReserveMemAddress(void **pointer, size_t size, size_t alignment, void *wish, uint64_t flags) {
    struct simcann_call call;
    void *address = NULL;
    int result = simcann_begin(&call, "rtReserveMemAddress");
    if (result == 0 && !pointer) result = ACL_ERROR_RT_PARAM_INVALID;
    if (result == 0) result = simcann_error(halMemAddressReserve(&address, size, alignment, wish, flags));
    if (result == 0) *pointer = address;
    return simcann_end(&call, (uintptr_t)address, size, simcann_current_device(), NULL, result);
}

EXPORT rtError_t rtReleaseMemAddress(void *pointer) {
    struct simcann_call call;
    int result = simcann_begin(&call, "rtReleaseMemAddress");
    if (result == 0) result = simcann_error(halMemAddressFree(pointer));
    return simcann_end(&call, (uintptr_t)pointer, 0, simcann_current_device(), NULL, result);
}

EXPORT rtError_t rtMallocPhysical(void **handle, size_t size, rtDrvMemProp_t *properties, uint64_t flags) {
    struct simcann_call call;
    drv_mem_handle_t *made = NULL;
    int device = -1, result = simcann_begin(&call, "rtMallocPhysical");
    if (result == 0 && (!handle || !properties)) result = ACL_ERROR_RT_PARAM_INVALID;
    if (result == 0) {
        struct drv_mem_prop own = {properties->side,    properties->devid,    properties->module_id,
                                   properties->pg_type, properties->mem_type, properties->reserve};
        device = (int)own.devid;
        if (own.side != MEM_HOST_SIDE) own.devid = (uint32_t)simcann_physical(device);
        result = simcann_error(halMemCreate(&made, size, &own, flags));
    }
    if (result == 0) *handle = made;
    return simcann_end(&call, (uintptr_t)made, size, device, NULL, result);
}

EXPORT rtError_t rtFreePhysical(void *handle) {
    struct simcann_call call;
    int result = simcann_begin(&call, "rtFreePhysical");
    if (result == 0) result = simcann_error(halMemRelease(handle));
    return simcann_end(&call, (uintptr_t)handle, 0, simcann_current_device(), NULL, result);
}

EXPORT rtError_t rtMapMem(void *pointer, size_t size, size_t offset, void *handle, uint64_t flags) {
    struct simcann_call call;
    int result = simcann_begin(&call, "rtMapMem");
    if (result == 0) result = simcann_error(halMemMap(pointer, size, offset, handle, flags));
    return simcann_end(&call, (uintptr_t)pointer, size, simcann_current_device(), NULL, result);
}

EXPORT rtError_t rtUnmapMem(void *pointer) {
    struct simcann_call call;
    int result = simcann_begin(&call, "rtUnmapMem");
    if (result == 0) result = simcann_error(halMemUnmap(pointer));
    return simcann_end(&call, (uintptr_t)pointer, 0, simcann_current_device(), NULL, result);
}

EXPORT rtError_t rtMemExportToShareableHandle(void *handle, int type, uint64_t flags, uint64_t *shareable) {
    return simcann_error(halMemExportToShareableHandle(handle, type, flags, shareable));
}

EXPORT rtError_t rtMemImportFromShareableHandle(uint64_t shareable, int32_t device, void **handle) {
    int physical = simcann_physical(device);
    if (physical < 0) return ACL_ERROR_RT_INVALID_DEVICEID;
    return simcann_error(halMemImportFromShareableHandle(shareable, (uint32_t)physical, (drv_mem_handle_t **)handle));
}

EXPORT rtError_t rtIpcSetMemoryName(const void *pointer, uint64_t size, char *name, uint32_t length) {
    return simcann_error(halShmemCreateHandle((uintptr_t)pointer, size, name, length));
}

EXPORT rtError_t rtIpcOpenMemory(void **pointer, const char *name) {
    uint64_t address = 0;
    if (!pointer || !name) return ACL_ERROR_RT_PARAM_INVALID;
    int result = simcann_error(halShmemOpenHandle(name, &address));
    if (result == 0) *pointer = (void *)(uintptr_t)address;
    return result;
}

EXPORT rtError_t rtIpcCloseMemory(const void *pointer) {
    return simcann_error(halShmemCloseHandle((uintptr_t)pointer));
}
