/* NVML: the devices' names, sizes and what this process uses of them. Of other processes it knows
 * what a file says.
 *
 * PyTorch 2.15's expandable segments end the process without it. No wheel brings its header; the
 * structures below are part of its public binary interface. NVML numbers devices physically, whatever
 * CUDA_VISIBLE_DEVICES says. */
#include "simcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

/* A handle is the physical number plus one, so that none is NULL; that of a part (MIG) is the place of its line plus PARTS. */
typedef uintptr_t Device;
enum { PARTS = 1000 };

static int present(void) { return simcuda_settings()->present; }

static bool valid(Device device) { return device >= 1 && device <= (Device)present(); }

/* -1 for a device that this process cannot see. */
static int ordinal_of(Device device) {
    const struct simcuda_settings *settings = simcuda_settings();
    for (int i = 0; i < settings->devices; i++)
        if ((Device)settings->physical[i] + 1 == device) return i;
    return -1;
}

/* What a file says, where there is one: a line with a number of bytes for each device, which all processes use of it; then lines of
 * `process DEVICE PID BYTES`, of `reserved BYTES` for what the driver keeps of each device, and of `mig DEVICE UUID SIZE USED PID` for a
 * part of a device, on which that process runs (0: none). */
enum { MOST_TOLD = 16 };
struct told {
    unsigned long long used[MOST_TOLD], reserved;
    unsigned devices;
    struct {
        unsigned device, pid;
        unsigned long long used;
    } processes[MOST_TOLD];
    unsigned count;
    struct {
        unsigned device, pid;
        char uuid[80];
        unsigned long long size, used;
    } parts[MOST_TOLD];
    unsigned parted;
};

static bool told(struct told *out) {
    const char *path = getenv("SIMCUDA_NVML_USED");
    FILE *file = path ? fopen(path, "re") : NULL;
    *out = (struct told){0};
    if (!file) return false;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        unsigned device, pid;
        unsigned long long bytes;
        if (sscanf(line, "%llu", &bytes) == 1 && out->devices < MOST_TOLD) out->used[out->devices++] = bytes;
        if (sscanf(line, "reserved %llu", &bytes) == 1) out->reserved = bytes;
        if (out->parted < MOST_TOLD && sscanf(line, "mig %u %79s %llu %llu %u", &out->parts[out->parted].device,
                                              out->parts[out->parted].uuid, &out->parts[out->parted].size,
                                              &out->parts[out->parted].used, &out->parts[out->parted].pid) == 5)
            out->parted++;
        if (sscanf(line, "process %u %u %llu", &device, &pid, &bytes) != 3 || out->count == MOST_TOLD) continue;
        out->processes[out->count].device = device;
        out->processes[out->count].pid = pid;
        out->processes[out->count++].used = bytes;
    }
    fclose(file);
    return true;
}

/* The place of a part's line; -1 for what is no part. */
static int part_of(Device device, struct told *out) {
    return told(out) && device >= PARTS && device < PARTS + out->parted ? (int)(device - PARTS) : -1;
}

static uint64_t used_of(Device device) {
    struct told of_file;
    if (told(&of_file) && device <= of_file.devices) return of_file.used[device - 1];
    int ordinal = ordinal_of(device);
    if (ordinal < 0) return 0;
    simcuda_lock();
    uint64_t used = simcuda_used_bytes(ordinal);
    simcuda_unlock();
    return used;
}

EXPORT int nvmlInit_v2(void) { return SUCCESS; }
EXPORT int nvmlInit(void) { return SUCCESS; }
EXPORT int nvmlInitWithFlags(unsigned flags) { return (void)flags, SUCCESS; }
EXPORT int nvmlShutdown(void) { return SUCCESS; }

EXPORT const char *nvmlErrorString(int error) { return error == SUCCESS ? "Success" : "Not Supported"; }

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    return snprintf(text, length, "999.0"), SUCCESS;
}

