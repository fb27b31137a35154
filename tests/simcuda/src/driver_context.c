/* Initialisation, devices, contexts, and what can be asked about a device or a pointer. */
#include "simcuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x51c0de01, STACK = 32 };

static struct simcuda_context primaries[SIMCUDA_MAX_DEVICES];
static __thread struct simcuda_context *stack[STACK];
static __thread int top; /* stack[top] is current; NULL is allowed */

static bool initialised;

bool simcuda_is_context(CUcontext context) {
    return context && ((struct simcuda_context *)context)->magic == MAGIC;
}

struct simcuda_context *simcuda_current_context(void) { return stack[top]; }

int simcuda_current_device(void) { return stack[top] ? stack[top]->device : -1; }

CUcontext simcuda_primary(int device) {
    simcuda_lock();
    struct simcuda_context *context = &primaries[device];
    if (context->magic != MAGIC) {
        *context = (struct simcuda_context){.magic = MAGIC, .device = device, .primary = true};
    }
    if (context->references == 0) context->references = 1;
    simcuda_started();
    simcuda_unlock();
    return (CUcontext)context;
}

int simcuda_device_or_zero(void) {
    if (!stack[top] && simcuda_settings()->devices > 0)
        stack[top] = (struct simcuda_context *)simcuda_primary(0);
    return simcuda_current_device();
}

EXPORT CUresult cuInit(unsigned flags) {
    int error = simcuda_fail("cuInit");
    if (error) return (CUresult)error;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (simcuda_forked()) return CUDA_ERROR_NOT_INITIALIZED;
    /* A driver keeps its file open. Where there is none, as on a machine without a device, there is nothing to open. */
    if (!initialised) open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
    initialised = true;
    return simcuda_settings()->devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
    *count = simcuda_settings()->devices;
    return CUDA_SUCCESS;
}

static bool valid(CUdevice device) { return device >= 0 && device < simcuda_settings()->devices; }

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "memscope simulated device");
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = simcuda_settings()->device_bytes[device];
    return CUDA_SUCCESS;
}

static CUresult uuid(CUuuid *out, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    uint64_t words[2] = {SIMCUDA_UUID_HIGH, SIMCUDA_UUID_LOW + (uint64_t)simcuda_settings()->physical[device]};
    for (int i = 0; i < 16; i++) out->bytes[i] = (char)(words[i / 8] >> (56 - i % 8 * 8));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device) { return uuid(out, device); }
#undef cuDeviceGetUuid
EXPORT CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) { return uuid(out, device); }

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)length, "0000:%02X:00.0", simcuda_settings()->physical[device] + 1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    const struct simcuda_settings *settings = simcuda_settings();
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 2147483647; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 163 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 164 << 10; break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: *value = 64 << 10; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1410000; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 1215000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 5120; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 40 << 20; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 108; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: *value = 512; break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = simcuda_own()->capability_major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = simcuda_own()->capability_minor; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = settings->physical[device] + 1; break;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: *value = 2147483647; break;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: *value = 1; break;
    /* cudaMemoryPool handle types: POSIX file descriptor */
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES: *value = 1; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *major = simcuda_own()->capability_major;
    *minor = simcuda_own()->capability_minor;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    if (!valid(device) || !valid(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    simcuda_lock();
    bool fresh = primaries[device].references == 0;
    *context = simcuda_primary(device);
    if (!fresh) primaries[device].references++;
    simcuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    simcuda_lock();
    if (primaries[device].references > 0 && --primaries[device].references == 0)
        simcuda_context_gone(&primaries[device]);
    simcuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    simcuda_context_gone(&primaries[device]);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = primaries[device].flags;
    *active = primaries[device].references > 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    primaries[device].flags = flags;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice device) {
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct simcuda_context *context = calloc(1, sizeof *context);
    *context = (struct simcuda_context){.magic = MAGIC, .device = device, .references = 1, .flags = flags};
    simcuda_started();
    if (top + 1 < STACK) top++;
    stack[top] = context;
    *out = (CUcontext)context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) { return create(out, flags, device); }

#if CUDA_VERSION >= 12050
EXPORT CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *parameters, unsigned flags, CUdevice device) {
    (void)parameters;
    return create(out, flags, device);
}
#endif

EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    if (!simcuda_is_context(context) || ((struct simcuda_context *)context)->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stack[top] == (struct simcuda_context *)context) {
        stack[top] = NULL;
        if (top > 0) top--;
    }
    simcuda_context_gone((struct simcuda_context *)context);
    /* It remains current to other threads, so its memory is not given back. */
    ((struct simcuda_context *)context)->magic = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = (CUcontext)stack[top];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    if (context && !simcuda_is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    stack[top] = (struct simcuda_context *)context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (!simcuda_is_context(context) || top + 1 == STACK) return CUDA_ERROR_INVALID_CONTEXT;
    stack[++top] = (struct simcuda_context *)context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (!stack[top]) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = (CUcontext)stack[top];
    stack[top] = NULL;
    if (top > 0) top--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    if (!stack[top]) return CUDA_ERROR_INVALID_CONTEXT;
    *device = stack[top]->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
    if (!stack[top]) return CUDA_ERROR_INVALID_CONTEXT;
    *flags = stack[top]->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    (void)context;
    *version = 3020;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    simcuda_lock();
    struct simcuda_range *range = simcuda_find(pointer);
    CUresult result = range ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (range) {
        bool host = range->kind == KIND_HOST || range->kind == KIND_REGISTERED;
        switch ((int)attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *(CUcontext *)value = range->device >= 0 ? simcuda_primary(range->device) : NULL;
            break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(unsigned *)value = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (host || range->kind == KIND_MANAGED) *(void **)value = (void *)pointer;
            else result = CUDA_ERROR_INVALID_VALUE;
            break;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)value = 0; break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)value = range->id; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = range->kind == KIND_MANAGED; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = range->device; break;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)value = range->kind == KIND_DEVICE; break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = range->base; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = range->size; break;
        case CU_POINTER_ATTRIBUTE_MAPPED: *(int *)value = 1; break;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)value = 0; break;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            *(void **)value = range->kind == KIND_POOL ? range->owner : NULL;
            break;
        default: result = CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    simcuda_unlock();
    return result;
}

EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    (void)value, (void)attribute, (void)pointer;
    return CUDA_SUCCESS;
}
