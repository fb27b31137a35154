/* Streams, events and launches. Work takes no time, and events complete at once or after a set delay
 * (SIMCANN_EVENT_DELAY_US), so that memory in use on a side stream is not free at once. */
#include "simcann.h"

#include "rt_stream.h"

#include <stdlib.h>
#include <time.h>

/* What the runtime takes for itself for each stream. */
enum { OWN_BYTES = 16 << 10 };

static uint64_t latest_ns;
static int next_id = 1;
static struct simcann_stream *streams;

int simcann_stream_create(void **out) {
    void *own = NULL;
    if (!out) return ACL_ERROR_RT_PARAM_INVALID;
    int device = simcann_current_device();
    if (device < 0) return ACL_ERROR_RT_CONTEXT_NULL;
    int result = rtMalloc(&own, OWN_BYTES, RT_MEMORY_HBM, MODULE_RUNTIME);
    if (result != ACL_SUCCESS) return result;
    struct simcann_stream *stream = calloc(1, sizeof *stream);
    simcann_lock();
    *stream = (struct simcann_stream){.device = device, .id = next_id++, .own = own, .next = streams};
    streams = stream;
    simcann_unlock();
    *out = stream;
    return ACL_SUCCESS;
}

int simcann_stream_destroy(void *gone) {
    simcann_lock();
    struct simcann_stream **link = &streams, *stream;
    while (*link && *link != gone) link = &(*link)->next;
    stream = *link;
    if (stream) *link = stream->next;
    simcann_unlock();
    if (!stream) return ACL_ERROR_RT_PARAM_INVALID;
    int result = rtFree(stream->own);
    free(stream);
    return result;
}

void simcann_stream_joins(struct simcann_stream *stream, const struct simcann_event *event) {
    simcann_lock();
    if (stream && event->capturing) stream->capturing = event->capturing;
    simcann_unlock();
}

void simcann_capture_ends(const struct simcann_graph *graph) {
    simcann_lock();
    for (struct simcann_stream *it = streams; it; it = it->next)
        if (it->capturing == graph) it->capturing = NULL;
    simcann_unlock();
}

void simcann_event_record(struct simcann_event *event, struct simcann_stream *stream) {
    simcann_lock();
    event->capturing = stream ? stream->capturing : NULL;
    event->recorded_ns = simcann_now_ns();
    event->done_ns = event->recorded_ns + simcann_settings()->event_delay_ns;
    if (event->done_ns > latest_ns) latest_ns = event->done_ns;
    simcann_unlock();
}

void simcann_wait_until(uint64_t done_ns) {
    uint64_t now = simcann_now_ns();
    if (done_ns <= now) return;
    struct timespec rest = {(time_t)((done_ns - now) / 1000000000u), (long)((done_ns - now) % 1000000000u)};
    nanosleep(&rest, NULL);
}

void simcann_synchronize(void) {
    simcann_lock();
    uint64_t until = latest_ns;
    simcann_unlock();
    simcann_wait_until(until);
}

EXPORT rtError_t rtStreamCreate(void **stream, int32_t priority) {
    (void)priority;
    return simcann_stream_create(stream);
}

EXPORT rtError_t rtStreamDestroy(void *stream) { return simcann_stream_destroy(stream); }

EXPORT rtError_t rtStreamSynchronize(void *stream) {
    (void)stream;
    simcann_synchronize();
    return ACL_SUCCESS;
}

EXPORT rtError_t rtKernelLaunch(const void *function, uint32_t blocks, void *arguments, uint32_t size, void *shared,
                                void *stream) {
    (void)function, (void)blocks, (void)arguments, (void)size, (void)shared, (void)stream;
    return simcann_fail("rtKernelLaunch");
}

EXPORT rtError_t rtKernelLaunchWithFlagV2(const void *function, uint32_t blocks, void *arguments, void *shared,
                                          void *stream, uint32_t flags, const void *config) {
    (void)function, (void)blocks, (void)arguments, (void)shared, (void)stream, (void)flags, (void)config;
    return simcann_fail("rtKernelLaunchWithFlagV2");
}

EXPORT rtError_t rtKernelLaunchWithHandleV2(void *handle, uint64_t tiling, uint32_t blocks, void *arguments,
                                            void *shared, void *stream, const void *config) {
    (void)handle, (void)tiling, (void)blocks, (void)arguments, (void)shared, (void)stream, (void)config;
    return simcann_fail("rtKernelLaunchWithHandleV2");
}

EXPORT rtError_t rtLaunchKernelByFuncHandleV2(void *function, uint32_t blocks, void *arguments, void *stream,
                                              const void *config) {
    (void)function, (void)blocks, (void)arguments, (void)stream, (void)config;
    return simcann_fail("rtLaunchKernelByFuncHandleV2");
}

EXPORT rtError_t rtDevBinaryRegister(const void *binary, void **handle) {
    (void)binary;
    if (handle) *handle = &latest_ns;
    return ACL_SUCCESS;
}

EXPORT rtError_t rtFunctionRegister(void *binary, const void *stub, const char *name, const void *function,
                                    uint32_t mode) {
    (void)binary, (void)stub, (void)name, (void)function, (void)mode;
    return ACL_SUCCESS;
}
