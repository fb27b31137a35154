/* What the programs of this test call: the one place, with device.c and `DEVICES` of `cargo xtask vm`, to change for
 * another runtime. */
#ifndef DEVICE_H
#define DEVICE_H
#include <stddef.h>

#ifdef DEVICE_ACL
#include <acl.h>
/* What the driver hands out comes in pages of this size. */
#define DEVICE_UNIT ((size_t)2 << 20)
#define DEVICE_SELECT() aclrtSetDevice(0)
#define DEVICE_ALLOC(address, bytes) aclrtMallocAlign32(address, bytes, ACL_MEM_MALLOC_HUGE_FIRST)
#define DEVICE_FREE(address) aclrtFree(address)
#else
int cudaSetDevice(int device);
int cudaMalloc(void **address, size_t bytes);
int cudaFree(void *address);

#define DEVICE_UNIT ((size_t)512)
#define DEVICE_SELECT() cudaSetDevice(0)
#define DEVICE_ALLOC(address, bytes) cudaMalloc(address, bytes)
#define DEVICE_FREE(address) cudaFree(address)
#endif

#endif
