/* cuBLASLt: reports one algorithm for every product, and computes none. */
#include "simcuda.h"

#include <stdlib.h>
#include <string.h>

#include "cublas_types.h"

typedef void *cublasLtDescriptor;

cublasStatus_t cublasLtCreate(cublasLtDescriptor *out) {
    *out = calloc(1, 64);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtDescriptor handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDA_VERSION; }
const char *cublasLtGetStatusName(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_INTERNAL_ERROR";
}
const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an internal operation failed";
}

/* Descriptions are opaque to the caller; nothing is read back from them. */
static cublasStatus_t create(void **out) {
    *out = calloc(1, 512);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy(void *description) {
    free(description);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtDescriptor *out, int compute, int scale) {
    (void)compute, (void)scale;
    return create(out);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtDescriptor description) { return destroy(description); }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtDescriptor *out, int type, uint64_t rows, uint64_t columns,
                                          int64_t leading) {
    (void)type, (void)rows, (void)columns, (void)leading;
    return create(out);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtDescriptor description) { return destroy(description); }
cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtDescriptor *out, int scale) {
    (void)scale;
    return create(out);
}
cublasStatus_t cublasLtMatrixTransformDescDestroy(cublasLtDescriptor description) { return destroy(description); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtDescriptor *out) { return create(out); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtDescriptor description) { return destroy(description); }

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtDescriptor handle, cublasLtDescriptor operation,
                                              cublasLtDescriptor a, cublasLtDescriptor b,
                                              cublasLtDescriptor c, cublasLtDescriptor d,
                                              cublasLtDescriptor preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *count) {
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *count = wanted > 0 ? 1 : 0;
    if (wanted > 0) {
        memset(results, 0, sizeof *results);
        results->state = CUBLAS_STATUS_SUCCESS;
        results->waves = 1.0f;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtDescriptor handle, cublasLtDescriptor operation,
                                       cublasLtDescriptor a, cublasLtDescriptor b, cublasLtDescriptor c,
                                       cublasLtDescriptor d, const void *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result) {
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)algorithm;
    memset(result, 0, sizeof *result);
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}
