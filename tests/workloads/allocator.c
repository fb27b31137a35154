/* A library that has the symbol by which PyTorch's allocator is found, and nothing else of it. With NATIVE it leads to two pages of an
 * object whose class has the name of PyTorch's own allocator. */
#ifdef NATIVE
static const void *const type[] = {0, "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE"};
static const void *const class[] = {type, 0};
__attribute__((aligned(4096))) const void *native[1024] = {class + 1};
#define IT native
#else
#define IT ((void *)4096)
#endif
__attribute__((aligned(4096))) void *allocator[1024] __asm__("_ZN3c104cuda20CUDACachingAllocator9allocatorE") = {IT};
