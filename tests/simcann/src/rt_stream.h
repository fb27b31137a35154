/* Streams and events, which the runtime keeps and AscendCL hands out. */
#ifndef SIMCANN_RT_STREAM_H
#define SIMCANN_RT_STREAM_H

#include "simcann.h"

struct simcann_graph;

struct simcann_stream {
    int device, id;
    void *own;
    struct simcann_graph *capturing; /* the graph that work on this stream goes into */
    struct simcann_stream *next;
};

struct simcann_event {
    uint64_t recorded_ns, done_ns;   /* 0 before the first record */
    struct simcann_graph *capturing; /* of the stream on which it was recorded */
};

EXPORT int simcann_stream_create(void **out);
EXPORT int simcann_stream_destroy(void *stream);
EXPORT void simcann_event_record(struct simcann_event *event, struct simcann_stream *stream);
/* A stream that waits for a stream that is captured is captured as well. */
EXPORT void simcann_stream_joins(struct simcann_stream *stream, const struct simcann_event *event);
EXPORT void simcann_capture_ends(const struct simcann_graph *graph);
EXPORT void simcann_wait_until(uint64_t done_ns);

#endif
