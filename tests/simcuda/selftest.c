/* Checks the simulated runtime and driver from plain C. `cargo xtask sim --self-test` builds it and runs
 * it once for each name in `tests` at the end, with two devices of 1 GiB and 512 MiB. */
#include "selftest.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

static const char *program;

static size_t used(void) {
    size_t available, total;
    OK(cudaMemGetInfo(&available, &total));
    return total - available;
}

static void linear(void) {
    void *a, *b, *none;
    OK(cudaMalloc(&a, 100));
    OK(cudaMalloc(&b, 64 * MIB));
    CHECK(a && b && a != b && (uintptr_t)a % 256 == 0);
    CHECK(used() == 64 * MIB + 100);
    OK(cudaMalloc(&none, 0));
    CHECK(none == NULL);
    FAILS(cudaMalloc(&none, 2048ul * MIB), cudaErrorMemoryAllocation);
    FAILS(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    FAILS(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaGetLastError());
    FAILS(cudaFree((char *)b + 512), cudaErrorInvalidValue);

    char in[4096], out[4096];
    for (size_t i = 0; i < sizeof in; i++) in[i] = (char)(i * 7);
    OK(cudaMemcpy(b, in, sizeof in, cudaMemcpyHostToDevice));
    OK(cudaMemcpy((char *)b + 8192, b, sizeof in, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(out, (char *)b + 8192, sizeof out, cudaMemcpyDeviceToHost));
    CHECK(memcmp(in, out, sizeof in) == 0);
    OK(cudaMemset(b, 0, 64 * MIB));
    OK(cudaMemcpy(out, b, sizeof out, cudaMemcpyDeviceToHost));
    CHECK(out[0] == 0 && out[100] == 0 && out[4095] == 0);

    struct cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, (char *)b + 1000));
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
    OK(cudaPointerGetAttributes(&attributes, in));
    CHECK(attributes.type == cudaMemoryTypeUnregistered);

    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaFree(NULL));
    FAILS(cudaFree(b), cudaErrorInvalidValue);
    CHECK(used() == 0);
}

static void shapes(void) {
    void *pointer;
    size_t pitch;
    OK(cudaMallocPitch(&pointer, &pitch, 1000, 10));
    CHECK(pitch == 1024 && used() == 10240);
    OK(cudaFree(pointer));
    struct cudaPitchedPtr box;
    OK(cudaMalloc3D(&box, (struct cudaExtent){1000, 10, 3}));
    CHECK(box.pitch == 1024 && used() == 30720);
    OK(cudaFree(box.ptr));
    cudaArray_t array;
    struct cudaChannelFormatDesc format = {32, 32, 0, 0, cudaChannelFormatKindFloat};
    OK(cudaMallocArray(&array, &format, 64, 32, 0));
    CHECK(used() == 64 * 32 * 8);
    OK(cudaFreeArray(array));
    OK(cudaMallocManaged(&pointer, 3ul << 30, cudaMemAttachGlobal));
    CHECK(used() == 0);
    ((char *)pointer)[5] = 1;
    struct cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, pointer));
    CHECK(attributes.type == cudaMemoryTypeManaged);
    OK(cudaFree(pointer));
    CHECK(used() == 0);
}

static void host(void) {
    char *pinned, *other;
    OK(cudaHostAlloc((void **)&pinned, 5000, cudaHostAllocDefault));
    OK(cudaMallocHost((void **)&other, MIB));
    pinned[4999] = other[MIB - 1] = 1;
    struct cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, pinned));
    CHECK(attributes.type == cudaMemoryTypeHost);
    FAILS(cudaFree(pinned), cudaErrorInvalidValue);
    OK(cudaFreeHost(pinned));
    OK(cudaFreeHost(other));
    FAILS(cudaFreeHost(other), cudaErrorInvalidValue);
    static char memory[8192];
    OK(cudaHostRegister(memory, sizeof memory, 0));
    FAILS(cudaHostRegister(memory, sizeof memory, 0), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostUnregister(memory));
    FAILS(cudaHostUnregister(memory), cudaErrorHostMemoryNotRegistered);
}

