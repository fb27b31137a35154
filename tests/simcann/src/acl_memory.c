/* Memory of AscendCL: each function asks the runtime, as module APP, since it is the program's. */
#include "simcann.h"

#include <string.h>

/* aclrtMalloc adds a unit beside rounding up, aclrtMallocAlign32 only rounds up. */
enum { UNIT = 32 };

static uint32_t type_of(aclrtMemMallocPolicy policy) {
    switch (policy) {
    case ACL_MEM_MALLOC_HUGE_FIRST:
    case ACL_MEM_MALLOC_HUGE_FIRST_P2P: return RT_MEMORY_HBM | RT_MEMORY_POLICY_HUGE_PAGE_FIRST;
    case ACL_MEM_MALLOC_HUGE_ONLY:
    case ACL_MEM_MALLOC_HUGE_ONLY_P2P: return RT_MEMORY_HBM | RT_MEMORY_POLICY_HUGE_PAGE_ONLY;
    case ACL_MEM_MALLOC_NORMAL_ONLY:
    case ACL_MEM_MALLOC_NORMAL_ONLY_P2P: return RT_MEMORY_HBM | RT_MEMORY_POLICY_DEFAULT_PAGE_ONLY;
    case ACL_MEM_MALLOC_HUGE1G_ONLY:
    case ACL_MEM_MALLOC_HUGE1G_ONLY_P2P: return RT_MEMORY_HBM | RT_MEMORY_POLICY_HUGE1G_PAGE_ONLY;
    }
    return RT_MEMORY_HBM;
}

static uint16_t module_of(const aclrtMallocConfig *config) {
    for (size_t i = 0; config && i < config->numAttrs; i++)
        if (config->attrs[i].attr == ACL_RT_MEM_ATTR_MODULE_ID) return config->attrs[i].value.moduleId;
    return MODULE_APP;
}

typedef rtError_t allocator(void **pointer, uint64_t size, uint32_t type, uint16_t module);

static aclError allocate(const char *function, allocator *from, void **pointer, size_t size, size_t padding,
                         uint32_t type, uint16_t module) {
    struct simcann_call call;
    void *memory = NULL;
    int result = simcann_begin(&call, function);
    if (result == 0 && (!pointer || size == 0 || size + padding < size)) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) result = from(&memory, round_up(size + padding, UNIT), type, module);
    if (result == 0) *pointer = memory;
    return simcann_end(&call, (uintptr_t)memory, size, simcann_current_device(), NULL, result);
}

EXPORT aclError aclrtMalloc(void **pointer, size_t size, aclrtMemMallocPolicy policy) {
    return allocate("aclrtMalloc", rtMalloc, pointer, size, UNIT, type_of(policy), MODULE_APP);
}

EXPORT aclError aclrtMallocAlign32(void **pointer, size_t size, aclrtMemMallocPolicy policy) {
    return allocate("aclrtMallocAlign32", rtMalloc, pointer, size, 0, type_of(policy), MODULE_APP);
}

EXPORT aclError aclrtMallocCached(void **pointer, size_t size, aclrtMemMallocPolicy policy) {
    return allocate("aclrtMallocCached", rtMallocCached, pointer, size, UNIT, type_of(policy), MODULE_APP);
}

EXPORT aclError aclrtMallocWithCfg(void **pointer, size_t size, aclrtMemMallocPolicy policy,
                                   aclrtMallocConfig *config) {
    return allocate("aclrtMallocWithCfg", rtMalloc, pointer, size, 0, type_of(policy), module_of(config));
}

EXPORT aclError aclrtMallocForTaskScheduler(void **pointer, size_t size, aclrtMemMallocPolicy policy,
                                            aclrtMallocConfig *config) {
    return allocate("aclrtMallocForTaskScheduler", rtMalloc, pointer, size, 0, type_of(policy) | RT_MEMORY_TS,
                    module_of(config));
}

static rtError_t host(void **pointer, uint64_t size, uint32_t type, uint16_t module) {
    (void)type;
    return rtMallocHost(pointer, size, module);
}

EXPORT aclError aclrtMallocHost(void **pointer, size_t size) {
    return allocate("aclrtMallocHost", host, pointer, size, 0, 0, MODULE_APP);
}

EXPORT aclError aclrtMallocHostWithCfg(void **pointer, uint64_t size, aclrtMallocConfig *config) {
    return allocate("aclrtMallocHostWithCfg", host, pointer, size, 0, 0, module_of(config));
}

static aclError release(const char *function, rtError_t (*with)(void *), void *pointer) {
    struct simcann_call call;
    int result = simcann_begin(&call, function);
    if (result == 0 && !pointer) result = ACL_ERROR_INVALID_PARAM;
    if (result == 0) result = with(pointer);
    return simcann_end(&call, (uintptr_t)pointer, 0, simcann_current_device(), NULL, result);
}

EXPORT aclError aclrtFree(void *pointer) { return release("aclrtFree", rtFree, pointer); }
EXPORT aclError aclrtFreeWithDevSync(void *pointer) {
    return release("aclrtFreeWithDevSync", rtFreeWithDevSync, pointer);
}
EXPORT aclError aclrtFreeHost(void *pointer) { return release("aclrtFreeHost", rtFreeHost, pointer); }
EXPORT aclError aclrtFreeHostWithDevSync(void *pointer) {
    return release("aclrtFreeHostWithDevSync", rtFreeHostWithDevSync, pointer);
}

EXPORT aclError aclrtHostRegister(void *pointer, uint64_t size, int type, void **device_pointer) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtHostRegister");
    if (result == 0) result = rtHostRegister(pointer, size, (uint32_t)type, device_pointer);
    return simcann_end(&call, (uintptr_t)pointer, size, simcann_current_device(), NULL, result);
}

