/* Shared by the files of the simulated runtime. */
#ifndef SIMCUDA_RUNTIME_H
#define SIMCUDA_RUNTIME_H

#include "simcuda.h"

#include <cuda_runtime_api.h>

/* Remembers an error for cudaGetLastError. Runtime and driver number their errors alike. */
cudaError_t simcuda_result(int error);

/* Makes sure that the thread has a context, as every runtime call does that needs a device. */
cudaError_t simcuda_ready(void);

#define NEEDS_DEVICE(function)                                              \
    do {                                                                    \
        int error_ = simcuda_fail(function);                                \
        if (error_ == 0) error_ = simcuda_ready();                          \
        if (error_ != 0) return simcuda_result(error_);                     \
    } while (0)

#endif