static size_t attribute_of(cudaMemPool_t pool, enum cudaMemPoolAttr attribute) {
    cuuint64_t value = 0;
    OK(cudaMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static void pools(void) {
    cudaMemPool_t pool;
    cudaStream_t stream;
    void *a, *b;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaStreamCreate(&stream));
    OK(cudaMallocAsync(&a, 10 * MIB, stream));
    CHECK(attribute_of(pool, cudaMemPoolAttrUsedMemCurrent) == 10 * MIB);
    CHECK(attribute_of(pool, cudaMemPoolAttrReservedMemCurrent) == 32 * MIB && used() == 32 * MIB);
    OK(cudaFreeAsync(a, stream));
    CHECK(used() == 32 * MIB);
    OK(cudaStreamSynchronize(stream));
    CHECK(used() == 0 && attribute_of(pool, cudaMemPoolAttrUsedMemHigh) == 10 * MIB);

    cuuint64_t all = UINT64_MAX, zero = 0;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    OK(cudaMallocAsync(&a, MIB, stream));
    OK(cudaFree(a));
    OK(cudaDeviceSynchronize());
    CHECK(used() == 32 * MIB);
    OK(cudaMemPoolTrimTo(pool, 0));
    CHECK(used() == 0);
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &zero));

    cudaMemPool_t own;
    struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned,
                                          .location = {.type = cudaMemLocationTypeDevice, .id = 0}};
    OK(cudaMemPoolCreate(&own, &properties));
    OK(cudaMallocFromPoolAsync(&b, 3 * MIB, own, stream));
    CHECK(attribute_of(own, cudaMemPoolAttrUsedMemCurrent) == 3 * MIB);
    OK(cudaMemPoolDestroy(own)); /* lives on until its last allocation is freed */
    CHECK(used() == 32 * MIB);
    OK(cudaFreeAsync(b, stream));
    CHECK(used() == 0);
    FAILS(cudaMallocAsync(&a, 2048ul * MIB, stream), cudaErrorMemoryAllocation);
    OK(cudaStreamDestroy(stream));
}

static void vmm(void) {
    CUdeviceptr base;
    CUmemGenericAllocationHandle first, second, third, again;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t unit = 0, chunk = 20 * MIB;
    OK(cudaFree(NULL)); /* makes a context */
    OK(cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(unit == 2 * MIB);
    OK(cuMemAddressReserve(&base, 40 * chunk, 0, 0, 0));
    CHECK(base % unit == 0 && used() == 0);
    FAILS(cuMemCreate(&first, chunk + 1, &properties, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemCreate(&first, chunk, &properties, 0));
    OK(cuMemCreate(&second, chunk, &properties, 0));
    FAILS(cuMemCreate(&third, 2048ul * MIB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(used() == 2 * chunk);
    OK(cuMemMap(base, chunk, 0, first, 0));
    OK(cuMemMap(base + chunk, chunk, 0, second, 0));
    FAILS(cuMemMap(base + chunk, chunk, 0, second, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(base, 2 * chunk, &access, 1));
    memset((void *)base, 1, 2 * chunk);
    OK(cuMemRelease(second)); /* the mapping keeps the memory */
    CHECK(used() == 2 * chunk);
    int file = -1;
    OK(cuMemExportToShareableHandle(&file, first, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemMap(base + 4 * chunk, chunk, 0, again, 0));
    OK(cuMemSetAccess(base + 4 * chunk, chunk, &access, 1));
    ((char *)base)[77] = 42;
    CHECK(((char *)base)[4 * chunk + 77] == 42);
    OK(cuMemUnmap(base + 4 * chunk, chunk));
    OK(cuMemRelease(again));
    close(file);
    OK(cuMemRetainAllocationHandle(&again, (void *)(base + 100)));
    CHECK(again == first);
    OK(cuMemRelease(again));
    OK(cuMemUnmap(base, 2 * chunk));
    CHECK(used() == chunk);
    OK(cuMemRelease(first));
    CHECK(used() == 0);
    FAILS(cuMemRelease(first), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAddressFree(base, chunk), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(base, 40 * chunk));
}

static void devices(void) {
    int count = 0, device = -1, peer = 0;
    void *pointer;
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 2);
    OK(cudaSetDevice(1));
    OK(cudaGetDevice(&device));
    CHECK(device == 1);
    FAILS(cudaMalloc(&pointer, 600ul * MIB), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&pointer, 500ul * MIB));
    OK(cudaSetDevice(0));
    CHECK(used() == 0);
    struct cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, pointer));
    CHECK(attributes.device == 1);
    OK(cudaFree(pointer)); /* from another device's context */
    OK(cudaSetDevice(1));
    CHECK(used() == 0);
    FAILS(cudaSetDevice(2), cudaErrorInvalidDevice);
    OK(cudaDeviceCanAccessPeer(&peer, 0, 1));
    CHECK(peer == 1);
    struct cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 1));
    CHECK(strcmp(properties.name, "memscope simulated device") == 0 && properties.totalGlobalMem == 512ul * MIB);
    CHECK(properties.multiProcessorCount > 0 && properties.warpSize == 32);
    CUcontext context, same;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxPushCurrent(context));
    OK(cuCtxGetCurrent(&same));
    CHECK(same == context);
    OK(cudaGetDevice(&device));
    CHECK(device == 0);
    OK(cuCtxPopCurrent(&same));
    OK(cudaGetDevice(&device));
    CHECK(device == 1);
}

