/* Shared by all files of the simulated device.
 *
 * The simulated libcuda.so.1 owns all state: devices, memory, streams, settings and the log. The
 * simulated runtime (libcudart) reaches device memory only through exported cu* functions, as the
 * real one does; for the rest it uses the simcuda_* functions below, which libcuda.so.1 exports
 * beside its real interface. */
#ifndef SIMCUDA_H
#define SIMCUDA_H

#include "sim.h"

#include <cuda.h>

enum { SIMCUDA_MAX_DEVICES = SIM_MAX_DEVICES };
/* CU_MEM_LOCATION_TYPE_HOST, which the older headers lack. */
enum { LOCATION_HOST = 2 };

/* A device's UUID: the first half is the same for all, to the second its physical number is added. */
#define SIMCUDA_UUID_HIGH 0x6d656d73636f7065u
#define SIMCUDA_UUID_LOW 0x5ca1ab1e00000000u

struct simcuda_pool;

struct simcuda_context {
    uint32_t magic;
    int device;
    int references;
    unsigned flags;
    bool primary;
};

/* settings_own.c */
struct simcuda_own {
    int capability_major, capability_minor;
};
EXPORT const struct simcuda_own *simcuda_own(void);

/* driver_context.c */
EXPORT int simcuda_current_device(void);  /* -1 without a context */
EXPORT int simcuda_device_or_zero(void);  /* makes device 0 current if none is */
EXPORT CUcontext simcuda_primary(int device);
bool simcuda_is_context(CUcontext context);
EXPORT struct simcuda_context *simcuda_current_context(void);

/* driver_memory.c: frees what goes with a context. */
EXPORT void simcuda_context_gone(struct simcuda_context *context);

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

#endif
