/* The part of CANN's interfaces that the simulated device has: types and constants.
 *
 * Written from the public declarations: `aclrt*` and `acl*` from acl_base.h, acl_rt.h and acl_mdl.h
 * (Ascend/pytorch, third_party/acl/inc/acl), `rt*` from runtime/mem.h and kernel.h, `hal*` from
 * ascend_hal.h, `mstx*` from ms_tools_ext.h. Numbers and layouts are theirs; only what is used here
 * is named. C programs that test with the simulated device include it as well. */
#ifndef SIMCANN_ACL_H
#define SIMCANN_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- AscendCL ---- */

typedef int aclError;
typedef void *aclrtStream;
typedef void *aclrtEvent;
typedef void *aclrtContext;
typedef void *aclrtDrvMemHandle;

enum {
    ACL_SUCCESS = 0,
    ACL_ERROR_INVALID_PARAM = 100000,
    ACL_ERROR_UNINITIALIZE = 100001,
    ACL_ERROR_REPEAT_INITIALIZE = 100002,
    ACL_ERROR_RT_PARAM_INVALID = 107000,
    ACL_ERROR_RT_INVALID_DEVICEID = 107001,
    ACL_ERROR_RT_CONTEXT_NULL = 107002,
    ACL_ERROR_RT_REPORT_TIMEOUT = 107012,
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000,
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001,
    ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899,
};

typedef enum {
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEM_MALLOC_HUGE_ONLY,
    ACL_MEM_MALLOC_NORMAL_ONLY,
    ACL_MEM_MALLOC_HUGE_FIRST_P2P,
    ACL_MEM_MALLOC_HUGE_ONLY_P2P,
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P,
    ACL_MEM_MALLOC_HUGE1G_ONLY,
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P,
} aclrtMemMallocPolicy;

typedef enum {
    ACL_DDR_MEM,
    ACL_HBM_MEM,
    ACL_DDR_MEM_HUGE,
    ACL_DDR_MEM_NORMAL,
    ACL_HBM_MEM_HUGE,
    ACL_HBM_MEM_NORMAL,
    ACL_DDR_MEM_P2P_HUGE,
    ACL_DDR_MEM_P2P_NORMAL,
    ACL_HBM_MEM_P2P_HUGE,
    ACL_HBM_MEM_P2P_NORMAL,
    ACL_HBM_MEM_HUGE1G,
    ACL_HBM_MEM_P2P_HUGE1G,
} aclrtMemAttr;

typedef enum {
    ACL_MEMCPY_HOST_TO_HOST,
    ACL_MEMCPY_HOST_TO_DEVICE,
    ACL_MEMCPY_DEVICE_TO_HOST,
    ACL_MEMCPY_DEVICE_TO_DEVICE,
    ACL_MEMCPY_DEFAULT,
} aclrtMemcpyKind;

typedef enum {
    ACL_MEM_LOCATION_TYPE_HOST,
    ACL_MEM_LOCATION_TYPE_DEVICE,
    ACL_MEM_LOCATION_TYPE_UNREGISTERED,
    ACL_MEM_LOCATION_TYPE_HOST_NUMA,
} aclrtMemLocationType;

typedef struct {
    uint32_t id;
    aclrtMemLocationType type;
} aclrtMemLocation;

typedef struct {
    aclrtMemLocation location;
    uint32_t pageSize;
    uint32_t rsv[4];
} aclrtPtrAttributes;

typedef struct {
    int handleType;
    int allocationType;
    aclrtMemAttr memAttr;
    aclrtMemLocation location;
    uint64_t reserve;
} aclrtPhysicalMemProp;

enum { ACL_RT_MEM_ATTR_MODULE_ID = 1, ACL_RT_MEM_ATTR_DEVICE_ID, ACL_RT_MEM_ATTR_VA_FLAG };

typedef struct {
    int attr;
    union {
        uint16_t moduleId;
        uint32_t deviceId;
        uint32_t vaFlag;
        uint8_t rsv[8];
    } value;
} aclrtMallocAttribute;

typedef struct {
    aclrtMallocAttribute *attrs;
    size_t numAttrs;
} aclrtMallocConfig;

#define ACL_HOST_REG_MAPPED 0x2u
#define ACL_HOST_REG_PINNED 0x10000000u

