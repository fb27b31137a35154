/* Kernels: they are registered and launched, and do nothing. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIGURATIONS = 16 };

static __thread struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configurations[CONFIGURATIONS];
static __thread int configured;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    if (configured == CONFIGURATIONS) return 1;
    configurations[configured].grid = grid;
    configurations[configured].block = block;
    configurations[configured].shared = shared;
    configurations[configured].stream = stream;
    configured++;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (configured == 0) return cudaErrorMissingConfiguration;
    configured--;
    *grid = configurations[configured].grid;
    *block = configurations[configured].block;
    *shared = configurations[configured].shared;
    *(cudaStream_t *)stream = configurations[configured].stream;
    return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *image) {
    void **handle = malloc(sizeof *handle);
    *handle = image;
    return handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { free(handle); }
char __cudaInitModule(void **handle) { return (void)handle, 1; }

/* Kernels by the host's function that stands for each: a table with open addresses, of which half is free. */
struct registered {
    const void *function;
    const char *name;
    CUfunction kernel;
};
static struct registered *table;
static size_t slots, used;

static struct registered *slot_of(struct registered *in, size_t count, const void *function) {
    size_t at = ((uintptr_t)function >> 4) * 0x9e3779b97f4a7c15u % count;
    while (in[at].function && in[at].function != function) at = (at + 1) % count;
    return &in[at];
}

void __cudaRegisterFunction(void **handle, const char *function, char *device_function, const char *name, int limit,
                            void *tid, void *bid, void *block, void *grid, int *warp) {
    (void)handle, (void)name, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    simcuda_lock();
    if (2 * used >= slots) {
        size_t count = slots ? 2 * slots : 1024;
        struct registered *larger = calloc(count, sizeof *larger);
        for (size_t i = 0; i < slots; i++)
            if (table[i].function) *slot_of(larger, count, table[i].function) = table[i];
        free(table);
        table = larger;
        slots = count;
    }
    struct registered *slot = slot_of(table, slots, function);
    if (!slot->function) used++;
    *slot = (struct registered){.function = function, .name = device_function};
    simcuda_unlock();
}

/* The driver's object for a kernel, which the runtime asks for when the kernel is launched first. */
static CUfunction kernel_of(const void *function) {
    CUfunction kernel = NULL;
    simcuda_lock();
    struct registered *slot = slots ? slot_of(table, slots, function) : NULL;
    if (slot && slot->function) {
        if (!slot->kernel) cuModuleGetFunction(&slot->kernel, NULL, slot->name);
        kernel = slot->kernel;
    }
    simcuda_unlock();
    return kernel;
}

/* Device variables: the host stands in for the device. */
struct variable {
    const void *symbol;
    void *memory;
    size_t size;
    struct variable *next;
};
static struct variable *variables;

void __cudaRegisterVar(void **handle, char *symbol, char *device_name, const char *name, int external, size_t size,
                       int constant, int global) {
    (void)handle, (void)device_name, (void)name, (void)external, (void)constant, (void)global;
    struct variable *variable = calloc(1, sizeof *variable);
    variable->symbol = symbol;
    variable->size = size;
    simcuda_lock();
    variable->next = variables;
    variables = variable;
    simcuda_unlock();
}

static struct variable *variable_of(const void *symbol) {
    simcuda_lock();
    struct variable *it = variables;
    while (it && it->symbol != symbol) it = it->next;
    if (it && !it->memory) it->memory = calloc(1, it->size ? it->size : 1);
    simcuda_unlock();
    return it;
}

cudaError_t cudaGetSymbolAddress(void **out, const void *symbol) {
    struct variable *variable = variable_of(symbol);
    if (!variable) return simcuda_result(cudaErrorInvalidSymbol);
    *out = variable->memory;
    return cudaSuccess;
}

cudaError_t cudaGetSymbolSize(size_t *out, const void *symbol) {
    struct variable *variable = variable_of(symbol);
    if (!variable) return simcuda_result(cudaErrorInvalidSymbol);
    *out = variable->size;
    return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind) {
    struct variable *variable = variable_of(symbol);
    (void)kind;
    if (!variable || offset + bytes > variable->size) return simcuda_result(cudaErrorInvalidSymbol);
    memcpy((char *)variable->memory + offset, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
    struct variable *variable = variable_of(symbol);
    (void)kind;
    if (!variable || offset + bytes > variable->size) return simcuda_result(cudaErrorInvalidSymbol);
    memcpy(to, (char *)variable->memory + offset, bytes);
    return cudaSuccess;
}

/* As in the real runtime, each launch is one call of the driver. */
static cudaError_t launch(const char *name, const void *function) {
    NEEDS_DEVICE(name);
    CUresult result = cuLaunchKernel(kernel_of(function), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return result == CUDA_SUCCESS ? cudaSuccess : simcuda_result((cudaError_t)result);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
    (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return launch("cudaLaunchKernel", function);
}

cudaError_t cudaLaunchKernel_ptsz(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                  cudaStream_t stream) {
    (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return launch("cudaLaunchKernel_ptsz", function);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t stream) {
    (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return launch("cudaLaunchCooperativeKernel", function);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *configuration, const void *function, void **arguments) {
    (void)configuration, (void)arguments;
    NEEDS_DEVICE("cudaLaunchKernelExC");
    CUresult result = cuLaunchKernelEx(NULL, kernel_of(function), NULL, NULL);
    return result == CUDA_SUCCESS ? cudaSuccess : simcuda_result((cudaError_t)result);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
    (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return launch("cudaLaunchKernel", (const void *)kernel);
}

cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *function) {
    *out = (cudaKernel_t)function;
    return cudaSuccess;
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *out, const void *symbol) {
    *out = (cudaFunction_t)symbol;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
    (void)function;
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = simcuda_own()->capability_major * 10 + simcuda_own()->capability_minor;
    out->maxDynamicSharedSizeBytes = 48 << 10;
    out->preferredShmemCarveout = -1;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size,
                                                                   size_t dynamic, unsigned flags) {
    (void)function, (void)dynamic, (void)flags;
    if (size <= 0 || size > 1024) return simcuda_result(cudaErrorInvalidValue);
    *blocks = 2048 / size;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int size, size_t dynamic) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, size, dynamic, 0);
}

cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const cudaLaunchConfig_t *configuration) {
    (void)function, (void)configuration;
    *clusters = 1;
    return cudaSuccess;
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *function, int blocks, int size) {
    (void)function, (void)blocks, (void)size;
    *bytes = 48 << 10;
    return cudaSuccess;
}
