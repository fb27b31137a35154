/* Streams and events, which the runtime keeps and AscendCL hands out. */
#ifndef SIMCANN_RT_STREAM_H
#define SIMCANN_RT_STREAM_H

#include "simcann.h"

struct simcann_stream {
    int device, id;
    void *own;
};

struct simcann_event {
    uint64_t recorded_ns, done_ns; /* 0 before the first record */
};

EXPORT int simcann_stream_create(void **out);
EXPORT int simcann_stream_destroy(void *stream);
EXPORT void simcann_event_record(struct simcann_event *event);
EXPORT void simcann_wait_until(uint64_t done_ns);

#endif