aclError aclInit(const char *config);
aclError aclFinalize(void);
aclError aclrtSetDevice(int32_t device);
aclError aclrtResetDevice(int32_t device);
aclError aclrtResetDeviceForce(int32_t device);
aclError aclrtGetDevice(int32_t *device);
aclError aclrtGetDeviceCount(uint32_t *count);
aclError aclrtCreateContext(aclrtContext *context, int32_t device);
aclError aclrtDestroyContext(aclrtContext context);
aclError aclrtSetCurrentContext(aclrtContext context);
aclError aclrtGetCurrentContext(aclrtContext *context);
aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active);
const char *aclrtGetSocName(void);
aclError aclrtSynchronizeDevice(void);
aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout);

aclError aclrtMalloc(void **pointer, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtMallocAlign32(void **pointer, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtMallocCached(void **pointer, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtMallocWithCfg(void **pointer, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig *config);
aclError aclrtMallocForTaskScheduler(void **pointer, size_t size, aclrtMemMallocPolicy policy,
                                     aclrtMallocConfig *config);
aclError aclrtMallocHost(void **pointer, size_t size);
aclError aclrtMallocHostWithCfg(void **pointer, uint64_t size, aclrtMallocConfig *config);
aclError aclrtFree(void *pointer);
aclError aclrtFreeWithDevSync(void *pointer);
aclError aclrtFreeHost(void *pointer);
aclError aclrtFreeHostWithDevSync(void *pointer);
aclError aclrtHostRegister(void *pointer, uint64_t size, int type, void **device_pointer);
aclError aclrtHostRegisterV2(void *pointer, uint64_t size, uint32_t flag);
aclError aclrtHostUnregister(void *pointer);
aclError aclrtHostGetDevicePointer(void *pointer, void **device_pointer, uint32_t flag);
aclError aclrtGetMemInfo(aclrtMemAttr attribute, size_t *available, size_t *total);
aclError aclrtPointerGetAttributes(const void *pointer, aclrtPtrAttributes *attributes);

aclError aclrtReserveMemAddress(void **pointer, size_t size, size_t alignment, void *wish, uint64_t flags);
aclError aclrtReleaseMemAddress(void *pointer);
aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size, const aclrtPhysicalMemProp *properties,
                             uint64_t flags);
aclError aclrtFreePhysical(aclrtDrvMemHandle handle);
aclError aclrtMapMem(void *pointer, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags);
aclError aclrtUnmapMem(void *pointer);
aclError aclrtMemGetAllocationGranularity(const aclrtPhysicalMemProp *properties, int option, size_t *granularity);
aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, int type, uint64_t flags, uint64_t *shareable);
aclError aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t *pids, size_t count);
aclError aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, aclrtDrvMemHandle *handle);
aclError aclrtDeviceGetBareTgid(int32_t *pid);
aclError aclrtIpcMemGetExportKey(void *pointer, size_t size, char *key, size_t length, uint64_t flags);
aclError aclrtIpcMemSetImportPid(const char *key, int32_t *pids, size_t count);
aclError aclrtIpcMemImportByKey(void **pointer, const char *key, uint64_t flags);
aclError aclrtIpcMemClose(const char *key);

aclError aclrtMemcpy(void *to, size_t most, const void *from, size_t bytes, aclrtMemcpyKind kind);
aclError aclrtMemcpyAsync(void *to, size_t most, const void *from, size_t bytes, aclrtMemcpyKind kind,
                          aclrtStream stream);
aclError aclrtMemset(void *pointer, size_t most, int32_t value, size_t bytes);
aclError aclrtMemsetAsync(void *pointer, size_t most, int32_t value, size_t bytes, aclrtStream stream);

aclError aclrtCreateStream(aclrtStream *stream);
aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtDestroyStreamForce(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtStreamQuery(aclrtStream stream, int *status);
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
aclError aclrtCreateEvent(aclrtEvent *event);
aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag);
aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag);
aclError aclrtDestroyEvent(aclrtEvent event);
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtSynchronizeEvent(aclrtEvent event);
aclError aclrtQueryEventStatus(aclrtEvent event, int *status);
aclError aclrtEventElapsedTime(float *milliseconds, aclrtEvent start, aclrtEvent end);
aclError aclrtLaunchKernel(void *function, uint32_t blocks, const void *arguments, size_t size, aclrtStream stream);
aclError aclrtLaunchKernelWithConfig(void *function, uint32_t blocks, aclrtStream stream, void *config,
                                     void *arguments, void *reserved);

