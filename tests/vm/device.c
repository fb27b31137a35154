/*
 * A stand-in for a device's runtime: hands out addresses, counts what it holds, and refuses what is too much.
 * Nothing here is fast or clever: it is there so that somebody calls functions of these names.
 */
#include "device.h"

#include <pthread.h>
#include <stdint.h>

#define MOST ((size_t)1 << 40)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t next = 0x7000000000;

int cudaSetDevice(int device) {
    return device == 0 ? 0 : 101;
}

int cudaMalloc(void **address, size_t bytes) {
    if (bytes > MOST)
        return 2;
    pthread_mutex_lock(&lock);
    *address = (void *)next;
    next += (bytes + 511) / 512 * 512 + 512;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cudaFree(void *address) {
    (void)address;
    return 0;
}
