/* Streams, events and stream capture. Work takes no time; an event may be told to complete late
 * (SIMCUDA_EVENT_DELAY_US), so that memory in use on a side stream is not free at once. */
#include "simcuda.h"

#include <stdlib.h>
#include <time.h>

enum { STREAM_MAGIC = 0x51c0de20, EVENT_MAGIC = 0x51c0de30, GRAPH_MAGIC = 0x51c0de40 };

struct stream {
    uint32_t magic;
    int device, priority;
    unsigned flags;
    uint64_t id, busy_until_ns, capture;
    bool origin; /* of the capture, rather than joined to it by an event */
    CUgraph graph;
    struct stream *next;
};

struct event {
    uint32_t magic;
    unsigned flags;
    bool recorded;
    uint64_t recorded_ns, done_ns, capture;
};

struct graph {
    uint32_t magic;
    uint64_t id;
};

static struct stream *streams;
static struct stream legacy[SIMCUDA_MAX_DEVICES];
static __thread struct stream per_thread;
static uint64_t next_stream = 16, next_capture = 1;

static struct stream *stream_of(CUstream handle) {
    if (handle == CU_STREAM_PER_THREAD) {
        per_thread.magic = STREAM_MAGIC;
        per_thread.device = simcuda_device_or_zero();
        per_thread.id = 2;
        return &per_thread;
    }
    if (!handle || handle == CU_STREAM_LEGACY) {
        int device = simcuda_device_or_zero();
        struct stream *stream = &legacy[device < 0 ? 0 : device];
        stream->magic = STREAM_MAGIC;
        stream->device = device;
        stream->id = 1;
        return stream;
    }
    struct stream *stream = (struct stream *)handle;
    return stream->magic == STREAM_MAGIC ? stream : NULL;
}

static void wait_until(uint64_t then) {
    uint64_t now = simcuda_now_ns();
    if (then <= now) return;
    struct timespec rest = {(time_t)((then - now) / 1000000000u), (long)((then - now) % 1000000000u)};
    while (nanosleep(&rest, &rest) != 0) continue;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    int error = simcuda_fail("cuStreamCreateWithPriority");
    if (error) return (CUresult)error;
    int device = simcuda_device_or_zero();
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    struct stream *stream = calloc(1, sizeof *stream);
    simcuda_lock();
    *stream = (struct stream){.magic = STREAM_MAGIC, .device = device, .priority = priority,
                              .flags = flags, .id = next_stream++, .next = streams};
    streams = stream;
    simcuda_unlock();
    *out = (CUstream)stream;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    struct stream *stream = (struct stream *)handle;
    if (!stream || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD || stream->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    simcuda_lock();
    struct stream **link = &streams;
    while (*link && *link != stream) link = &(*link)->next;
    if (*link) *link = stream->next;
    simcuda_unlock();
    stream->magic = 0;
    free(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    struct stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    wait_until(stream->busy_until_ns);
    simcuda_pools_synchronized(stream->device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
    struct stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return simcuda_now_ns() >= stream->busy_until_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority) {
    struct stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
    struct stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
    struct stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    *id = stream->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
    struct stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    *context = simcuda_primary(stream->device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent wait, unsigned flags) {
    struct stream *stream = stream_of(handle);
    struct event *event = (struct event *)wait;
    (void)flags;
    if (!stream || !event || event->magic != EVENT_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) stream->capture = event->capture;
    if (event->done_ns > stream->busy_until_ns) stream->busy_until_ns = event->done_ns;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    int error = simcuda_fail("cuCtxSynchronize");
    if (error) return (CUresult)error;
    int device = simcuda_device_or_zero();
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    simcuda_lock();
    uint64_t until = legacy[device].busy_until_ns;
    for (struct stream *it = streams; it; it = it->next)
        if (it->device == device && it->busy_until_ns > until) until = it->busy_until_ns;
    simcuda_unlock();
    wait_until(until);
    simcuda_pools_synchronized(device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags) {
    int error = simcuda_fail("cuEventCreate");
    if (error) return (CUresult)error;
    struct event *event = calloc(1, sizeof *event);
    event->magic = EVENT_MAGIC;
    event->flags = flags;
    *out = (CUevent)event;
    return CUDA_SUCCESS;
}

static struct event *event_of(CUevent handle) {
    struct event *event = (struct event *)handle;
    return event && event->magic == EVENT_MAGIC ? event : NULL;
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
    struct event *event = event_of(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    event->magic = 0;
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecordWithFlags(CUevent handle, CUstream on, unsigned flags) {
    struct event *event = event_of(handle);
    struct stream *stream = stream_of(on);
    (void)flags;
    if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
    event->recorded = true;
    event->recorded_ns = simcuda_now_ns();
    event->done_ns = event->recorded_ns + simcuda_settings()->event_delay_ns;
    event->capture = stream->capture;
    if (event->done_ns > stream->busy_until_ns && !stream->capture) stream->busy_until_ns = event->done_ns;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream on) { return cuEventRecordWithFlags(handle, on, 0); }

EXPORT CUresult cuEventQuery(CUevent handle) {
    struct event *event = event_of(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    return !event->recorded || simcuda_now_ns() >= event->done_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent handle) {
    struct event *event = event_of(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (event->recorded) wait_until(event->done_ns);
    simcuda_pools_synchronized(-1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
    struct event *start = event_of(from), *end = event_of(to);
    if (!start || !end || !start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)((double)end->recorded_ns - (double)start->recorded_ns) / 1e6f;
    return CUDA_SUCCESS;
}

#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    return cuEventElapsedTime_v2(milliseconds, from, to);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    struct stream *stream = stream_of(handle);
    (void)mode;
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture || stream->id < 16) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct graph *graph = calloc(1, sizeof *graph);
    graph->magic = GRAPH_MAGIC;
    simcuda_lock();
    graph->id = stream->capture = next_capture++;
    simcuda_unlock();
    stream->origin = true;
    stream->graph = (CUgraph)graph;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    struct stream *stream = stream_of(handle);
    if (!stream || !stream->capture || !stream->origin) return CUDA_ERROR_ILLEGAL_STATE;
    uint64_t ended = stream->capture;
    *graph = stream->graph;
    stream->origin = false;
    stream->graph = NULL;
    simcuda_lock();
    for (struct stream *it = streams; it; it = it->next)
        if (it->capture == ended) it->capture = 0;
    simcuda_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    struct stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* For the runtime, whose own function changed its arguments between versions. */
EXPORT CUresult simcuda_capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph) {
    struct stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (status) *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    if (id && stream->capture) *id = stream->capture;
    if (graph) *graph = stream->graph;
    return CUDA_SUCCESS;
}

EXPORT int simcuda_stream_device(CUstream handle) {
    struct stream *stream = stream_of(handle);
    return stream ? stream->device : -1;
}
