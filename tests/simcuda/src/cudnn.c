/* cuDNN: descriptions exist, one algorithm is reported for every convolution, nothing is computed.
 *
 * This is the older interface. PyTorch uses it when TORCH_CUDNN_V8_API_DISABLED is set. */
#include "simcuda.h"

#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include <library_types.h>

#include "cudnn_types.h"

struct cudnnContext {
    cudaStream_t stream;
};

cudnnStatus_t cudnnCreate(cudnnHandle_t *out) {
    *out = calloc(1, sizeof **out);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) { return handle->stream = stream, CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) { return *stream = handle->stream, CUDNN_STATUS_SUCCESS; }
size_t cudnnGetVersion(void) { return CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return status == 0 ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_SUPPORTED"; }
void cudnnGetLastErrorString(char *text, size_t size) {
    if (size > 0) text[0] = 0;
}

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
    static const int parts[] = {CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL};
    if ((int)type < 0 || (int)type > 2) return CUDNN_STATUS_BAD_PARAM;
    *value = parts[type];
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t create(void *out) {
    *(void **)out = calloc(1, 512);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(void *description) {
    free(description);
    return CUDNN_STATUS_SUCCESS;
}

#define DESCRIPTION(kind)                                                                   \
    cudnnStatus_t cudnnCreate##kind##Descriptor(cudnnDescriptor *out) { return create(out); } \
    cudnnStatus_t cudnnDestroy##kind##Descriptor(cudnnDescriptor description) { return destroy(description); }

DESCRIPTION(Tensor)
DESCRIPTION(Filter)
DESCRIPTION(Convolution)
DESCRIPTION(Dropout)
DESCRIPTION(Activation)
DESCRIPTION(Pooling)
DESCRIPTION(SpatialTransformer)
DESCRIPTION(CTCLoss)

cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *size) {
    (void)handle;
    *size = 1 << 20;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t handle, int algorithm,
                                              const cudnnDescriptor loss, const cudnnDescriptor probabilities,
                                              const cudnnDescriptor gradients, size_t *size) {
    (void)handle, (void)algorithm, (void)loss, (void)probabilities, (void)gradients;
    *size = 1 << 20;
    return CUDNN_STATUS_SUCCESS;
}

/* Every convolution asks for the same workspace, so that there is one to see. */
enum { WORKSPACE = 1 << 20 };

#define ONE_RESULT(wanted, count, results)               \
    do {                                                 \
        *(count) = (wanted) > 0 ? 1 : 0;                 \
        if ((wanted) > 0) {                              \
            memset(results, 0, sizeof *(results));       \
            (results)->status = CUDNN_STATUS_SUCCESS;    \
            (results)->determinism = CUDNN_DETERMINISTIC; \
            (results)->memory = WORKSPACE;               \
        }                                                \
        return CUDNN_STATUS_SUCCESS;                     \
    } while (0)

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, const cudnnDescriptor x,
                                                     const cudnnDescriptor w, const cudnnDescriptor convolution,
                                                     const cudnnDescriptor y, const int wanted, int *count,
                                                     cudnnAlgoPerf *results) {
    (void)handle, (void)x, (void)w, (void)convolution, (void)y;
    ONE_RESULT(wanted, count, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, const cudnnDescriptor w,
                                                          const cudnnDescriptor dy,
                                                          const cudnnDescriptor convolution,
                                                          const cudnnDescriptor dx, const int wanted, int *count,
                                                          cudnnAlgoPerf *results) {
    (void)handle, (void)w, (void)dy, (void)convolution, (void)dx;
    ONE_RESULT(wanted, count, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, const cudnnDescriptor x,
                                                            const cudnnDescriptor dy,
                                                            const cudnnDescriptor convolution,
                                                            const cudnnDescriptor dw, const int wanted, int *count,
                                                            cudnnAlgoPerf *results) {
    (void)handle, (void)x, (void)dy, (void)convolution, (void)dw;
    ONE_RESULT(wanted, count, results);
}

/* torch.backends.cudnn.benchmark: the same answer. */
cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t handle, const cudnnDescriptor x_description,
                                                     const void *x, const cudnnDescriptor w_description, const void *w,
                                                     const cudnnDescriptor convolution,
                                                     const cudnnDescriptor y_description, void *y, const int wanted,
                                                     int *count, cudnnAlgoPerf *results, void *workspace,
                                                     size_t size) {
    (void)handle, (void)x_description, (void)x, (void)w_description, (void)w, (void)convolution, (void)y_description;
    (void)y, (void)workspace, (void)size;
    ONE_RESULT(wanted, count, results);
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(cudnnHandle_t handle, const cudnnDescriptor w_description,
                                                          const void *w, const cudnnDescriptor dy_description,
                                                          const void *dy, const cudnnDescriptor convolution,
                                                          const cudnnDescriptor dx_description, void *dx,
                                                          const int wanted, int *count,
                                                          cudnnAlgoPerf *results, void *workspace,
                                                          size_t size) {
    (void)handle, (void)w_description, (void)w, (void)dy_description, (void)dy, (void)convolution;
    (void)dx_description, (void)dx, (void)workspace, (void)size;
    ONE_RESULT(wanted, count, results);
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(cudnnHandle_t handle, const cudnnDescriptor x_description,
                                                            const void *x, const cudnnDescriptor dy_description,
                                                            const void *dy, const cudnnDescriptor convolution,
                                                            const cudnnDescriptor dw_description, void *dw,
                                                            const int wanted, int *count,
                                                            cudnnAlgoPerf *results, void *workspace,
                                                            size_t size) {
    (void)handle, (void)x_description, (void)x, (void)dy_description, (void)dy, (void)convolution;
    (void)dw_description, (void)dw, (void)workspace, (void)size;
    ONE_RESULT(wanted, count, results);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnDescriptor x,
                                                      const cudnnDescriptor w,
                                                      const cudnnDescriptor convolution,
                                                      const cudnnDescriptor y, int algorithm,
                                                      size_t *size) {
    (void)handle, (void)x, (void)w, (void)convolution, (void)y, (void)algorithm;
    *size = WORKSPACE;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, const cudnnDescriptor w,
                                                           const cudnnDescriptor dy,
                                                           const cudnnDescriptor convolution,
                                                           const cudnnDescriptor dx,
                                                           int algorithm, size_t *size) {
    (void)handle, (void)w, (void)dy, (void)convolution, (void)dx, (void)algorithm;
    *size = WORKSPACE;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, const cudnnDescriptor x,
                                                             const cudnnDescriptor dy,
                                                             const cudnnDescriptor convolution,
                                                             const cudnnDescriptor dw,
                                                             int algorithm, size_t *size) {
    (void)handle, (void)x, (void)dy, (void)convolution, (void)dw, (void)algorithm;
    *size = WORKSPACE;
    return CUDNN_STATUS_SUCCESS;
}

#define BATCH_NORM_OPERATION int mode, int operation

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, BATCH_NORM_OPERATION, const cudnnDescriptor x, const cudnnDescriptor z,
    const cudnnDescriptor y, const cudnnDescriptor scale, const cudnnDescriptor activation,
    size_t *size) {
    (void)handle, (void)mode, (void)operation, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, BATCH_NORM_OPERATION, const cudnnDescriptor x, const cudnnDescriptor y,
    const cudnnDescriptor dy, const cudnnDescriptor dz, const cudnnDescriptor dx,
    const cudnnDescriptor scale, const cudnnDescriptor activation, size_t *size) {
    (void)handle, (void)mode, (void)operation, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale, (void)activation;
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t handle, BATCH_NORM_OPERATION,
                                                                   const cudnnDescriptor activation,
                                                                   const cudnnDescriptor x, size_t *size) {
    (void)handle, (void)mode, (void)operation, (void)activation, (void)x;
    *size = 0;
    return CUDNN_STATUS_SUCCESS;
}
