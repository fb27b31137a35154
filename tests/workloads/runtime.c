// The smallest device runtime: two functions, for interpreters in roots whose C library is older than what the simulated
// device wants. Nothing of a C library is used.

static unsigned long next = 0x7f4000000000;

__attribute__((visibility("default"))) int cudaMalloc(void **pointer, unsigned long size) {
    *pointer = (void *)__atomic_fetch_add(&next, (size + 0xffffful) & ~0xffffful, __ATOMIC_RELAXED);
    return 0;
}

__attribute__((visibility("default"))) int cudaFree(void *pointer) {
    return pointer == 0;
}

// Allocates while a word of the process holds something else: what a walk finds in an interpreter that is broken.
__attribute__((visibility("default"))) int poked(void **pointer, unsigned long size, volatile unsigned long *word, unsigned long value) {
    unsigned long before = *word;
    *word = value;
    int status = cudaMalloc(pointer, size);
    *word = before;
    return status;
}
