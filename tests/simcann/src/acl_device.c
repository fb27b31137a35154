/* Initialisation, devices, contexts, and what they say of themselves. */
#include "simcann.h"

#include <stdio.h>
#include <string.h>

static const char soc_name[] = "Ascend910B1";
static const char cann_version[] = "8.5.0";
static bool initialized;

EXPORT aclError aclInit(const char *config) {
    (void)config;
    int result = simcann_fail("aclInit");
    if (result != 0) return result;
    simcann_lock();
    result = initialized ? ACL_ERROR_REPEAT_INITIALIZE : ACL_SUCCESS;
    initialized = true;
    simcann_unlock();
    return result;
}

EXPORT aclError aclFinalize(void) {
    simcann_lock();
    for (int i = 0; i < simcann_settings()->devices; i++) simcann_reset_device(i);
    initialized = false;
    simcann_unlock();
    return ACL_SUCCESS;
}

/* The runtime's own memory for a device has this call around it. */
EXPORT aclError aclrtSetDevice(int32_t device) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtSetDevice");
    if (result == 0) result = rtSetDevice(device);
    return simcann_leave(&call, result);
}

EXPORT aclError aclrtResetDevice(int32_t device) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtResetDevice");
    if (result == 0) result = rtDeviceReset(device);
    return simcann_leave(&call, result);
}

EXPORT aclError aclrtResetDeviceForce(int32_t device) { return aclrtResetDevice(device); }

EXPORT aclError aclrtGetDevice(int32_t *device) {
    if (!device) return ACL_ERROR_INVALID_PARAM;
    int current = simcann_current_device();
    if (current < 0) return ACL_ERROR_RT_CONTEXT_NULL;
    *device = current;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtGetDeviceCount(uint32_t *count) {
    int result = simcann_fail("aclrtGetDeviceCount");
    if (result != 0) return result;
    if (!count) return ACL_ERROR_INVALID_PARAM;
    *count = (uint32_t)simcann_settings()->devices;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtGetLogicDevIdByUserDevId(int32_t device, int32_t *logic) {
    if (!logic || simcann_physical(device) < 0) return ACL_ERROR_INVALID_PARAM;
    *logic = simcann_physical(device);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtCreateContext(aclrtContext *context, int32_t device) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtCreateContext");
    if (result == 0) result = simcann_create_context(context, device);
    return simcann_leave(&call, result);
}

EXPORT aclError aclrtDestroyContext(aclrtContext context) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtDestroyContext");
    if (result == 0) result = simcann_destroy_context(context);
    return simcann_leave(&call, result);
}

EXPORT aclError aclrtSetCurrentContext(aclrtContext context) {
    int result = simcann_fail("aclrtSetCurrentContext");
    return result != 0 ? result : simcann_set_current_context(context);
}

EXPORT aclError aclrtGetCurrentContext(aclrtContext *context) {
    if (!context) return ACL_ERROR_INVALID_PARAM;
    *context = simcann_current_context();
    return *context ? ACL_SUCCESS : ACL_ERROR_RT_CONTEXT_NULL;
}

EXPORT aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
    if (simcann_physical(device) < 0) return ACL_ERROR_RT_INVALID_DEVICEID;
    if (flags) *flags = 0;
    if (active) *active = simcann_device_active(device);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtSynchronizeDevice(void) {
    int result = simcann_fail("aclrtSynchronizeDevice");
    if (result == 0) simcann_synchronize();
    return result;
}

EXPORT aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
    (void)timeout;
    return aclrtSynchronizeDevice();
}

EXPORT const char *aclrtGetSocName(void) { return soc_name; }

EXPORT aclError aclrtGetRunMode(int *mode) {
    if (!mode) return ACL_ERROR_INVALID_PARAM;
    *mode = 1; /* ACL_HOST */
    return ACL_SUCCESS;
}

