/* An allocator for torch.cuda.memory.CUDAPluggableAllocator that goes straight to the runtime. */
#include <stddef.h>
#include <sys/types.h>

int cudaMalloc(void **, size_t);
int cudaFree(void *);
void *give(ssize_t size, int device, void *stream);
void take_back(void *pointer, ssize_t size, int device, void *stream);

void *give(ssize_t size, int device, void *stream) {
    void *pointer = NULL;
    (void)device, (void)stream;
    cudaMalloc(&pointer, (size_t)size);
    return pointer;
}

void take_back(void *pointer, ssize_t size, int device, void *stream) {
    (void)size, (void)device, (void)stream;
    cudaFree(pointer);
}
