/* A library that has the symbol by which PyTorch's allocator is found, and nothing else of it. */
__attribute__((aligned(4096))) void *allocator[1024] __asm__("_ZN3c104cuda20CUDACachingAllocator9allocatorE") = {(void *)4096};
