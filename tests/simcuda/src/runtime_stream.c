/* Streams, events, capture and graphs: the driver's, under the runtime's names. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

#define STREAM(stream) ((CUstream)(stream))

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    NEEDS_DEVICE("cudaStreamCreateWithPriority");
    return simcuda_result((int)cuStreamCreateWithPriority((CUstream *)out, flags, priority));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithPriority(out, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return simcuda_result((int)cuStreamDestroy_v2(STREAM(stream))); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    NEEDS_DEVICE("cudaStreamSynchronize");
    return simcuda_result((int)cuStreamSynchronize(STREAM(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    NEEDS_DEVICE("cudaStreamQuery");
    return simcuda_result((int)cuStreamQuery(STREAM(stream)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    NEEDS_DEVICE("cudaStreamWaitEvent");
    return simcuda_result((int)cuStreamWaitEvent(STREAM(stream), (CUevent)event, flags));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    return simcuda_result((int)cuStreamGetPriority(STREAM(stream), priority));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    return simcuda_result((int)cuStreamGetFlags(STREAM(stream), flags));
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
    return simcuda_result((int)cuStreamGetId(STREAM(stream), id));
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    *device = simcuda_stream_device(STREAM(stream));
    return simcuda_result(*device < 0 ? cudaErrorInvalidResourceHandle : 0);
}

/* Work takes no time, so what is queued for its end runs at once. */
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
    (void)flags;
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    (void)stream;
    function(data);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    NEEDS_DEVICE("cudaEventCreateWithFlags");
    return simcuda_result((int)cuEventCreate((CUevent *)out, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return simcuda_result((int)cuEventDestroy_v2((CUevent)event)); }

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    NEEDS_DEVICE("cudaEventRecord");
    return simcuda_result((int)cuEventRecordWithFlags((CUevent)event, STREAM(stream), flags));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return simcuda_result((int)cuEventQuery((CUevent)event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return simcuda_result((int)cuEventSynchronize((CUevent)event)); }

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to);

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    return simcuda_result((int)cuEventElapsedTime_v2(milliseconds, (CUevent)from, (CUevent)to));
}

/* Another process's event: work takes no time, so it has happened. */
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *out, cudaEvent_t event) {
    memset(out, 0, sizeof *out);
    memcpy(out, &event, sizeof event);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t handle) {
    (void)handle;
    return cudaEventCreateWithFlags(out, 0);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    NEEDS_DEVICE("cudaStreamBeginCapture");
    return simcuda_result((int)cuStreamBeginCapture_v2(STREAM(stream), (CUstreamCaptureMode)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return simcuda_result((int)cuStreamEndCapture(STREAM(stream), (CUgraph *)graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    return simcuda_result((int)cuStreamIsCapturing(STREAM(stream), (CUstreamCaptureStatus *)status));
}

static cudaError_t capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count) {
    cuuint64_t capture = 0;
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    int error = (int)simcuda_capture_info(STREAM(stream), (CUstreamCaptureStatus *)status, &capture, (CUgraph *)graph);
    if (id) *id = capture;
    return simcuda_result(error);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
    if (edges) *edges = NULL;
    return capture_info(stream, status, id, graph, dependencies, count);
}
#else
#undef cudaStreamGetCaptureInfo
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id) {
    return capture_info(stream, status, id, NULL, NULL, NULL);
}

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **dependencies, size_t *count) {
    return capture_info(stream, status, id, graph, dependencies, count);
}

#if CUDART_VERSION >= 12030
cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                                        size_t *count) {
    if (edges) *edges = NULL;
    return capture_info(stream, status, id, graph, dependencies, count);
}
#endif
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    static __thread enum cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    enum cudaStreamCaptureMode previous = current;
    current = *mode;
    *mode = previous;
    return cudaSuccess;
}

/* A graph is a token: launching it does nothing. It claims one node, because PyTorch warns of empty ones. */
cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned flags) {
    (void)flags;
    *out = calloc(1, 64);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    (void)graph, (void)flags;
    *out = calloc(1, 64);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(out, graph, flags);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    (void)graph, (void)stream;
    return simcuda_result(simcuda_fail("cudaGraphLaunch"));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    if (nodes && *count > 0) nodes[0] = (cudaGraphNode_t)graph;
    *count = 1;
    return cudaSuccess;
}
