/* Graphs: what is captured is forgotten, and running it does nothing. What matters is that a stream says
 * whether it is captured: the caching allocator asks. */
#include "rt_stream.h"

#include <stdlib.h>

enum { STATUS_NONE, STATUS_ACTIVE };

struct simcann_graph {
    int device;
};

EXPORT aclError aclmdlRICaptureBegin(aclrtStream stream, int mode) {
    struct simcann_stream *it = stream;
    (void)mode;
    if (!it || it->capturing) return ACL_ERROR_RT_PARAM_INVALID;
    it->capturing = calloc(1, sizeof *it->capturing);
    it->capturing->device = it->device;
    return ACL_SUCCESS;
}

EXPORT aclError aclmdlRICaptureGetInfo(aclrtStream stream, int *status, void **graph) {
    struct simcann_stream *it = stream;
    if (status) *status = it && it->capturing ? STATUS_ACTIVE : STATUS_NONE;
    if (graph) *graph = it ? it->capturing : NULL;
    return ACL_SUCCESS;
}

EXPORT aclError aclmdlRICaptureEnd(aclrtStream stream, void **graph) {
    struct simcann_stream *it = stream;
    if (!it || !it->capturing || !graph) return ACL_ERROR_RT_PARAM_INVALID;
    *graph = it->capturing;
    simcann_capture_ends(it->capturing);
    return ACL_SUCCESS;
}

EXPORT aclError aclmdlRICaptureThreadExchangeMode(int *mode) {
    static __thread int current;
    if (!mode) return ACL_ERROR_RT_PARAM_INVALID;
    int before = current;
    current = *mode;
    *mode = before;
    return ACL_SUCCESS;
}

/* One launch each: a probe sees that a graph runs. */
EXPORT aclError aclmdlRIExecuteAsync(void *graph, aclrtStream stream) {
    if (!graph) return ACL_ERROR_RT_PARAM_INVALID;
    return rtKernelLaunchWithFlagV2(graph, 1, NULL, NULL, stream, 0, NULL);
}

EXPORT aclError aclmdlRIDestroy(void *graph) {
    if (!graph) return ACL_ERROR_RT_PARAM_INVALID;
    free(graph);
    return ACL_SUCCESS;
}

EXPORT aclError aclmdlRIDebugPrint(void *graph) { return graph ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID; }

EXPORT aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream) {
    return stream ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

EXPORT aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, void **group) {
    if (!stream || !group) return ACL_ERROR_RT_PARAM_INVALID;
    *group = ((struct simcann_stream *)stream)->capturing;
    return ACL_SUCCESS;
}

EXPORT aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, void *group) {
    return stream && group ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

EXPORT aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream) {
    return stream ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}
