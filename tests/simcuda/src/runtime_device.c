/* Devices, properties, attributes, errors, and the way from the runtime into the driver. */
#include "runtime.h"

#include <stdio.h>
#include <string.h>

static __thread int last_error;

cudaError_t simcuda_result(int error) {
    if (error != 0) last_error = error;
    return (cudaError_t)error;
}

cudaError_t simcuda_ready(void) {
    if (simcuda_forked()) return cudaErrorInitializationError;
    if (simcuda_settings()->devices == 0) return cudaErrorNoDevice;
    static bool initialised;
    if (!initialised) {
        int error = (int)cuInit(0);
        if (error != 0) return (cudaError_t)error;
        initialised = true;
    }
    simcuda_device_or_zero();
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    int error = last_error;
    last_error = 0;
    return (cudaError_t)error;
}

cudaError_t cudaPeekAtLastError(void) { return (cudaError_t)last_error; }

const char *cudaGetErrorName(cudaError_t error) {
    const char *name = simcuda_error_name((int)error);
    return name ? name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    const char *text = simcuda_error_text((int)error);
    return text ? text : "unrecognized error code";
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { return simcuda_result((int)cuDriverGetVersion(version)); }

cudaError_t cudaGetDeviceCount(int *count) {
    int error = simcuda_fail("cudaGetDeviceCount");
    *count = 0;
    if (error == 0 && simcuda_forked()) error = cudaErrorInitializationError;
    if (error == 0 && simcuda_settings()->devices == 0) error = cudaErrorNoDevice;
    if (error == 0) *count = simcuda_settings()->devices;
    return simcuda_result(error);
}

cudaError_t cudaSetDevice(int device) {
    int error = simcuda_fail("cudaSetDevice");
    if (error == 0 && simcuda_forked()) error = cudaErrorInitializationError;
    if (error != 0) return simcuda_result(error);
    if (device < 0 || device >= simcuda_settings()->devices) return simcuda_result(cudaErrorInvalidDevice);
    error = (int)cuInit(0);
    if (error == 0) error = (int)cuCtxSetCurrent(simcuda_primary(device));
    return simcuda_result(error);
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    (void)device_flags, (void)flags;
    if (device < 0 || device >= simcuda_settings()->devices) return simcuda_result(cudaErrorInvalidDevice);
    simcuda_primary(device);
    return cudaSuccess;
}

/* Must not create a context: PyTorch asks before it uses a device. */
cudaError_t cudaGetDevice(int *device) {
    if (simcuda_settings()->devices == 0) return simcuda_result(cudaErrorNoDevice);
    int current = simcuda_current_device();
    *device = current < 0 ? 0 : current;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    NEEDS_DEVICE("cudaDeviceSynchronize");
    return simcuda_result((int)cuCtxSynchronize());
}

cudaError_t cudaDeviceReset(void) {
    int device = simcuda_device_or_zero();
    struct simcuda_context *current = simcuda_current_context();
    if (device >= 0 && current->primary) simcuda_context_gone(current);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    const struct simcuda_settings *settings = simcuda_settings();
    if (device < 0 || device >= settings->devices) return simcuda_result(cudaErrorInvalidDevice);
    memset(out, 0, sizeof *out);
    cuDeviceGetName(out->name, sizeof out->name, device);
    CUuuid id;
    cuDeviceGetUuid_v2(&id, device);
    memcpy(&out->uuid, &id, sizeof id);
    out->totalGlobalMem = settings->device_bytes[device];
    out->sharedMemPerBlock = 48 << 10;
    out->sharedMemPerBlockOptin = 163 << 10;
    out->sharedMemPerMultiprocessor = 164 << 10;
    out->reservedSharedMemPerBlock = 1024;
    out->regsPerBlock = out->regsPerMultiprocessor = 65536;
    out->warpSize = 32;
    out->memPitch = 2147483647;
    out->maxThreadsPerBlock = 1024;
    out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    out->maxGridSize[0] = 2147483647;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->totalConstMem = 64 << 10;
    out->major = simcuda_own()->capability_major;
    out->minor = simcuda_own()->capability_minor;
    out->textureAlignment = out->surfaceAlignment = 512;
    out->texturePitchAlignment = 32;
    out->multiProcessorCount = 108;
    out->canMapHostMemory = 1;
    out->maxTexture1D = out->maxSurface1D = 131072;
    out->maxTexture2D[0] = out->maxSurface2D[0] = 131072;
    out->maxTexture2D[1] = out->maxSurface2D[1] = 65536;
    out->maxTexture3D[0] = out->maxTexture3D[1] = out->maxTexture3D[2] = 16384;
    out->concurrentKernels = 1;
    out->pciBusID = settings->physical[device] + 1;
    out->asyncEngineCount = 3;
    out->unifiedAddressing = 1;
    out->memoryBusWidth = 5120;
    out->l2CacheSize = 40 << 20;
    out->persistingL2CacheMaxSize = 30 << 20;
    out->maxThreadsPerMultiProcessor = 2048;
    out->streamPrioritiesSupported = 1;
    out->globalL1CacheSupported = out->localL1CacheSupported = 1;
    out->managedMemory = out->concurrentManagedAccess = 1;
    out->computePreemptionSupported = 1;
    out->canUseHostPointerForRegisteredMem = 1;
    out->cooperativeLaunch = 1;
    out->maxBlocksPerMultiProcessor = 32;
    out->hostRegisterSupported = 1;
    out->memoryPoolsSupported = 1;
    out->memoryPoolSupportedHandleTypes = 1;
    out->ipcEventSupported = 1;
#if CUDART_VERSION < 13000
    out->clockRate = 1410000;
    out->memoryClockRate = 1215000;
    out->deviceOverlap = 1;
#endif
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    return simcuda_result((int)cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    return simcuda_result((int)cuDeviceGetPCIBusId(text, length, device));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    return simcuda_result((int)cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
    *value = limit == cudaLimitMallocHeapSize ? 8 << 20 : limit == cudaLimitStackSize ? 1024 : 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceFlags(unsigned *flags) {
    *flags = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    return simcuda_result((int)cuDeviceCanAccessPeer(can, device, peer));
}

static bool peers[SIMCUDA_MAX_DEVICES][SIMCUDA_MAX_DEVICES];

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    NEEDS_DEVICE("cudaDeviceEnablePeerAccess");
    int device = simcuda_current_device();
    (void)flags;
    if (peer < 0 || peer >= simcuda_settings()->devices || peer == device) return simcuda_result(cudaErrorInvalidDevice);
    if (peers[device][peer]) return simcuda_result(cudaErrorPeerAccessAlreadyEnabled);
    peers[device][peer] = true;
    return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    int device = simcuda_device_or_zero();
    if (peer < 0 || peer >= SIMCUDA_MAX_DEVICES || !peers[device][peer]) return simcuda_result(cudaErrorPeerAccessNotEnabled);
    peers[device][peer] = false;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
    memset(out, 0, sizeof *out);
    simcuda_lock();
    struct simcuda_range *range = simcuda_find((uintptr_t)pointer);
    if (range) {
        bool host = range->kind == KIND_HOST || range->kind == KIND_REGISTERED;
        out->type = host ? cudaMemoryTypeHost
                    : range->kind == KIND_MANAGED ? cudaMemoryTypeManaged
                                                  : cudaMemoryTypeDevice;
        out->device = range->device;
        out->devicePointer = (void *)pointer;
        out->hostPointer = host || range->kind == KIND_MANAGED ? (void *)pointer : NULL;
    } else {
        /* Memory that CUDA does not know is no error. */
        out->type = cudaMemoryTypeUnregistered;
        out->device = -2;
        out->hostPointer = (void *)pointer;
    }
    simcuda_unlock();
    return cudaSuccess;
}

static cudaError_t entry_point(const char *name, void **out, unsigned version, unsigned long long flags,
                               enum cudaDriverEntryPointQueryResult *status) {
    CUdriverProcAddressQueryResult found;
    int error = (int)cuGetProcAddress_v2(name, out, (int)version, flags, &found);
    if (status) *status = error == 0 ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    /* With a status to say so, a missing name is not an error. */
    return simcuda_result(status ? 0 : error);
}

/* Not in every version's header. */
cudaError_t cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status) {
    return entry_point(name, out, CUDART_VERSION, flags, status);
}

cudaError_t cudaGetDriverEntryPoint_ptsz(const char *name, void **out, unsigned long long flags,
                                         enum cudaDriverEntryPointQueryResult *status) {
    return entry_point(name, out, CUDART_VERSION, flags | cudaEnablePerThreadDefaultStream, status);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
    return entry_point(name, out, version, flags, status);
}

cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **out, unsigned version,
                                                  unsigned long long flags,
                                                  enum cudaDriverEntryPointQueryResult *status) {
    return entry_point(name, out, version, flags | cudaEnablePerThreadDefaultStream, status);
}

cudaError_t cudaGetExportTable(const void **table, const cudaUUID_t *id) {
    (void)id;
    *table = NULL;
    return cudaErrorSymbolNotFound;
}