EXPORT aclError aclrtGetDeviceInfo(uint32_t device, int what, int64_t *value) {
    enum { AICPU = 1, AICORE = 101, CUBE = 102, VECTOR = 201, MEMORY = 301, L2 = 302, PHYSICAL = 402 };
    if (!value || simcann_physical((int)device) < 0) return ACL_ERROR_INVALID_PARAM;
    switch (what) {
    case AICPU: *value = 6; break;
    case AICORE:
    case CUBE: *value = 24; break;
    case VECTOR: *value = 48; break;
    case MEMORY: *value = (int64_t)simcann_settings()->device_bytes[device]; break;
    case L2: *value = 192 << 20; break;
    case PHYSICAL: *value = simcann_physical((int)device); break;
    default: *value = 0; break;
    }
    return ACL_SUCCESS;
}

EXPORT aclError aclGetDeviceCapability(uint32_t device, int what, int64_t *value) {
    enum { CORES, VECTOR_CORES, L2 };
    if (!value || simcann_physical((int)device) < 0) return ACL_ERROR_INVALID_PARAM;
    *value = what == CORES ? 24 : what == VECTOR_CORES ? 48 : what == L2 ? 192 << 20 : 0;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtDeviceGetUuid(int32_t device, char *uuid) {
    if (!uuid || simcann_physical(device) < 0) return ACL_ERROR_INVALID_PARAM;
    memset(uuid, 0, 16);
    memcpy(uuid, "memscope-npu", 12);
    uuid[15] = (char)simcann_physical(device);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtGetDeviceUtilizationRate(int32_t device, int32_t *rates) {
    if (!rates || simcann_physical(device) < 0) return ACL_ERROR_INVALID_PARAM;
    for (int i = 0; i < 4; i++) rates[i] = 0;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtGetMemUsageInfo(uint32_t device, void *usage, size_t most, size_t *count) {
    (void)usage, (void)most;
    if (!count || simcann_physical((int)device) < 0) return ACL_ERROR_INVALID_PARAM;
    *count = 0;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) {
    if (!can || simcann_physical(device) < 0 || simcann_physical(peer) < 0) return ACL_ERROR_INVALID_PARAM;
    *can = device != peer;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
    (void)flags;
    return simcann_physical(peer) < 0 ? ACL_ERROR_INVALID_PARAM : ACL_SUCCESS;
}

/* Three strings of 128 bytes follow the two numbers' strings in the real structure; only the whole
 * version is read. */
EXPORT aclError aclsysGetCANNVersion(int package, char *version) {
    (void)package;
    if (!version) return ACL_ERROR_INVALID_PARAM;
    snprintf(version, 128, "%s", cann_version);
    return ACL_SUCCESS;
}

EXPORT aclError aclsysGetVersionStr(const char *package, char *version) {
    if (!package || !version) return ACL_ERROR_INVALID_PARAM;
    snprintf(version, 64, "%s", cann_version);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch) {
    if (major) *major = 1;
    if (minor) *minor = 15;
    if (patch) *patch = 0;
    return ACL_SUCCESS;
}

EXPORT const char *aclGetRecentErrMsg(void) { return NULL; }
EXPORT aclError aclrtPeekAtLastError(int level) { return (void)level, ACL_SUCCESS; }
EXPORT aclError aclrtGetLastError(int level) { return (void)level, ACL_SUCCESS; }

/* Capabilities by number; 1 is INF_NAN, which every later SoC has. */
EXPORT aclError aclGetCannAttributeList(const int **list, size_t *count) {
    static const int all[] = {0, 1};
    if (!list || !count) return ACL_ERROR_INVALID_PARAM;
    *list = all;
    *count = sizeof all / sizeof *all;
    return ACL_SUCCESS;
}

EXPORT aclError aclGetCannAttribute(int attribute, int32_t *value) {
    (void)attribute;
    if (!value) return ACL_ERROR_INVALID_PARAM;
    *value = 1;
    return ACL_SUCCESS;
}
