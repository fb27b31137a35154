/* Functions named as Ascend's, each of which leaves the stack to the next: as compilers make them of functions that only
 * pass their arguments on. The command is a number of allocations; each second one is freed. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int aclrtMalloc(void **pointer, size_t size, int policy);
int aclrtFree(void *pointer);
int halMemAlloc(void **pointer, unsigned long long size, unsigned long long flag);
int halMemAllocInner(void **pointer, unsigned long long size, unsigned long long flag);
int halMemFree(void *pointer);
int halMemFreeInner(void *pointer);

int halMemAllocInner(void **pointer, unsigned long long size, unsigned long long flag) {
    (void)flag;
    *pointer = malloc(size);
    return *pointer ? 0 : 6;
}

int halMemFreeInner(void *pointer) {
    free(pointer);
    return 0;
}

int halMemAlloc(void **pointer, unsigned long long size, unsigned long long flag) {
    return halMemAllocInner(pointer, size, flag);
}

int halMemFree(void *pointer) { return halMemFreeInner(pointer); }

/* Device 1, memory of the device, huge pages, asked for by HCCL. */
int aclrtMalloc(void **pointer, size_t size, int policy) {
    (void)policy;
    return halMemAlloc(pointer, size, 3ull << 56 | 1ull << 17 | 1ull << 10 | 1);
}

int aclrtFree(void *pointer) { return halMemFree(pointer); }

int main(void) {
    int count;
    printf("{\"ready\":true,\"pid\":%d}\n", (int)getpid());
    fflush(stdout);
    while (scanf("%d", &count) == 1) {
        int bad = 0;
        for (int i = 0; i < count; i++) {
            void *pointer = NULL;
            bad |= aclrtMalloc(&pointer, 1000, 0);
            if (i % 2 == 1) bad |= i % 4 == 1 ? aclrtFree(pointer) : halMemFree(pointer);
        }
        printf("{\"result\":%d}\n", bad);
        fflush(stdout);
    }
    return 0;
}
