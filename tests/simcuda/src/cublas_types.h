/* What programs that were built against cuBLAS and cuBLASLt expect: sizes of structures, values of enumerations. Handles
 * and descriptions are addresses that only the library itself looks into. */
#ifndef SIMCUDA_CUBLAS_TYPES_H
#define SIMCUDA_CUBLAS_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef enum { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7 } cublasStatus_t;

/* The version of CUDA itself: cuBLAS' own differs from it in the last places. */
enum {
    CUBLAS_MAJOR = CUDA_VERSION / 1000,
    CUBLAS_MINOR = CUDA_VERSION % 1000 / 10,
    CUBLAS_VERSION = CUBLAS_MAJOR * 10000 + CUBLAS_MINOR * 100
};

/* What cublasLt answers to a question for an algorithm. */
typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    cublasStatus_t state;
    float waves;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

_Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96, "as large as the real one");

#endif
