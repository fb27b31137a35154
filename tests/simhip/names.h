/* The names that AMD's HIP has for what the simulated CUDA device does.
 *
 * HIP's runtime has CUDA's functions under names of its own, with the same arguments and the same numbers
 * of errors, so the simulated libamdhip64 is the simulated CUDA device compiled with this header in front
 * of each file. The C workloads that call it are compiled with it too. The log and the plan of failures
 * keep CUDA's names. What has no name here is not exported. */
#ifndef SIMHIP_NAMES_H
#define SIMHIP_NAMES_H

#define cudaMalloc hipMalloc
#define cudaMallocManaged hipMallocManaged
#define cudaMallocPitch hipMallocPitch
#define cudaMalloc3D hipMalloc3D
#define cudaFree hipFree
#define cudaHostAlloc hipHostMalloc
#define cudaMallocHost hipMallocHost
#define cudaFreeHost hipHostFree
#define cudaHostRegister hipHostRegister
#define cudaHostUnregister hipHostUnregister
#define cudaMallocAsync hipMallocAsync
#define cudaMallocFromPoolAsync hipMallocFromPoolAsync
#define cudaFreeAsync hipFreeAsync
#define cudaMemPoolCreate hipMemPoolCreate
#define cudaMallocArray hipMallocArray
#define cudaMalloc3DArray hipMalloc3DArray
#define cudaFreeArray hipFreeArray
#define cudaIpcGetMemHandle hipIpcGetMemHandle
#define cudaIpcOpenMemHandle hipIpcOpenMemHandle
#define cudaIpcCloseMemHandle hipIpcCloseMemHandle
#define cudaMemGetInfo hipMemGetInfo
#define cudaSetDevice hipSetDevice
#define cudaGetDevice hipGetDevice
#define cudaGetDeviceCount hipGetDeviceCount
#define cudaDeviceReset hipDeviceReset
#define cudaDeviceSynchronize hipDeviceSynchronize
#define cudaStreamCreate hipStreamCreate
#define cudaStreamDestroy hipStreamDestroy
#define cudaLaunchKernel hipLaunchKernel

/* Of CUDA's driver. HIP has one library for both, and several names for some functions. */
#define cuMemAlloc_v2 hipExtMallocWithFlags /* its third argument, the flags, is left alone */
#define cuMemAllocPitch_v2 hipMemAllocPitch
#define cuMemHostAlloc hipHostAlloc
#define cuMemFreeHost hipFreeHost
#define cuMemAddressReserve hipMemAddressReserve
#define cuMemAddressFree hipMemAddressFree
#define cuMemCreate hipMemCreate
#define cuMemRelease hipMemRelease
#define cuMemMap hipMemMap
#define cuMemUnmap hipMemUnmap
#define cuMemRetainAllocationHandle hipMemRetainAllocationHandle

/* HIP has no second name for these: a workload that calls them ends. */
#pragma weak cuMemFree_v2
#pragma weak cuCtxCreate_v2
#pragma weak cuCtxDestroy_v2
#pragma weak cuCtxPushCurrent_v2
#pragma weak cuCtxPopCurrent_v2
#pragma weak cuCtxSetCurrent
#pragma weak cuDevicePrimaryCtxRetain
#pragma weak cuDevicePrimaryCtxReset_v2
#pragma weak cuMemAllocManaged
#pragma weak cuMemAllocAsync
#pragma weak cuMemFreeAsync
#pragma weak cudaMallocAsync_ptsz
#pragma weak cudaFreeAsync_ptsz

#endif