EXPORT aclError aclrtHostRegisterV2(void *pointer, uint64_t size, uint32_t flag) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtHostRegisterV2");
    if (result == 0) result = rtHostRegisterV2(pointer, size, flag);
    return simcann_end(&call, (uintptr_t)pointer, size, simcann_current_device(), NULL, result);
}

EXPORT aclError aclrtHostUnregister(void *pointer) {
    return release("aclrtHostUnregister", rtHostUnregister, pointer);
}

EXPORT aclError aclrtHostGetDevicePointer(void *pointer, void **device_pointer, uint32_t flag) {
    (void)flag;
    if (!pointer || !device_pointer) return ACL_ERROR_INVALID_PARAM;
    *device_pointer = pointer;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtGetMemInfo(aclrtMemAttr attribute, size_t *available, size_t *total) {
    int result = simcann_fail("aclrtGetMemInfo");
    return result != 0 ? result : rtMemGetInfoEx((uint32_t)attribute, available, total);
}

EXPORT aclError aclrtPointerGetAttributes(const void *pointer, aclrtPtrAttributes *attributes) {
    if (!attributes) return ACL_ERROR_INVALID_PARAM;
    memset(attributes, 0, sizeof *attributes);
    attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    simcann_lock();
    struct simcann_range *range = simcann_find((uintptr_t)pointer);
    if (range) {
        bool on_host = range->kind == KIND_HOST || range->kind == KIND_REGISTERED || range->device < 0;
        attributes->location.type = on_host ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_DEVICE;
        attributes->location.id = on_host ? 0 : (uint32_t)range->device;
        attributes->pageSize = 2 << 20;
    }
    simcann_unlock();
    return ACL_SUCCESS;
}

static bool inside(const void *pointer, size_t most, size_t bytes) {
    return bytes == 0 || (pointer && bytes <= most);
}

static aclError copy(const char *function, void *to, size_t most, const void *from, size_t bytes) {
    int result = simcann_fail(function);
    if (result != 0) return result;
    if (!inside(to, most, bytes) || (bytes != 0 && !from)) return ACL_ERROR_INVALID_PARAM;
    if (bytes != 0) simcann_copy(to, from, bytes);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtMemcpy(void *to, size_t most, const void *from, size_t bytes, aclrtMemcpyKind kind) {
    (void)kind;
    return copy("aclrtMemcpy", to, most, from, bytes);
}

EXPORT aclError aclrtMemcpyAsync(void *to, size_t most, const void *from, size_t bytes, aclrtMemcpyKind kind,
                                 aclrtStream stream) {
    (void)kind, (void)stream;
    return copy("aclrtMemcpyAsync", to, most, from, bytes);
}

EXPORT aclError aclrtMemcpyAsyncWithCondition(void *to, size_t most, const void *from, size_t bytes,
                                              aclrtMemcpyKind kind, aclrtStream stream) {
    (void)kind, (void)stream;
    return copy("aclrtMemcpyAsyncWithCondition", to, most, from, bytes);
}

EXPORT aclError aclrtMemcpyBatch(void **to, size_t *most, void **from, size_t *bytes, size_t count, void *attributes,
                                 size_t *indexes, size_t attribute_count, size_t *failed) {
    (void)attributes, (void)indexes, (void)attribute_count;
    for (size_t i = 0; i < count; i++) {
        int result = copy("aclrtMemcpyBatch", to[i], most[i], from[i], bytes[i]);
        if (result != 0) {
            if (failed) *failed = i;
            return result;
        }
    }
    return ACL_SUCCESS;
}

EXPORT aclError aclrtMemcpyBatchAsync(void **to, size_t *most, void **from, size_t *bytes, size_t count,
                                      void *attributes, size_t *indexes, size_t attribute_count, size_t *failed,
                                      aclrtStream stream) {
    (void)stream;
    return aclrtMemcpyBatch(to, most, from, bytes, count, attributes, indexes, attribute_count, failed);
}

EXPORT aclError aclrtMemset(void *pointer, size_t most, int32_t value, size_t bytes) {
    int result = simcann_fail("aclrtMemset");
    if (result != 0) return result;
    if (!inside(pointer, most, bytes)) return ACL_ERROR_INVALID_PARAM;
    if (bytes != 0) simcann_set(pointer, value, bytes);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtMemsetAsync(void *pointer, size_t most, int32_t value, size_t bytes, aclrtStream stream) {
    (void)stream;
    return aclrtMemset(pointer, most, value, bytes);
}

EXPORT aclError aclrtMemcpy2d(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, aclrtMemcpyKind kind) {
    (void)kind;
    if (width > to_pitch || width > from_pitch) return ACL_ERROR_INVALID_PARAM;
    for (size_t row = 0; row < height; row++) {
        int result = copy("aclrtMemcpy2d", (char *)to + row * to_pitch, width, (const char *)from + row * from_pitch,
                          width);
        if (result != 0) return result;
    }
    return ACL_SUCCESS;
}

EXPORT aclError aclrtMemcpy2dAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                   size_t height, aclrtMemcpyKind kind, aclrtStream stream) {
    (void)stream;
    return aclrtMemcpy2d(to, to_pitch, from, from_pitch, width, height, kind);
}

/* Nothing is cached between the program and a device. */
EXPORT aclError aclrtMemFlush(void *pointer, size_t size) {
    return pointer && size != 0 ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORT aclError aclrtMemInvalidate(void *pointer, size_t size) { return aclrtMemFlush(pointer, size); }