static void streams(void) {
    cudaStream_t a, b;
    cudaEvent_t event;
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithPriority(&b, 0, -1));
    CHECK(a != b && a != NULL);
    OK(cudaEventCreate(&event));
    OK(cudaEventQuery(event));
    OK(cudaEventRecord(event, a));
    FAILS(cudaEventQuery(event), cudaErrorNotReady); /* the runner sets a delay */
    FAILS(cudaStreamQuery(a), cudaErrorNotReady);
    OK(cudaStreamQuery(b));
    OK(cudaEventSynchronize(event));
    OK(cudaEventQuery(event));
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamIsCapturing(a, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaEventRecord(event, a));
    OK(cudaStreamWaitEvent(b, event, 0));
    OK(cudaStreamIsCapturing(b, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    cudaGraph_t graph;
    OK(cudaStreamEndCapture(a, &graph));
    OK(cudaStreamIsCapturing(b, &status));
    CHECK(status == cudaStreamCaptureStatusNone);
    OK(cudaGraphDestroy(graph));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
}

static void entry_points(void) {
    CUresult (*allocate)(CUdeviceptr *, size_t) = NULL;
    void *nothing = &nothing;
    CUdriverProcAddressQueryResult found;
    OK(cuInit(0));
    OK(cuGetProcAddress("cuMemAlloc", (void **)&allocate, CUDA_VERSION, 0, &found));
    CHECK(allocate == cuMemAlloc && found == CU_GET_PROC_ADDRESS_SUCCESS);
    CHECK(cuGetProcAddress("cuNoSuchThing", &nothing, CUDA_VERSION, 0, &found) != CUDA_SUCCESS && nothing == NULL);
    CHECK(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
}

static void failing(void) {
    void *pointer;
    CUdeviceptr address;
    OK(cudaMalloc(&pointer, 512));
    FAILS(cudaMalloc(&pointer, 512), cudaErrorMemoryAllocation); /* the second is planned to fail */
    OK(cudaMalloc(&pointer, 512));
    FAILS(cudaMallocHost(&pointer, 512), 999); /* every one is */
    FAILS(cudaMallocHost(&pointer, 512), 999);
    OK(cuMemAlloc(&address, 512));
    FAILS(cudaMalloc(&pointer, 512), cudaErrorMemoryAllocation); /* the fourth cuMemAlloc, seen from outside */
    CHECK(used() == 3 * 512);
}

static void forked(void) {
    void *pointer;
    OK(cudaMalloc(&pointer, 512));
    pid_t child = fork();
    if (child == 0) _exit(cudaMalloc(&pointer, 512) == cudaErrorInitializationError ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    OK(cudaFree(pointer));
}

static void ipc(void) {
    char *pointer, text[2 * sizeof(cudaIpcMemHandle_t) + 1];
    void *other;
    cudaIpcMemHandle_t handle;
    OK(cudaMalloc((void **)&other, 700)); /* so that the offset is not zero */
    OK(cudaMalloc((void **)&pointer, 3000));
    strcpy(pointer, "from the parent");
    OK(cudaIpcGetMemHandle(&handle, pointer));
    FAILS(cudaIpcOpenMemHandle(&other, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorDeviceUninitialized);
    for (size_t i = 0; i < sizeof handle; i++) sprintf(text + 2 * i, "%02x", (unsigned char)((char *)&handle)[i]);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, "ipc-child", text, NULL);
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(strcmp(pointer, "from the child") == 0);
}

static void ipc_child(const char *text) {
    cudaIpcMemHandle_t handle;
    char *pointer;
    for (size_t i = 0; i < sizeof handle; i++) {
        unsigned byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        ((unsigned char *)&handle)[i] = (unsigned char)byte;
    }
    OK(cudaIpcOpenMemHandle((void **)&pointer, handle, cudaIpcMemLazyEnablePeerAccess));
    CHECK(used() == 0);
    CHECK(strcmp(pointer, "from the parent") == 0);
    strcpy(pointer, "from the child");
    OK(cudaIpcCloseMemHandle(pointer));
}

static const struct test tests[] = {
    {"linear", linear}, {"shapes", shapes},   {"host", host},       {"pools", pools},
    {"vmm", vmm},       {"devices", devices}, {"streams", streams}, {"entry-points", entry_points},
    {"forked", forked}, {"ipc", ipc},         {"failing", failing},
};

int main(int count, char **words) {
    program = words[0];
    if (count == 3 && strcmp(words[1], "ipc-child") == 0) {
        ipc_child(words[2]);
        return failures != 0;
    }
    return run_test(tests, sizeof tests / sizeof *tests, count > 1 ? words[1] : NULL);
}
