/* cuBLAS: handles exist, matrices are not multiplied. */
#include "simcuda.h"

#include <stdlib.h>

#include <library_types.h>

#include "cublas_types.h"

struct cublasContext {
    CUstream stream;
    int math_mode, pointer_mode;
};
typedef struct cublasContext *cublasHandle_t;

cublasStatus_t cublasCreate_v2(cublasHandle_t *out) {
    *out = calloc(1, sizeof **out);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
    (void)handle;
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

/* 0, 1, 2: major, minor, patch level. */
cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value) {
    static const int parts[] = {CUBLAS_MAJOR, CUBLAS_MINOR, 0};
    if ((int)type < 0 || (int)type > 2) return CUBLAS_STATUS_INVALID_VALUE;
    *value = parts[type];
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasGetCudartVersion(void) { return CUDA_VERSION; }
const char *cublasGetStatusName(cublasStatus_t status) { return status == 0 ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_INTERNAL_ERROR"; }
const char *cublasGetStatusString(cublasStatus_t status) { return status == 0 ? "success" : "an internal operation failed"; }

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, CUstream stream) { return handle->stream = stream, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, CUstream *stream) { return *stream = handle->stream, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode) { return handle->math_mode = mode, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, int *mode) { return *mode = handle->math_mode, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, int mode) { return handle->pointer_mode = mode, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, int *mode) { return *mode = handle->pointer_mode, CUBLAS_STATUS_SUCCESS; }