EXPORT int nvmlSystemGetNVMLVersion(char *text, unsigned length) { return snprintf(text, length, "13.0"), SUCCESS; }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = CUDA_VERSION, SUCCESS; }
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return *version = CUDA_VERSION, SUCCESS; }

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { return *count = (unsigned)present(), SUCCESS; }
EXPORT int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    if ((int)index >= present()) return INVALID_ARGUMENT;
    *device = index + 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *text, Device *device) {
    unsigned domain, bus;
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2) return INVALID_ARGUMENT;
    if (domain != 0 || !valid(bus)) return NOT_FOUND;
    *device = bus;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetIndex(Device device, unsigned *index) {
    if (!valid(device)) return INVALID_ARGUMENT;
    *index = (unsigned)device - 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(Device device, char *text, unsigned length) {
    if (!valid(device)) return INVALID_ARGUMENT;
    snprintf(text, length, "memscope simulated device");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    struct told of_file;
    if (!valid(device)) return INVALID_ARGUMENT;
    *current = 0;
    told(&of_file);
    for (unsigned i = 0; i < of_file.parted; i++)
        if ((Device)of_file.parts[i].device + 1 == device) *current = 1;
    *pending = *current;
    return SUCCESS;
}

/* As with real devices, the most that there can be. */
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    if (!valid(device)) return INVALID_ARGUMENT;
    return *count = 7, SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *part) {
    struct told of_file;
    if (!valid(device)) return INVALID_ARGUMENT;
    told(&of_file);
    for (unsigned i = 0; i < of_file.parted; i++) {
        if ((Device)of_file.parts[i].device + 1 != device || index-- != 0) continue;
        return *part = PARTS + i, SUCCESS;
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetUUID(Device device, char *text, unsigned length) {
    struct told of_file;
    int part = part_of(device, &of_file);
    if (part >= 0) return snprintf(text, length, "%s", of_file.parts[part].uuid), SUCCESS;
    if (!valid(device)) return INVALID_ARGUMENT;
    uint64_t word = SIMCUDA_UUID_LOW + (device - 1);
    snprintf(text, length, "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(SIMCUDA_UUID_HIGH >> 32),
             (unsigned)(SIMCUDA_UUID_HIGH >> 16 & 0xffff), (unsigned)(SIMCUDA_UUID_HIGH & 0xffff),
             (unsigned)(word >> 48), (unsigned long long)(word & 0xffffffffffff));
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *wanted, Device *device) {
    for (int i = 0; i < present(); i++) {
        char text[96];
        nvmlDeviceGetUUID((Device)i + 1, text, sizeof text);
        if (strcmp(text, wanted) == 0) return *device = (Device)i + 1, SUCCESS;
    }
    return NOT_FOUND;
}

struct pci_info {
    char short_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

EXPORT int nvmlDeviceGetPciInfo_v3(Device device, struct pci_info *out) {
    if (!valid(device)) return INVALID_ARGUMENT;
    *out = (struct pci_info){.bus = (unsigned)device};
    snprintf(out->short_id, sizeof out->short_id, "0000:%02X:00.0", (unsigned)device);
    snprintf(out->id, sizeof out->id, "00000000:%02X:00.0", (unsigned)device);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    if (!valid(device)) return INVALID_ARGUMENT;
    *major = simcuda_own()->capability_major;
    *minor = simcuda_own()->capability_minor;
    return SUCCESS;
}

struct memory {
    unsigned long long total, available, used;
};

EXPORT int nvmlDeviceGetMemoryInfo(Device device, struct memory *out) {
    struct told of_file;
    int part = part_of(device, &of_file);
    if (part >= 0) {
        *out = (struct memory){of_file.parts[part].size, of_file.parts[part].size - of_file.parts[part].used,
                               of_file.parts[part].used};
        return SUCCESS;
    }
    if (!valid(device)) return INVALID_ARGUMENT;
    out->total = simcuda_settings()->physical_bytes[device - 1];
    out->used = used_of(device);
    out->available = out->total - out->used;
    return SUCCESS;
}

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, available, used;
};

EXPORT int nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *out) {
    struct memory memory;
    int result = nvmlDeviceGetMemoryInfo(device, &memory);
    if (result != SUCCESS) return result;
    struct told of_file;
    told(&of_file);
    if (device >= PARTS) of_file.reserved = 0;
    out->total = memory.total;
    out->reserved = of_file.reserved;
    out->available = memory.available;
    out->used = memory.used - of_file.reserved;
    return SUCCESS;
}

/* Versions 2 and 3 of the structure are longer, but begin alike; there is never more than one. */
struct process {
    unsigned pid;
    unsigned long long used;
};

EXPORT int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned *count, struct process *out) {
    if (!valid(device)) return INVALID_ARGUMENT;
    uint64_t used = used_of(device);
    unsigned room = *count;
    *count = used != 0;
    if (*count > room) return INSUFFICIENT_SIZE;
    if (*count) *out = (struct process){.pid = (unsigned)getpid(), .used = used};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, struct process *out) {
    return nvmlDeviceGetComputeRunningProcesses(device, count, out);
}

struct process_v3 {
    struct process begin;
    unsigned gpu_instance, compute_instance;
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, struct process_v3 *out) {
    struct told of_file;
    int part = part_of(device, &of_file);
    if (part >= 0) {
        unsigned room = *count;
        *count = of_file.parts[part].pid != 0;
        if (*count > room) return INSUFFICIENT_SIZE;
        if (*count) *out = (struct process_v3){{of_file.parts[part].pid, of_file.parts[part].used}, 1, 0};
        return SUCCESS;
    }
    if (!told(&of_file)) return nvmlDeviceGetComputeRunningProcesses(device, count, (struct process *)out);
    if (!valid(device)) return INVALID_ARGUMENT;
    unsigned room = *count;
    *count = 0;
    for (unsigned i = 0; i < of_file.count; i++) {
        if ((Device)of_file.processes[i].device + 1 != device) continue;
        if (*count < room)
            out[*count] = (struct process_v3){{of_file.processes[i].pid, of_file.processes[i].used}, ~0u, ~0u};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

struct utilization {
    unsigned gpu, memory;
};

EXPORT int nvmlDeviceGetUtilizationRates(Device device, struct utilization *out) {
    if (!valid(device)) return INVALID_ARGUMENT;
    *out = (struct utilization){0, 0};
    return SUCCESS;
}

/* There is no fabric: state 0 is "not supported". */
struct fabric {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
};

EXPORT int nvmlDeviceGetGpuFabricInfoV(Device device, struct fabric *out) {
    if (!valid(device)) return INVALID_ARGUMENT;
    memset(out->cluster, 0, sizeof out->cluster);
    out->status = SUCCESS;
    out->clique = 0;
    out->state = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, int *type) {
    (void)device, (void)link, (void)type;
    return NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, struct pci_info *out) {
    (void)device, (void)link, (void)out;
    return NOT_SUPPORTED;
}
