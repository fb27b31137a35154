/* What the program of this test calls: the one place to change for another runtime. */
#ifndef DEVICE_H
#define DEVICE_H
#include <stddef.h>

int cudaMalloc(void **address, size_t bytes);
int cudaFree(void *address);

#define DEVICE_ALLOC(address, bytes) cudaMalloc(address, bytes)
#define DEVICE_FREE(address) cudaFree(address)

#endif
