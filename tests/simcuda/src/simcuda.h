/* Shared by all files of the simulated device.
 *
 * The simulated libcuda.so.1 owns all state: devices, memory, streams, settings and the log. The
 * simulated runtime (libcudart) reaches device memory only through exported cu* functions, as the
 * real one does; for the rest it uses the simcuda_* functions below, which libcuda.so.1 exports
 * beside its real interface. */
#ifndef SIMCUDA_H
#define SIMCUDA_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cuda.h>

#define EXPORT __attribute__((visibility("default")))

enum { SIMCUDA_MAX_DEVICES = 64 };

/* A device's UUID: the first half is the same for all, to the second its physical number is added. */
#define SIMCUDA_UUID_HIGH 0x6d656d73636f7065u
#define SIMCUDA_UUID_LOW 0x5ca1ab1e00000000u

/* What a tracked address range is. */
enum simcuda_kind {
    KIND_DEVICE = 1,  /* cuMemAlloc, cuMemAllocPitch: charged to the device */
    KIND_POOL,        /* cuMemAllocAsync, cuMemAllocFromPoolAsync: charged to the pool */
    KIND_ARRAY,       /* CUDA arrays: charged to the device, not addressable by users */
    KIND_MANAGED,     /* cuMemAllocManaged: may exceed the device, so it is not charged */
    KIND_HOST,        /* cuMemHostAlloc, cuMemAllocHost */
    KIND_REGISTERED,  /* cuMemHostRegister: the memory is the caller's */
    KIND_IPC,         /* another process's memory */
    KIND_MAPPED,      /* cuMemMap: charged when the physical memory was created */
};

struct simcuda_pool;

struct simcuda_range {
    uintptr_t base;
    size_t size;
    enum simcuda_kind kind;
    int device;
    unsigned flags;
    uint64_t id;          /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
    uint64_t offset;      /* in the device's memory file */
    size_t held;          /* bytes taken from the device's memory file */
    void *mapping;        /* what to unmap, where that is not [base, base + size) */
    size_t mapping_size;
    void *owner;          /* struct simcuda_pool * or struct simcuda_physical * */
};

struct simcuda_context {
    uint32_t magic;
    int device;
    int references;
    unsigned flags;
    bool primary;
};

/* One call of an allocator function, from entry to result. Holds the global lock: calls are
 * serialised, so the log's order is the true order. */
struct simcuda_call {
    const char *function;
    int injected; /* error code that the failure plan asks for, or 0 */
};

/* settings.c */
struct simcuda_settings {
    int present; /* devices in the machine, of which CUDA_VISIBLE_DEVICES may hide some */
    size_t physical_bytes[SIMCUDA_MAX_DEVICES];
    int devices;
    int physical[SIMCUDA_MAX_DEVICES]; /* ordinal -> physical number (CUDA_VISIBLE_DEVICES) */
    size_t device_bytes[SIMCUDA_MAX_DEVICES];
    int capability_major, capability_minor;
    uint64_t event_delay_ns;
    size_t copy_limit;
    bool trace_stubs, exact_reads;
};
EXPORT const struct simcuda_settings *simcuda_settings(void);
int simcuda_planned_failure(const char *function);
void simcuda_log_line(const char *function, int depth, uintptr_t pointer, size_t size, int device,
                      const void *stream, int result);

/* call.c */
EXPORT void simcuda_lock(void);
EXPORT void simcuda_unlock(void);
EXPORT int simcuda_begin(struct simcuda_call *call, const char *function);
EXPORT int simcuda_end(struct simcuda_call *call, uintptr_t pointer, size_t size, int device,
                       const void *stream, int result);
EXPORT int simcuda_fail(const char *function);
EXPORT bool simcuda_forked(void);
EXPORT void simcuda_started(void);
EXPORT int simcuda_stub(const char *function, int result);
EXPORT uint64_t simcuda_now_ns(void);

/* memory.c: device memory files and the table of address ranges. Callers hold the lock. */
EXPORT size_t simcuda_used_bytes(int device);
CUresult simcuda_charge(int device, size_t bytes);
void simcuda_discharge(int device, size_t bytes);
CUresult simcuda_take(int device, size_t bytes, size_t alignment, uint64_t *offset);
void simcuda_give_back(int device, uint64_t offset, size_t bytes);
uintptr_t simcuda_device_address(int device, uint64_t offset);
int simcuda_device_file(int device);
struct simcuda_range *simcuda_track(uintptr_t base, size_t size, enum simcuda_kind kind, int device);
void simcuda_untrack(struct simcuda_range *range);
EXPORT struct simcuda_range *simcuda_find(uintptr_t address);
EXPORT void simcuda_copy(void *to, const void *from, size_t bytes);
EXPORT void simcuda_set(void *to, int value, size_t bytes);

/* driver_context.c */
EXPORT int simcuda_current_device(void);  /* -1 without a context */
EXPORT int simcuda_device_or_zero(void);  /* makes device 0 current if none is */
EXPORT CUcontext simcuda_primary(int device);
bool simcuda_is_context(CUcontext context);

/* driver_pool.c */
CUresult simcuda_pool_allocate(struct simcuda_pool *pool, size_t size, uintptr_t *address);
void simcuda_pool_release(struct simcuda_range *range);
EXPORT void simcuda_pools_synchronized(int device);

/* driver_stream.c */
EXPORT CUresult simcuda_capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph);
EXPORT int simcuda_stream_device(CUstream handle);

/* driver_entry.c */
EXPORT const char *simcuda_error_name(int error);
EXPORT const char *simcuda_error_text(int error);

static inline size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

#endif