/* ---- the runtime below it ---- */

typedef int rtError_t;

/* Types of memory for rtMalloc. */
enum {
    RT_MEMORY_DEFAULT = 0x0,
    RT_MEMORY_HBM = 0x2,
    RT_MEMORY_TS = 0x40,
    RT_MEMORY_POLICY_HUGE_PAGE_FIRST = 0x400,
    RT_MEMORY_POLICY_HUGE_PAGE_ONLY = 0x800,
    RT_MEMORY_POLICY_DEFAULT_PAGE_ONLY = 0x1000,
    RT_MEMORY_POLICY_HUGE1G_PAGE_ONLY = 0x10000,
};

typedef struct {
    uint32_t side, devid, module_id, pg_type, mem_type;
    uint64_t reserve;
} rtDrvMemProp_t;

rtError_t rtSetDevice(int32_t device);
rtError_t rtDeviceReset(int32_t device);
rtError_t rtMalloc(void **pointer, uint64_t size, uint32_t type, uint16_t module);
rtError_t rtMallocCached(void **pointer, uint64_t size, uint32_t type, uint16_t module);
rtError_t rtFree(void *pointer);
rtError_t rtFreeWithDevSync(void *pointer);
rtError_t rtMallocHost(void **pointer, uint64_t size, uint16_t module);
rtError_t rtFreeHost(void *pointer);
rtError_t rtFreeHostWithDevSync(void *pointer);
rtError_t rtHostRegister(void *pointer, uint64_t size, uint32_t type, void **device_pointer);
rtError_t rtHostRegisterV2(void *pointer, uint64_t size, uint32_t flag);
rtError_t rtHostUnregister(void *pointer);
rtError_t rtMemGetInfoEx(uint32_t type, size_t *available, size_t *total);
rtError_t rtReserveMemAddress(void **pointer, size_t size, size_t alignment, void *wish, uint64_t flags);
rtError_t rtReleaseMemAddress(void *pointer);
rtError_t rtMallocPhysical(void **handle, size_t size, rtDrvMemProp_t *properties, uint64_t flags);
rtError_t rtFreePhysical(void *handle);
rtError_t rtMapMem(void *pointer, size_t size, size_t offset, void *handle, uint64_t flags);
rtError_t rtUnmapMem(void *pointer);
rtError_t rtMemExportToShareableHandle(void *handle, int type, uint64_t flags, uint64_t *shareable);
rtError_t rtMemImportFromShareableHandle(uint64_t shareable, int32_t device, void **handle);
rtError_t rtIpcSetMemoryName(const void *pointer, uint64_t size, char *name, uint32_t length);
rtError_t rtIpcOpenMemory(void **pointer, const char *name);
rtError_t rtIpcCloseMemory(const void *pointer);
rtError_t rtKernelLaunch(const void *function, uint32_t blocks, void *arguments, uint32_t size, void *shared,
                         void *stream);
rtError_t rtKernelLaunchWithFlagV2(const void *function, uint32_t blocks, void *arguments, void *shared,
                                   void *stream, uint32_t flags, const void *config);
rtError_t rtKernelLaunchWithHandleV2(void *handle, uint64_t tiling, uint32_t blocks, void *arguments, void *shared,
                                     void *stream, const void *config);
rtError_t rtLaunchKernelByFuncHandleV2(void *function, uint32_t blocks, void *arguments, void *stream,
                                       const void *config);

/* ---- the HAL ---- */

enum {
    DRV_ERROR_NONE = 0,
    DRV_ERROR_NO_DEVICE = 1,
    DRV_ERROR_INVALID_DEVICE = 2,
    DRV_ERROR_INVALID_VALUE = 3,
    DRV_ERROR_OUT_OF_MEMORY = 6,
    DRV_ERROR_INNER_ERR = 7,
    DRV_ERROR_UNINIT = 11,
    DRV_ERROR_NOT_SUPPORT = 0xfffe,
};

