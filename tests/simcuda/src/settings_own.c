/* What only this device has among its settings: compute capability, and devices named by their UUID. */
#include "simcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct simcuda_own own;

/* The device of a part (MIG) that NVML's file names. Like the real driver, ends the list there: a process gets one part. */
static long device_of_part(const char *name, size_t length, char **end, int present) {
    const char *path = getenv("SIMCUDA_NVML_USED");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[256], uuid[80];
    long found = -1;
    while (file && fgets(line, sizeof line, file)) {
        unsigned device;
        if (sscanf(line, "mig %u %79s", &device, uuid) != 2 || strlen(uuid) != length) continue;
        if (strncmp(uuid, name, length) == 0 && (int)device < present) found = device;
    }
    if (file) fclose(file);
    *end = (char *)name + strlen(name);
    return found;
}

/* -1 unless `text` begins with the UUID, or the beginning of the UUID, of a device, or the UUID of a part of one. */
long simcuda_number_of_name(const char *text, char **end, int present) {
    size_t length = strcspn(text, ",");
    if (strncmp(text, "MIG-", 4) == 0) return device_of_part(text, length, end, present);
    if (strncmp(text, "GPU-", 4) != 0) return -1;
    for (int i = 0; i < present && length > 4; i++) {
        uint64_t low = SIMCUDA_UUID_LOW + (uint64_t)i;
        char uuid[64];
        snprintf(uuid, sizeof uuid, "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(SIMCUDA_UUID_HIGH >> 32),
                 (unsigned)(SIMCUDA_UUID_HIGH >> 16 & 0xffff), (unsigned)(SIMCUDA_UUID_HIGH & 0xffff),
                 (unsigned)(low >> 48), (unsigned long long)(low & 0xffffffffffff));
        if (strncmp(uuid, text, length) == 0) {
            *end = (char *)text + length;
            return i;
        }
    }
    return -1;
}

void simcuda_read_own_settings(void) {
    const char *text;
    own = (struct simcuda_own){.capability_major = 8, .capability_minor = 0};
    if ((text = getenv("SIMCUDA_COMPUTE_CAPABILITY")) &&
        sscanf(text, "%d.%d", &own.capability_major, &own.capability_minor) != 2)
        simcuda_refuse("SIMCUDA_COMPUTE_CAPABILITY", text);
}

const struct simcuda_own *simcuda_own(void) {
    simcuda_settings();
    return &own;
}

int simcuda_out_of_memory_of(const char *function) {
    (void)function;
    return SIM_OUT_OF_MEMORY;
}

int simcuda_not_initialized_of(const char *function) {
    (void)function;
    return CUDA_ERROR_NOT_INITIALIZED;
}
