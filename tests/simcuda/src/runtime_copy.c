/* Copies and fills: done by the host, at once. */
#include "runtime.h"

#include <string.h>

static cudaError_t copy(const char *name, void *to, const void *from, size_t bytes) {
    NEEDS_DEVICE(name);
    if (bytes != 0 && (!to || !from)) return simcuda_result(cudaErrorInvalidValue);
    if (bytes != 0) simcuda_copy(to, from, bytes);
    return cudaSuccess;
}

static cudaError_t copy_rows(const char *name, char *to, size_t to_pitch, const char *from, size_t from_pitch,
                             size_t width, size_t height) {
    NEEDS_DEVICE(name);
    for (size_t row = 0; row < height; row++) simcuda_copy(to + row * to_pitch, from + row * from_pitch, width);
    return cudaSuccess;
}

static cudaError_t fill(const char *name, void *to, int value, size_t bytes) {
    NEEDS_DEVICE(name);
    if (bytes != 0 && !to) return simcuda_result(cudaErrorInvalidValue);
    if (bytes != 0) simcuda_set(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind;
    return copy("cudaMemcpy", to, from, bytes);
}

cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind;
    return copy("cudaMemcpy_ptds", to, from, bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind, (void)stream;
    return copy("cudaMemcpyAsync", to, from, bytes);
}

cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                 cudaStream_t stream) {
    (void)kind, (void)stream;
    return copy("cudaMemcpyAsync_ptsz", to, from, bytes);
}

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
    (void)to_device, (void)from_device;
    return copy("cudaMemcpyPeer", to, from, bytes);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
    (void)to_device, (void)from_device, (void)stream;
    return copy("cudaMemcpyPeerAsync", to, from, bytes);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind) {
    (void)kind;
    return copy_rows("cudaMemcpy2D", to, to_pitch, from, from_pitch, width, height);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind, (void)stream;
    return copy_rows("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width, height);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) { return fill("cudaMemset", to, value, bytes); }
cudaError_t cudaMemset_ptds(void *to, int value, size_t bytes) { return fill("cudaMemset_ptds", to, value, bytes); }

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    (void)stream;
    return fill("cudaMemsetAsync", to, value, bytes);
}

cudaError_t cudaMemsetAsync_ptsz(void *to, int value, size_t bytes, cudaStream_t stream) {
    (void)stream;
    return fill("cudaMemsetAsync_ptsz", to, value, bytes);
}

cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    NEEDS_DEVICE("cudaMemset2D");
    for (size_t row = 0; row < height; row++) simcuda_set((char *)to + row * pitch, value, width);
    return cudaSuccess;
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    (void)stream;
    return cudaMemset2D(to, pitch, value, width, height);
}
