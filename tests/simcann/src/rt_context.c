/* Devices and contexts of the runtime. */
#include "simcann.h"

#include <stdlib.h>

/* What the runtime takes for itself when a device is opened. */
enum { OWN_BYTES = 512 << 10 };

struct context {
    int device;
    bool primary;
    void *own;
    struct context *next;
};

static struct context *contexts;
static __thread struct context *current;
static __thread unsigned seen_resets;
static unsigned resets;

int simcann_error(int hal) {
    switch (hal) {
    case DRV_ERROR_NONE: return ACL_SUCCESS;
    case DRV_ERROR_OUT_OF_MEMORY: return ACL_ERROR_RT_MEMORY_ALLOCATION;
    case DRV_ERROR_INVALID_VALUE: return ACL_ERROR_RT_PARAM_INVALID;
    case DRV_ERROR_NO_DEVICE:
    case DRV_ERROR_INVALID_DEVICE: return ACL_ERROR_RT_INVALID_DEVICEID;
    case DRV_ERROR_UNINIT: return ACL_ERROR_RT_CONTEXT_NULL;
    case DRV_ERROR_NOT_SUPPORT: return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
    default: return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
    }
}

static bool known(const struct context *context) {
    for (struct context *it = contexts; it; it = it->next)
        if (it == context) return true;
    return false;
}

static struct context *primary_of(int device) {
    for (struct context *it = contexts; it; it = it->next)
        if (it->primary && it->device == device) return it;
    return NULL;
}

void *simcann_current_context(void) {
    simcann_lock();
    /* A context that another thread has destroyed is current nowhere. */
    if (seen_resets != resets && current && !known(current)) current = NULL;
    seen_resets = resets;
    simcann_unlock();
    return current;
}

int simcann_current_device(void) {
    struct context *context = simcann_current_context();
    return context ? context->device : -1;
}

bool simcann_device_active(int device) {
    simcann_lock();
    bool active = primary_of(device) != NULL;
    simcann_unlock();
    return active;
}

static int open_context(struct context **out, int device, bool primary) {
    void *own = NULL;
    if (simcann_physical(device) < 0) return ACL_ERROR_RT_INVALID_DEVICEID;
    if (simcann_forked()) return ACL_ERROR_RT_CONTEXT_NULL;
    struct context *before = current;
    struct context *context = calloc(1, sizeof *context);
    *context = (struct context){.device = device, .primary = primary, .next = contexts};
    contexts = context;
    current = context;
    int result = rtMalloc(&own, OWN_BYTES, RT_MEMORY_HBM, MODULE_RUNTIME);
    current = before;
    if (result != ACL_SUCCESS) {
        contexts = context->next;
        free(context);
        return result;
    }
    context->own = own;
    simcann_started();
    *out = context;
    return ACL_SUCCESS;
}

static void close_context(struct context *context) {
    rtFree(context->own);
    struct context **link = &contexts;
    while (*link != context) link = &(*link)->next;
    *link = context->next;
    if (current == context) current = NULL;
    resets++;
    free(context);
}

int simcann_set_device(int device) {
    simcann_lock();
    int result = ACL_SUCCESS;
    struct context *context = primary_of(device);
    if (simcann_physical(device) < 0) result = ACL_ERROR_RT_INVALID_DEVICEID;
    else if (simcann_forked()) result = ACL_ERROR_RT_CONTEXT_NULL;
    else if (!context) result = open_context(&context, device, true);
    if (result == ACL_SUCCESS) current = context;
    simcann_unlock();
    return result;
}

int simcann_reset_device(int device) {
    simcann_lock();
    int result = simcann_physical(device) < 0 ? ACL_ERROR_RT_INVALID_DEVICEID : ACL_SUCCESS;
    struct context *context = primary_of(device);
    if (result == ACL_SUCCESS && context) close_context(context);
    simcann_unlock();
    return result;
}

int simcann_create_context(void **out, int device) {
    struct context *context = NULL;
    if (!out) return ACL_ERROR_RT_PARAM_INVALID;
    simcann_lock();
    int result = open_context(&context, device, false);
    if (result == ACL_SUCCESS) *out = current = context;
    simcann_unlock();
    return result;
}

int simcann_destroy_context(void *context) {
    simcann_lock();
    int result = known(context) && !((struct context *)context)->primary ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
    if (result == ACL_SUCCESS) close_context(context);
    simcann_unlock();
    return result;
}

int simcann_set_current_context(void *context) {
    simcann_lock();
    int result = known(context) ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
    if (result == ACL_SUCCESS) current = context;
    simcann_unlock();
    return result;
}

EXPORT rtError_t rtSetDevice(int32_t device) {
    struct simcann_call call;
    int result = simcann_begin(&call, "rtSetDevice");
    if (result == 0) result = simcann_set_device(device);
    return simcann_leave(&call, result);
}

EXPORT rtError_t rtDeviceReset(int32_t device) {
    struct simcann_call call;
    int result = simcann_begin(&call, "rtDeviceReset");
    if (result == 0) result = simcann_reset_device(device);
    return simcann_leave(&call, result);
}

EXPORT rtError_t rtGetDevice(int32_t *device) {
    if (!device) return ACL_ERROR_RT_PARAM_INVALID;
    if (simcann_current_device() < 0) return ACL_ERROR_RT_CONTEXT_NULL;
    *device = simcann_current_device();
    return ACL_SUCCESS;
}

EXPORT rtError_t rtGetDeviceCount(int32_t *count) {
    if (!count) return ACL_ERROR_RT_PARAM_INVALID;
    *count = simcann_settings()->devices;
    return ACL_SUCCESS;
}
