/* Operators: how each is defined, here and in the file that `xtask` writes. */
#ifndef SIMCANN_OPAPI_H
#define SIMCANN_OPAPI_H

#include "simcann.h"

EXPORT int simcann_operator(const char *name, void *stream);

/* The second of the two functions of an operator: it runs. */
#define OPERATOR_RUNS(name)                                                                        \
    EXPORT int name(void *workspace, uint64_t size, void *executor, void *stream) {                \
        (void)workspace, (void)size, (void)executor;                                               \
        return simcann_operator(#name, stream);                                                    \
    }

/* The first has as many arguments as it likes, and leaves the last two alone: the caller has set size and
 * executor to zero. */
#define OPERATOR(name)                                                                             \
    EXPORT int name##GetWorkspaceSize(void) { return 0; }                                          \
    OPERATOR_RUNS(name)

#endif
