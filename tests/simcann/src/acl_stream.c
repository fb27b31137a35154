/* Streams, events, callbacks and launches of AscendCL. */
#include "rt_stream.h"

#include <stdlib.h>
#include <time.h>

EXPORT aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag) {
    struct simcann_call call;
    (void)priority, (void)flag;
    int result = simcann_begin(&call, "aclrtCreateStreamWithConfig");
    if (result == 0) result = simcann_stream_create(stream);
    return simcann_leave(&call, result);
}

EXPORT aclError aclrtCreateStream(aclrtStream *stream) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtCreateStream");
    if (result == 0) result = simcann_stream_create(stream);
    return simcann_leave(&call, result);
}

EXPORT aclError aclrtDestroyStream(aclrtStream stream) {
    struct simcann_call call;
    int result = simcann_begin(&call, "aclrtDestroyStream");
    if (result == 0) result = simcann_stream_destroy(stream);
    return simcann_leave(&call, result);
}

EXPORT aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }

EXPORT aclError aclrtSynchronizeStream(aclrtStream stream) {
    (void)stream;
    int result = simcann_fail("aclrtSynchronizeStream");
    if (result == 0) simcann_synchronize();
    return result;
}

EXPORT aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
    (void)timeout;
    return aclrtSynchronizeStream(stream);
}

EXPORT aclError aclrtStreamQuery(aclrtStream stream, int *status) {
    (void)stream;
    if (!status) return ACL_ERROR_INVALID_PARAM;
    *status = 0; /* ACL_STREAM_STATUS_COMPLETE */
    return ACL_SUCCESS;
}

EXPORT aclError aclrtStreamGetId(aclrtStream stream, int32_t *id) {
    if (!id) return ACL_ERROR_INVALID_PARAM;
    *id = stream ? ((struct simcann_stream *)stream)->id : 0;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
    if (!event) return ACL_ERROR_INVALID_PARAM;
    simcann_stream_joins(stream, event);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag) {
    (void)flag;
    int result = simcann_fail("aclrtCreateEventExWithFlag");
    if (result != 0) return result;
    if (!event) return ACL_ERROR_INVALID_PARAM;
    *event = calloc(1, sizeof(struct simcann_event));
    return ACL_SUCCESS;
}

EXPORT aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag) {
    return aclrtCreateEventExWithFlag(event, flag);
}

EXPORT aclError aclrtCreateEvent(aclrtEvent *event) { return aclrtCreateEventExWithFlag(event, 0); }

EXPORT aclError aclrtDestroyEvent(aclrtEvent event) {
    if (!event) return ACL_ERROR_INVALID_PARAM;
    free(event);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
    int result = simcann_fail("aclrtRecordEvent");
    if (result != 0) return result;
    if (!event) return ACL_ERROR_INVALID_PARAM;
    simcann_event_record(event, stream);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
    (void)stream;
    return event ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

/* ACL_EVENT_RECORDED_STATUS_COMPLETE is 1, the other way round than for the next two. */
EXPORT aclError aclrtQueryEventStatus(aclrtEvent event, int *status) {
    struct simcann_event *it = event;
    if (!it || !status) return ACL_ERROR_INVALID_PARAM;
    *status = it->recorded_ns != 0 && simcann_now_ns() >= it->done_ns;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtQueryEventWaitStatus(aclrtEvent event, int *status) {
    struct simcann_event *it = event;
    if (!it || !status) return ACL_ERROR_INVALID_PARAM;
    *status = simcann_now_ns() < it->done_ns;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtQueryEvent(aclrtEvent event, int *status) { return aclrtQueryEventWaitStatus(event, status); }

EXPORT aclError aclrtSynchronizeEvent(aclrtEvent event) {
    struct simcann_event *it = event;
    int result = simcann_fail("aclrtSynchronizeEvent");
    if (result != 0) return result;
    if (!it) return ACL_ERROR_INVALID_PARAM;
    simcann_wait_until(it->done_ns);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtEventElapsedTime(float *milliseconds, aclrtEvent start, aclrtEvent end) {
    struct simcann_event *first = start, *last = end;
    if (!milliseconds || !first || !last) return ACL_ERROR_INVALID_PARAM;
    *milliseconds = (float)((double)last->done_ns - (double)first->done_ns) / 1e6f;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t *timestamp) {
    struct simcann_event *it = event;
    if (!it || !timestamp) return ACL_ERROR_INVALID_PARAM;
    *timestamp = it->recorded_ns / 1000;
    return ACL_SUCCESS;
}

/* Nothing is ever queued, so what is to run after the work runs now. */
EXPORT aclError aclrtLaunchHostFunc(aclrtStream stream, void (*function)(void *), void *arguments) {
    (void)stream;
    if (!function) return ACL_ERROR_INVALID_PARAM;
    function(arguments);
    return ACL_SUCCESS;
}

EXPORT aclError aclrtLaunchCallback(void (*function)(void *), void *data, int block, aclrtStream stream) {
    (void)block;
    return aclrtLaunchHostFunc(stream, function, data);
}

EXPORT aclError aclrtSubscribeReport(uint64_t thread, aclrtStream stream) {
    (void)thread, (void)stream;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream stream) {
    (void)thread, (void)stream;
    return ACL_SUCCESS;
}

EXPORT aclError aclrtProcessReport(int32_t timeout) {
    struct timespec rest = {timeout > 0 ? timeout / 1000 : 0, timeout > 0 ? timeout % 1000 * 1000000 : 1000000};
    nanosleep(&rest, NULL);
    return ACL_ERROR_RT_REPORT_TIMEOUT;
}

EXPORT aclError aclrtLaunchKernel(void *function, uint32_t blocks, const void *arguments, size_t size,
                                  aclrtStream stream) {
    struct simcann_call call;
    (void)size;
    int result = simcann_begin(&call, "aclrtLaunchKernel");
    if (result == 0) result = rtKernelLaunchWithFlagV2(function, blocks, (void *)arguments, NULL, stream, 0, NULL);
    return simcann_leave(&call, result);
}

EXPORT aclError aclrtLaunchKernelWithConfig(void *function, uint32_t blocks, aclrtStream stream, void *config,
                                            void *arguments, void *reserved) {
    struct simcann_call call;
    (void)reserved;
    int result = simcann_begin(&call, "aclrtLaunchKernelWithConfig");
    if (result == 0) result = rtLaunchKernelByFuncHandleV2(function, blocks, arguments, stream, config);
    return simcann_leave(&call, result);
}
