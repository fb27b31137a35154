/* An extension that has a runtime linked into it: its cudaMalloc and cudaFree are local symbols, or none
 * at all when it is stripped, and call the driver as the real ones do. */
#include <stddef.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemFree_v2(unsigned long long);

#define LOCAL __attribute__((visibility("hidden"), noinline, noclone))

LOCAL int cudaMalloc(void **out, size_t size) {
    unsigned long long address = 0;
    int result = cuMemAlloc_v2(&address, size);
    *out = (void *)address;
    return result;
}

LOCAL int cudaFree(void *pointer) {
    int result = cuMemFree_v2((unsigned long long)pointer);
    __asm__ volatile("" ::: "memory"); /* a call and no jump, as in the real one */
    return result;
}

int work_malloc(void **out, size_t size) {
    static void *context;
    if (!context) {
        cuInit(0);
        cuDevicePrimaryCtxRetain(&context, 0);
        cuCtxSetCurrent(context);
    }
    int result = cudaMalloc(out, size);
    __asm__ volatile("" ::: "memory");
    return result;
}

int work_free(void *pointer) {
    int result = cudaFree(pointer);
    __asm__ volatile("" ::: "memory");
    return result;
}
