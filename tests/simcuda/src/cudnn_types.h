/* What programs that were built against cuDNN 9 expect: sizes of structures, values of enumerations. Handles and
 * descriptions are addresses that only the library itself looks into. */
#ifndef SIMCUDA_CUDNN_TYPES_H
#define SIMCUDA_CUDNN_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL: those that the environment's PyTorch asks for. */
#include "cudnn_version.h"

typedef enum { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_BAD_PARAM = 2000, CUDNN_STATUS_NOT_SUPPORTED = 3000 } cudnnStatus_t;
typedef enum { CUDNN_DATA_FLOAT = 0, CUDNN_DATA_DOUBLE = 1, CUDNN_DATA_HALF = 2 } cudnnDataType_t;
typedef enum { CUDNN_LSTM = 2, CUDNN_GRU = 3 } cudnnRNNMode_t;
typedef enum { CUDNN_RNN_NO_BIAS = 0, CUDNN_RNN_DOUBLE_BIAS = 2 } cudnnRNNBiasMode_t;
typedef enum { CUDNN_BIDIRECTIONAL = 1 } cudnnDirectionMode_t;
typedef enum { CUDNN_FWD_MODE_TRAINING = 1 } cudnnForwardMode_t;
typedef enum { CUDNN_DETERMINISTIC = 1 } cudnnDeterminism_t;

typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnRNNStruct *cudnnRNNDescriptor_t;
typedef void *cudnnDescriptor;

/* What cuDNN answers to a question for an algorithm of a convolution; forward and both kinds of backward alike. */
typedef struct {
    int algorithm;
    cudnnStatus_t status;
    float time;
    size_t memory;
    cudnnDeterminism_t determinism;
    int math;
    int reserved[3];
} cudnnAlgoPerf;

_Static_assert(sizeof(cudnnAlgoPerf) == 48, "as large as the real one");

#endif
