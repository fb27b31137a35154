/* Checks the simulated AscendCL, runtime and HAL from plain C. `cargo xtask sim --device npu --self-test` builds
 * it and runs it once for each name in `tests` at the end, with two devices of 1 GiB and 512 MiB. */
#include "selftest.h"

#include <sys/wait.h>
#include <unistd.h>

#include <acl.h>

/* What the runtime takes for itself: for a device that is opened, and for a stream. */
enum { OF_DEVICE = 512 << 10, OF_STREAM = 16 << 10 };

static const char *program;

static size_t used(void) {
    size_t available, total;
    OK(aclrtGetMemInfo(ACL_HBM_MEM, &available, &total));
    return total - available;
}

static void linear(void) {
    void *a = NULL, *b = NULL, *c = NULL, *none = NULL;
    OK(aclInit(NULL));
    FAILS(aclInit(NULL), ACL_ERROR_REPEAT_INITIALIZE);
    FAILS(aclrtMalloc(&a, 100, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    OK(aclrtSetDevice(0));
    CHECK(used() == OF_DEVICE);
    OK(aclrtMalloc(&a, 100, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(used() == OF_DEVICE + 160);
    OK(aclrtMallocAlign32(&b, 64 * MIB, ACL_MEM_MALLOC_HUGE_ONLY));
    CHECK(used() == OF_DEVICE + 160 + 64 * MIB);
    OK(aclrtMallocWithCfg(&c, 4096, ACL_MEM_MALLOC_NORMAL_ONLY, NULL));
    CHECK(a && b && c && a != b && (uintptr_t)b % (2 * MIB) == 0);
    FAILS(aclrtMalloc(&none, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
    FAILS(aclrtMalloc(&none, 2048ul * MIB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
    CHECK(none == NULL);
    FAILS(aclrtFree((char *)b + 512), ACL_ERROR_RT_PARAM_INVALID);

    char in[4096], out[4096];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (char)(i * 7);
    OK(aclrtMemcpy(b, 64 * MIB, in, sizeof in, ACL_MEMCPY_HOST_TO_DEVICE));
    OK(aclrtMemcpyAsync((char *)b + 8192, sizeof in, b, sizeof in, ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
    OK(aclrtMemcpy(out, sizeof out, (char *)b + 8192, sizeof out, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(memcmp(in, out, sizeof in) == 0);
    FAILS(aclrtMemcpy(out, 10, b, 11, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_INVALID_PARAM);
    OK(aclrtMemset(b, 64 * MIB, 0, 64 * MIB));
    OK(aclrtMemcpy(out, sizeof out, b, sizeof out, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(out[0] == 0 && out[100] == 0 && out[4095] == 0);

    aclrtPtrAttributes attributes;
    OK(aclrtPointerGetAttributes((char *)b + 1000, &attributes));
    CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_DEVICE && attributes.location.id == 0);
    OK(aclrtPointerGetAttributes(in, &attributes));
    CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_UNREGISTERED);

    OK(aclrtFree(a));
    OK(aclrtFree(b));
    OK(aclrtFreeWithDevSync(c));
    FAILS(aclrtFree(b), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(used() == OF_DEVICE);
    OK(aclrtMallocCached(&a, MIB, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtMallocForTaskScheduler(&b, MIB, ACL_MEM_MALLOC_HUGE_FIRST, NULL));
    OK(aclrtFree(a));
    OK(aclrtFree(b));
    OK(aclFinalize());
}

static void host(void) {
    void *pinned, *with, *mapped, *own = malloc(8192);
    OK(aclrtSetDevice(0));
    OK(aclrtMallocHost(&pinned, 10000));
    memset(pinned, 1, 10000);
    aclrtMallocAttribute attribute = {.attr = ACL_RT_MEM_ATTR_MODULE_ID, .value.moduleId = MODULE_HCCL};
    aclrtMallocConfig config = {&attribute, 1};
    OK(aclrtMallocHostWithCfg(&with, MIB, &config));
    aclrtPtrAttributes attributes;
    OK(aclrtPointerGetAttributes(with, &attributes));
    CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_HOST);
    OK(aclrtHostRegister(own, 4096, 0, &mapped));
    CHECK(mapped == own);
    FAILS(aclrtHostRegisterV2(own, 4096, ACL_HOST_REG_PINNED), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtHostUnregister(own));
    FAILS(aclrtHostUnregister(own), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtHostRegisterV2(own, 4096, ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED));
    OK(aclrtHostUnregister(own));
    CHECK(used() == OF_DEVICE);
    OK(aclrtFreeHost(pinned));
    OK(aclrtFreeHostWithDevSync(with));
    FAILS(aclrtFreeHost(with), ACL_ERROR_RT_PARAM_INVALID);
    free(own);
}

static void vmm(void) {
    aclrtPhysicalMemProp properties = {
        .memAttr = ACL_HBM_MEM_HUGE, .location = {.id = 0, .type = ACL_MEM_LOCATION_TYPE_DEVICE}};
    aclrtDrvMemHandle first, second, other;
    void *space;
    size_t granularity;
    OK(aclrtSetDevice(0));
    OK(aclrtMemGetAllocationGranularity(&properties, 0, &granularity));
    CHECK(granularity == 2 * MIB);
    OK(aclrtReserveMemAddress(&space, 64 * MIB, 0, NULL, 1));
    CHECK((uintptr_t)space % (2 * MIB) == 0);
    FAILS(aclrtMallocPhysical(&first, MIB, &properties, 0), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtMallocPhysical(&first, 20 * MIB, &properties, 0));
    OK(aclrtMallocPhysical(&second, 20 * MIB, &properties, 0));
    CHECK(used() == OF_DEVICE + 40 * MIB);
    FAILS(aclrtMallocPhysical(&other, 1024ul * MIB, &properties, 0), ACL_ERROR_RT_MEMORY_ALLOCATION);
    OK(aclrtMapMem(space, 20 * MIB, 0, first, 0));
    OK(aclrtMapMem((char *)space + 20 * MIB, 20 * MIB, 0, second, 0));
    FAILS(aclrtMapMem((char *)space + 10 * MIB, 20 * MIB, 0, first, 0), ACL_ERROR_RT_PARAM_INVALID);
    strcpy((char *)space + 20 * MIB - 3, "across");
    OK(aclrtFreePhysical(first));
    CHECK(used() == OF_DEVICE + 40 * MIB);
    FAILS(aclrtUnmapMem((char *)space + 2 * MIB), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtUnmapMem(space));
    OK(aclrtFreePhysical(second));
    OK(aclrtUnmapMem((char *)space + 20 * MIB));
    /* The handle went while the mapping stayed, so this was the last one. */
    FAILS(aclrtFreePhysical(first), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(used() == OF_DEVICE);
    OK(aclrtReleaseMemAddress(space));
    FAILS(aclrtReleaseMemAddress(space), ACL_ERROR_RT_PARAM_INVALID);

    properties.location.id = 1;
    OK(aclrtMallocPhysical(&other, 20 * MIB, &properties, 0));
    CHECK(used() == OF_DEVICE);
    OK(aclrtSetDevice(1));
    CHECK(used() == OF_DEVICE + 20 * MIB);
    OK(aclrtFreePhysical(other));
    properties.location.type = ACL_MEM_LOCATION_TYPE_HOST;
    OK(aclrtMallocPhysical(&other, 20 * MIB, &properties, 0));
    CHECK(used() == OF_DEVICE);
    OK(aclrtFreePhysical(other));
}

static void devices(void) {
    uint32_t count;
    int32_t device;
    void *pointer;
    aclrtContext primary, own, now;
    OK(aclrtGetDeviceCount(&count));
    CHECK(count == 2);
    FAILS(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
    FAILS(aclrtSetDevice(2), ACL_ERROR_RT_INVALID_DEVICEID);
    OK(aclrtSetDevice(1));
    OK(aclrtGetDevice(&device));
    CHECK(device == 1);
    OK(aclrtGetCurrentContext(&primary));
    OK(aclrtMalloc(&pointer, 100 * MIB, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtCreateContext(&own, 0));
    OK(aclrtGetDevice(&device));
    CHECK(device == 0 && used() == OF_DEVICE);
    OK(aclrtSetCurrentContext(primary));
    OK(aclrtGetCurrentContext(&now));
    CHECK(now == primary && used() > 100 * MIB);
    OK(aclrtDestroyContext(own));
    FAILS(aclrtSetCurrentContext(own), ACL_ERROR_RT_PARAM_INVALID);
    int32_t active;
    OK(aclrtGetPrimaryCtxState(1, NULL, &active));
    CHECK(active == 1);
    OK(aclrtResetDevice(1));
    OK(aclrtGetPrimaryCtxState(1, NULL, &active));
    CHECK(active == 0);
    FAILS(aclrtGetCurrentContext(&now), ACL_ERROR_RT_CONTEXT_NULL);
    OK(aclrtSetDevice(0));
    OK(aclrtFree(pointer));
    CHECK(strcmp(aclrtGetSocName(), "Ascend910B1") == 0);
}

static void streams(void) {
    aclrtStream stream;
    aclrtEvent event, later;
    int status = -1;
    float milliseconds;
    void *pointer;
    OK(aclrtSetDevice(0));
    OK(aclrtCreateStreamWithConfig(&stream, 0, 0));
    CHECK(used() == OF_DEVICE + OF_STREAM);
    OK(aclrtCreateEventExWithFlag(&event, 8));
    OK(aclrtCreateEvent(&later));
    OK(aclrtQueryEventStatus(event, &status));
    CHECK(status == 0);
    OK(aclrtRecordEvent(event, stream));
    OK(aclrtQueryEventStatus(event, &status));
    CHECK(status == 0);
    OK(aclrtSynchronizeEvent(event));
    OK(aclrtQueryEventStatus(event, &status));
    CHECK(status == 1);
    OK(aclrtRecordEvent(later, stream));
    OK(aclrtStreamWaitEvent(NULL, later));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtQueryEventStatus(later, &status));
    CHECK(status == 1);
    OK(aclrtEventElapsedTime(&milliseconds, event, later));
    CHECK(milliseconds > 0);
    OK(aclrtMalloc(&pointer, MIB, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtMemsetAsync(pointer, MIB, 1, MIB, stream));
    OK(aclrtLaunchKernel(pointer, 1, NULL, 0, stream));
    OK(aclrtLaunchKernelWithConfig(pointer, 1, stream, NULL, NULL, NULL));
    OK(aclrtFree(pointer));
    OK(aclrtDestroyEvent(event));
    OK(aclrtDestroyEvent(later));
    OK(aclrtDestroyStream(stream));
    FAILS(aclrtDestroyStream(stream), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(used() == OF_DEVICE);
}

/* The layers below, called by themselves. */
static void below(void) {
    void *pointer = NULL;
    uint64_t flag = MEM_SPACE_DEVICE << MEM_SPACE_SHIFT | MEM_PAGE_HUGE | 1 | (uint64_t)MODULE_OP << MEM_MODULE_SHIFT;
    OK(halMemAlloc(&pointer, 4 * MIB, flag));
    FAILS(halMemAlloc(&pointer, 1024ul * MIB, flag), DRV_ERROR_OUT_OF_MEMORY);
    FAILS(halMemAlloc(&pointer, MIB, flag + 1), DRV_ERROR_INVALID_DEVICE);
    OK(halMemFree(pointer));
    FAILS(halMemFree(pointer), DRV_ERROR_INVALID_VALUE);
    OK(rtSetDevice(0));
    OK(rtMalloc(&pointer, MIB, RT_MEMORY_HBM, MODULE_ASCENDCL));
    CHECK(used() == OF_DEVICE + MIB);
    OK(rtKernelLaunch(NULL, 1, NULL, 0, NULL, NULL));
    OK(rtKernelLaunchWithFlagV2(NULL, 1, NULL, NULL, NULL, 0, NULL));
    OK(rtFree(pointer));
    OK(rtDeviceReset(0));
}

static void forked(void) {
    void *pointer;
    int status;
    OK(aclrtSetDevice(0));
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        FAILS(aclrtMalloc(&pointer, MIB, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
        FAILS(aclrtSetDevice(1), ACL_ERROR_RT_CONTEXT_NULL);
        _exit(failures);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(aclrtMalloc(&pointer, MIB, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtFree(pointer));
}

/* The reader of `ipc`: a key, or the number of a shareable handle. */
static void ipc_reader(const char *key, const char *shareable) {
    void *pointer = NULL, *space;
    aclrtDrvMemHandle handle;
    OK(aclrtSetDevice(0));
    OK(aclrtIpcMemImportByKey(&pointer, key, 0));
    CHECK(strcmp(pointer, "by key") == 0);
    CHECK(used() == OF_DEVICE);
    OK(aclrtIpcMemClose(key));
    OK(aclrtMemImportFromShareableHandle(strtoull(shareable, NULL, 10), 0, &handle));
    OK(aclrtReserveMemAddress(&space, 20 * MIB, 0, NULL, 0));
    OK(aclrtMapMem(space, 20 * MIB, 0, handle, 0));
    CHECK(strcmp(space, "by handle") == 0);
    OK(aclrtUnmapMem(space));
    OK(aclrtFreePhysical(handle));
    OK(aclrtReleaseMemAddress(space));
}

static void ipc(void) {
    void *pointer, *space;
    aclrtDrvMemHandle handle;
    aclrtPhysicalMemProp properties = {
        .memAttr = ACL_HBM_MEM_HUGE, .location = {.id = 0, .type = ACL_MEM_LOCATION_TYPE_DEVICE}};
    char key[65], number[32];
    uint64_t shareable;
    OK(aclrtSetDevice(0));
    OK(aclrtMalloc(&pointer, MIB, ACL_MEM_MALLOC_HUGE_FIRST));
    strcpy((char *)pointer + 1024, "by key");
    OK(aclrtIpcMemGetExportKey((char *)pointer + 1024, 4096, key, sizeof key, 1));
    OK(aclrtMallocPhysical(&handle, 20 * MIB, &properties, 0));
    OK(aclrtReserveMemAddress(&space, 20 * MIB, 0, NULL, 0));
    OK(aclrtMapMem(space, 20 * MIB, 0, handle, 0));
    strcpy(space, "by handle");
    OK(aclrtMemExportToShareableHandle(handle, 0, 1, &shareable));
    snprintf(number, sizeof number, "%llu", (unsigned long long)shareable);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, "ipc-reader", key, number, (char *)NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(aclrtIpcMemClose(key));
    OK(aclrtUnmapMem(space));
    OK(aclrtFreePhysical(handle));
    OK(aclrtReleaseMemAddress(space));
    OK(aclrtFree(pointer));
}

/* SIMCANN_FAIL="aclrtMalloc:2=oom,aclrtMallocHost:*=507000,halMemAlloc:5+=oom" */
static void failing(void) {
    void *pointer;
    OK(aclrtSetDevice(0)); /* the first of the HAL's calls */
    OK(aclrtMalloc(&pointer, 100, ACL_MEM_MALLOC_HUGE_FIRST));
    FAILS(aclrtMalloc(&pointer, 100, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
    OK(aclrtMalloc(&pointer, 100, ACL_MEM_MALLOC_HUGE_FIRST));
    FAILS(aclrtMallocHost(&pointer, 100), 507000);
    FAILS(aclrtMallocHost(&pointer, 100), 507000);
    OK(aclrtMalloc(&pointer, 100, ACL_MEM_MALLOC_HUGE_FIRST));
    FAILS(aclrtMalloc(&pointer, 100, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
    FAILS(halMemAlloc(&pointer, 100, MEM_SPACE_DEVICE << MEM_SPACE_SHIFT), DRV_ERROR_OUT_OF_MEMORY);
}

static const struct test tests[] = {
    {"linear", linear},   {"host", host},   {"vmm", vmm},       {"devices", devices}, {"streams", streams},
    {"below", below},     {"forked", forked}, {"ipc", ipc},     {"failing", failing},
};

int main(int count, char **arguments) {
    program = arguments[0];
    if (count == 4 && strcmp(arguments[1], "ipc-reader") == 0) {
        ipc_reader(arguments[2], arguments[3]);
        return failures != 0;
    }
    return run_test(tests, sizeof tests / sizeof *tests, count > 1 ? arguments[1] : NULL);
}
