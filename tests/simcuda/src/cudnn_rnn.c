/* cuDNN's recurrent networks: only the layout of their weights, which PyTorch asks for. */
#include "simcuda.h"

#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "cudnn_types.h"

struct cudnnRNNStruct {
    int gates, biases, directions, layers;
    size_t input, hidden, projection, element;
};

/* The start of what cudnnCreateTensorDescriptor allocates. */
struct matrix {
    cudnnDataType_t type;
    int dimensions, sizes[8], strides[8];
};

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *out) {
    *out = calloc(1, sizeof **out);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t rnn) {
    free(rnn);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnDescriptor *out) {
    *out = calloc(1, 64);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnDescriptor data) {
    free(data);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, int algorithm, cudnnRNNMode_t cell,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction, int input_mode,
                                       cudnnDataType_t type, cudnnDataType_t precision, int math, int32_t input,
                                       int32_t hidden, int32_t projection, int32_t layers, cudnnDescriptor dropout,
                                       uint32_t flags) {
    (void)algorithm, (void)input_mode, (void)precision, (void)math, (void)dropout, (void)flags;
    *rnn = (struct cudnnRNNStruct){
        .gates = cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1,
        .biases = bias == CUDNN_RNN_NO_BIAS ? 0 : bias == CUDNN_RNN_DOUBLE_BIAS ? 2 : 1,
        .directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1,
        .layers = layers,
        .input = (size_t)input,
        .hidden = (size_t)hidden,
        .projection = (size_t)projection,
        .element = type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2,
    };
    return CUDNN_STATUS_SUCCESS;
}

static size_t inputs_of(const struct cudnnRNNStruct *rnn, int layer) {
    return layer / rnn->directions == 0 ? rnn->input : rnn->projection * (size_t)rnn->directions;
}

/* Elements of a (layer, direction)'s weights, without biases. */
static size_t weights_of(const struct cudnnRNNStruct *rnn, int layer) {
    size_t gates = (size_t)rnn->gates * rnn->hidden * (inputs_of(rnn, layer) + rnn->projection);
    return gates + (rnn->projection != rnn->hidden ? rnn->projection * rnn->hidden : 0);
}

static size_t all_weights(const struct cudnnRNNStruct *rnn, int before) {
    size_t count = 0;
    for (int layer = 0; layer < before; layer++) count += weights_of(rnn, layer);
    return count;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, size_t *size) {
    int layers = rnn->layers * rnn->directions;
    (void)handle;
    *size = rnn->element * (all_weights(rnn, layers) + (size_t)layers * (size_t)(rnn->biases * rnn->gates) * rnn->hidden);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnDescriptor data, size_t *work, size_t *reserve) {
    (void)handle, (void)rnn, (void)data;
    if (work) *work = 1 << 20;
    if (reserve) *reserve = mode == CUDNN_FWD_MODE_TRAINING ? 1 << 20 : 0;
    return CUDNN_STATUS_SUCCESS;
}

static void describe(cudnnDescriptor description, size_t rows, size_t columns) {
    struct matrix *matrix = (struct matrix *)description;
    *matrix = (struct matrix){.type = CUDNN_DATA_FLOAT, .dimensions = 3, .sizes = {1, (int)rows, (int)columns},
                              .strides = {(int)(rows * columns), (int)columns, 1}};
}

/* Matrices first (those of the input, of the state, the projection), then all biases. Either address may
 * be NULL: PyTorch asks for one at a time. */
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int32_t layer, size_t size,
                                      const void *space, int32_t id, cudnnDescriptor matrix, void **matrix_address,
                                      cudnnDescriptor bias, void **bias_address) {
    size_t hidden = rnn->hidden, inputs = inputs_of(rnn, layer), offset = all_weights(rnn, layer);
    int gates = rnn->gates, layers = rnn->layers * rnn->directions;
    size_t rows = hidden, columns = id < gates ? inputs : rnn->projection;
    (void)handle, (void)size;
    if (id < gates) {
        offset += (size_t)id * hidden * inputs;
    } else {
        offset += (size_t)gates * hidden * inputs + (size_t)(id - gates) * hidden * rnn->projection;
        if (id == 2 * gates) {
            rows = rnn->projection;
            columns = hidden;
        }
    }
    bool has_matrix = id < 2 * gates || rnn->projection != hidden;
    if (matrix_address) *matrix_address = has_matrix ? (char *)space + offset * rnn->element : NULL;
    if (has_matrix && matrix) describe(matrix, rows, columns);
    bool has_bias = id < rnn->biases * gates;
    size_t first = all_weights(rnn, layers) + ((size_t)layer * (size_t)(rnn->biases * gates) + (size_t)id) * hidden;
    if (bias_address) *bias_address = has_bias ? (char *)space + first * rnn->element : NULL;
    if (has_bias && bias) describe(bias, hidden, 1);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnDescriptor description, int wanted, cudnnDataType_t *type,
                                         int *dimensions, int sizes[], int strides[]) {
    const struct matrix *matrix = (const struct matrix *)description;
    *type = matrix->type;
    *dimensions = matrix->dimensions;
    for (int i = 0; i < wanted && i < matrix->dimensions; i++) {
        sizes[i] = matrix->sizes[i];
        strides[i] = matrix->strides[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnDescriptor description, cudnnDataType_t type, int dimensions,
                                         const int sizes[], const int strides[]) {
    struct matrix *matrix = (struct matrix *)description;
    if (dimensions < 0 || dimensions > 8) return CUDNN_STATUS_NOT_SUPPORTED;
    *matrix = (struct matrix){.type = type, .dimensions = dimensions};
    memcpy(matrix->sizes, sizes, (size_t)dimensions * sizeof *sizes);
    memcpy(matrix->strides, strides, (size_t)dimensions * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}
