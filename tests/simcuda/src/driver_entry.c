/* Looking up functions by name, errors in words, modules and launches (which do nothing), copies. */
#include "simcuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    int code;
    const char *suffix, *text;
} errors[] = {
    {0, "Success", "no error"},
    {1, "InvalidValue", "invalid argument"},
    {2, "MemoryAllocation", "out of memory"},
    {3, "InitializationError", "initialization error"},
    {4, "CudartUnloading", "driver shutting down"},
    {98, "InvalidDeviceFunction", "invalid device function"},
    {100, "NoDevice", "no CUDA-capable device is detected"},
    {101, "InvalidDevice", "invalid device ordinal"},
    {201, "DeviceUninitialized", "invalid device context"},
    {205, "MapBufferObjectFailed", "mapping of buffer object failed"},
    {304, "OperatingSystem", "OS call failed or operation not supported on this OS"},
    {400, "InvalidResourceHandle", "invalid resource handle"},
    {401, "IllegalState", "the operation cannot be performed in the present state"},
    {500, "SymbolNotFound", "named symbol not found"},
    {600, "NotReady", "device not ready"},
    {700, "IllegalAddress", "an illegal memory access was encountered"},
    {701, "LaunchOutOfResources", "too many resources requested for launch"},
    {702, "LaunchTimeout", "the launch timed out and was terminated"},
    {704, "PeerAccessAlreadyEnabled", "peer access is already enabled"},
    {712, "HostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "HostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "LaunchFailure", "unspecified launch failure"},
    {800, "NotPermitted", "operation not permitted"},
    {801, "NotSupported", "operation not supported"},
    {900, "StreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {999, "Unknown", "unknown error"},
};

/* The runtime's names; NULL for a code that is not in the table. */
const char *simcuda_error_name(int error) {
    static char names[sizeof errors / sizeof *errors][40];
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code != error) continue;
        strcpy(names[i], i == 0 ? "cuda" : "cudaError");
        strcat(names[i], errors[i].suffix);
        return names[i];
    }
    return NULL;
}

const char *simcuda_error_text(int error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return errors[i].text;
    return NULL;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = simcuda_error_text((int)error);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : simcuda_error_name((int)error);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Generated from cuda.h: which exported function answers to which unversioned name. */
struct simcuda_name {
    const char *name, *target;
};
extern const struct simcuda_name simcuda_names[];

static void *look_up(const char *name, bool per_thread) {
    static void *self;
    if (!self) {
        Dl_info info;
        if (dladdr((void *)look_up, &info) == 0) return NULL;
        self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        if (!self) return NULL;
    }
    const char *target = name;
    for (const struct simcuda_name *it = simcuda_names; it->name; it++)
        if (strcmp(it->name, name) == 0) target = it->target;
    if (per_thread) {
        char longer[128];
        static const char *const suffixes[] = {"_ptsz", "_ptds"};
        for (int i = 0; i < 2 && strlen(target) < 120; i++) {
            strcpy(longer, target);
            strcat(longer, suffixes[i]);
            void *found = dlsym(self, longer);
            if (found) return found;
        }
    }
    return strncmp(target, "cu", 2) == 0 ? dlsym(self, target) : NULL;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status) {
    (void)version;
    void *found = look_up(name, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    *out = found;
    if (status) *status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
EXPORT CUresult cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

/* Private interface of libraries that carry their own runtime; without it they refuse to start. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    (void)id;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

static int module_token, link_token, library_token;

/* A kernel. The second word of the real driver's object is the address of its name, too (seen with driver 580). */
struct kernel {
    struct kernel *self;
    char *name;
};

static struct kernel *kernel_of(const char *name) {
    struct kernel *kernel = malloc(sizeof *kernel);
    kernel->self = kernel;
    kernel->name = strdup(name ? name : "");
    return kernel;
}

EXPORT CUresult cuModuleLoad(CUmodule *out, const char *name) { return (void)name, *out = (CUmodule)&module_token, CUDA_SUCCESS; }
EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image) { return (void)image, *out = (CUmodule)&module_token, CUDA_SUCCESS; }
EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, CUjit_option *options, void **values) {
    (void)image, (void)count, (void)options, (void)values;
    *out = (CUmodule)&module_token;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    (void)module;
    *out = (CUfunction)kernel_of(name);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *options, void **values, unsigned count,
                                  CUlibraryOption *more, void **more_values, unsigned more_count) {
    (void)code, (void)options, (void)values, (void)count, (void)more, (void)more_values, (void)more_count;
    *out = (CUlibrary)&library_token;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    (void)library;
    *out = (CUkernel)kernel_of(name);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    *out = (CUfunction)kernel;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetName(const char **out, CUfunction function) {
    *out = ((struct kernel *)function)->name;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuKernelGetName(const char **out, CUkernel kernel) { return cuFuncGetName(out, (CUfunction)kernel); }
EXPORT CUresult cuLinkCreate_v2(unsigned count, CUjit_option *options, void **values, CUlinkState *out) {
    (void)count, (void)options, (void)values;
    *out = (CUlinkState)&link_token;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size) {
    static char nothing[64];
    (void)state;
    *image = nothing;
    *size = sizeof nothing;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    int version = simcuda_own()->capability_major * 10 + simcuda_own()->capability_minor;
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = version; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = 48 << 10; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int size, size_t dynamic) {
    (void)function, (void)dynamic;
    *blocks = size > 0 && size <= 1024 ? 2048 / size : 1;
    return CUDA_SUCCESS;
}

static FILE *launches;
static void open_launches(void) {
    const char *path = getenv("SIMCUDA_LAUNCHES");
    if (path && *path && !(launches = fopen(path, "a"))) simcuda_refuse("SIMCUDA_LAUNCHES", path);
}

/* Appends the name of a launched kernel to the file that SIMCUDA_LAUNCHES names, with the thread that launched it. */
static void log_launch(CUfunction function) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_launches);
    if (!launches || !function) return;
    simcuda_lock();
    fprintf(launches, "%d %s\n", (int)gettid(), ((struct kernel *)function)->name);
    fflush(launches);
    simcuda_unlock();
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *configuration, CUfunction function, void **arguments, void **extra) {
    (void)configuration, (void)arguments, (void)extra;
    log_launch(function);
    return (CUresult)simcuda_fail("cuLaunchKernelEx");
}
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **arguments, void **extra) {
    log_launch(function);
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)arguments, (void)extra;
    return (CUresult)simcuda_fail("cuLaunchKernel");
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    simcuda_copy((void *)to, from, bytes);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    simcuda_copy(to, (void *)from, bytes);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    simcuda_copy((void *)to, (void *)from, bytes);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyHtoD_v2(to, from, bytes);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyDtoH_v2(to, from, bytes);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyDtoD_v2(to, from, bytes);
}
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
    simcuda_set((void *)to, value, bytes);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemsetD8_v2(to, value, bytes);
}
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    if (value == 0) {
        simcuda_set((void *)to, 0, count * 4);
    } else {
        size_t most = simcuda_settings()->copy_limit / 4;
        for (size_t i = 0; i < count && i < most; i++) ((unsigned *)to)[i] = value;
    }
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    (void)stream;
    return cuMemsetD32_v2(to, value, count);
}