/* The flag of halMemAlloc. */
#define MEM_DEVICE_MASK 0x3ffull
#define MEM_SPACE_SHIFT 10
#define MEM_SPACE_SVM 0ull
#define MEM_SPACE_DEVICE 1ull
#define MEM_SPACE_HOST 2ull
#define MEM_SPACE_DVPP 3ull
#define MEM_TYPE_HBM (1ull << 14)
#define MEM_PAGE_HUGE (1ull << 17)
#define MEM_PAGE_GIANT (1ull << 31)
#define MEM_MODULE_SHIFT 56

/* Some of the components that own memory. */
enum { MODULE_HCCL = 3, MODULE_RUNTIME = 7, MODULE_APP = 33, MODULE_ASCENDCL = 48, MODULE_OP = 63 };

enum { MEM_HOST_SIDE, MEM_DEV_SIDE };
enum { MEM_NORMAL_PAGE_TYPE, MEM_HUGE_PAGE_TYPE, MEM_GIANT_PAGE_TYPE };

typedef struct drv_mem_handle drv_mem_handle_t;
struct drv_mem_prop {
    uint32_t side, devid, module_id, pg_type, mem_type;
    uint64_t reserve;
};

int halMemAlloc(void **pointer, unsigned long long size, unsigned long long flag);
int halMemFree(void *pointer);
int halMemCreate(drv_mem_handle_t **handle, size_t size, const struct drv_mem_prop *properties, uint64_t flag);
int halMemRelease(drv_mem_handle_t *handle);
int halMemAddressReserve(void **pointer, size_t size, size_t alignment, void *wish, uint64_t flag);
int halMemAddressFree(void *pointer);
int halMemMap(void *pointer, size_t size, size_t offset, drv_mem_handle_t *handle, uint64_t flag);
int halMemUnmap(void *pointer);
int halMemSetAccess(void *pointer, size_t size, const void *description, size_t count);
int halMemExportToShareableHandle(drv_mem_handle_t *handle, int type, uint64_t flags, uint64_t *shareable);
int halMemImportFromShareableHandle(uint64_t shareable, uint32_t device, drv_mem_handle_t **handle);
int halHostRegister(void *pointer, uint64_t size, uint32_t flag, uint32_t device, void **device_pointer);
int halHostUnregister(void *pointer, uint32_t device);
int halHostUnregisterEx(void *pointer, uint32_t device, uint32_t flag);
int halShmemCreateHandle(uint64_t pointer, uint64_t size, char *name, uint32_t length);
int halShmemOpenHandle(const char *name, uint64_t *pointer);
int halShmemCloseHandle(uint64_t pointer);

/* ---- mstx ---- */

typedef uint64_t mstxRangeId;
typedef struct mstxDomainRegistration *mstxDomainHandle_t;

mstxDomainHandle_t mstxDomainCreateA(const char *name);

/* Memory that a pool has (heaps), and what it hands out of that (regions). */

typedef struct {
    uint32_t deviceId;
    const void *ptr;
    uint64_t size;
} mstxMemVirtualRangeDesc_t;

typedef struct {
    int usage; /* 0: it hands out parts */
    int type;  /* 0: typeSpecificDesc is a mstxMemVirtualRangeDesc_t */
    const void *typeSpecificDesc;
} mstxMemHeapDesc_t;

typedef struct {
    void *heap;
    int regionType; /* 0: regionDescArray has mstxMemVirtualRangeDesc_t */
    size_t regionCount;
    const void *regionDescArray;
    void **regionHandleArrayOut;
} mstxMemRegionsRegisterBatch_t;

typedef struct {
    int refType; /* 0: by pointer, 1: by handle */
    union {
        const void *pointer;
        void *handle;
    };
} mstxMemRegionRef_t;

typedef struct {
    size_t refCount;
    const mstxMemRegionRef_t *refArray;
} mstxMemRegionsUnregisterBatch_t;

void *mstxMemHeapRegister(mstxDomainHandle_t domain, const mstxMemHeapDesc_t *description);
void mstxMemHeapUnregister(mstxDomainHandle_t domain, void *heap);
void mstxMemRegionsRegister(mstxDomainHandle_t domain, const mstxMemRegionsRegisterBatch_t *batch);
void mstxMemRegionsUnregister(mstxDomainHandle_t domain, const mstxMemRegionsUnregisterBatch_t *batch);

#endif
