/* Devices as the HAL counts them, and what only this device has among its settings. */
#include "simcann.h"

#include <string.h>

void simcann_read_own_settings(void) {}

long simcann_number_of_name(const char *text, char **end, int present) {
    (void)text, (void)end, (void)present;
    return -1; /* NPUs are selected by number only */
}

static bool of_the_hal(const char *function) {
    return strncmp(function, "hal", 3) == 0;
}

int simcann_out_of_memory_of(const char *function) {
    return of_the_hal(function) ? (int)DRV_ERROR_OUT_OF_MEMORY : (int)ACL_ERROR_RT_MEMORY_ALLOCATION;
}

int simcann_not_initialized_of(const char *function) {
    return of_the_hal(function) ? (int)DRV_ERROR_UNINIT : (int)ACL_ERROR_RT_CONTEXT_NULL;
}

int simcann_physical(int device) {
    const struct simcann_settings *settings = simcann_settings();
    return device >= 0 && device < settings->devices ? settings->physical[device] : -1;
}

int simcann_ordinal(int physical) {
    const struct simcann_settings *settings = simcann_settings();
    for (int i = 0; i < settings->devices; i++)
        if (settings->physical[i] == physical) return i;
    return -1;
}

EXPORT int drvGetDevNum(uint32_t *count) {
    if (!count) return DRV_ERROR_INVALID_VALUE;
    *count = (uint32_t)simcann_settings()->present;
    return DRV_ERROR_NONE;
}

EXPORT int halGetAPIVersion(int *version) {
    if (!version) return DRV_ERROR_INVALID_VALUE;
    *version = 0x072316; /* 7.35.22 */
    return DRV_ERROR_NONE;
}

EXPORT int halGetDeviceInfo(uint32_t device, int32_t module, int32_t what, int64_t *value) {
    (void)module, (void)what;
    if (!value) return DRV_ERROR_INVALID_VALUE;
    if (device >= (uint32_t)simcann_settings()->present) return DRV_ERROR_INVALID_DEVICE;
    *value = 0;
    return DRV_ERROR_NONE;
}
