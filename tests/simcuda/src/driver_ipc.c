/* Memory of another simulated process: the handle names the process, its memory file and the range. */
#include "simcuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAGIC = 0x51c0de10, PAGE = 4096 };

struct handle {
    uint32_t magic;
    int32_t pid, file, device;
    uint64_t base, offset, size, id;
};
_Static_assert(sizeof(struct handle) <= CU_IPC_HANDLE_SIZE, "a handle has 64 bytes");

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr pointer) {
    int error = simcuda_fail("cuIpcGetMemHandle");
    if (error) return (CUresult)error;
    simcuda_lock();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct simcuda_range *range = simcuda_find(pointer);
    if (range && range->kind == KIND_DEVICE) {
        struct handle handle = {
            .magic = MAGIC,
            .pid = getpid(),
            .file = simcuda_device_file(range->device),
            .device = range->device,
            .base = range->base,
            .offset = range->offset,
            .size = range->size,
            .id = range->id,
        };
        memset(out, 0, sizeof *out);
        memcpy(out, &handle, sizeof handle);
        result = CUDA_SUCCESS;
    }
    simcuda_unlock();
    return result;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle in, unsigned flags) {
    struct simcuda_call call;
    struct handle handle;
    uintptr_t address = 0;
    (void)flags;
    memcpy(&handle, &in, sizeof handle);
    CUresult result = (CUresult)simcuda_begin(&call, "cuIpcOpenMemHandle_v2");
    int device = simcuda_current_device();
    if (result == CUDA_SUCCESS && handle.magic != MAGIC) result = CUDA_ERROR_INVALID_VALUE;
    /* A real driver also refuses to open a handle in the process that made it. */
    if (result == CUDA_SUCCESS && handle.pid == getpid()) result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.file);
        int file = open(path, O_RDWR | O_CLOEXEC);
        uint64_t first = handle.offset / PAGE * PAGE, inside = handle.offset - first;
        size_t bytes = round_up(inside + handle.size, PAGE);
        void *memory = MAP_FAILED;
        if (file >= 0)
            memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, (off_t)first);
        if (file >= 0) close(file);
        if (memory == MAP_FAILED) {
            result = CUDA_ERROR_MAP_FAILED;
        } else {
            address = (uintptr_t)memory + inside;
            struct simcuda_range *range = simcuda_track(address, handle.size, KIND_IPC, device);
            if (!range) abort();
            range->mapping = memory;
            range->mapping_size = bytes;
            range->context = simcuda_current_context();
            *out = address;
        }
    }
    return (CUresult)simcuda_end(&call, address, handle.size, device, NULL, result);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    struct simcuda_call call;
    size_t size = 0;
    CUresult result = (CUresult)simcuda_begin(&call, "cuIpcCloseMemHandle");
    if (result == CUDA_SUCCESS) {
        struct simcuda_range *range = simcuda_find(pointer);
        if (range && range->kind == KIND_IPC && range->base == pointer) {
            size = range->size;
            munmap(range->mapping, range->mapping_size);
            simcuda_untrack(range);
        } else {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return (CUresult)simcuda_end(&call, pointer, size, simcuda_current_device(), NULL, result);
}
