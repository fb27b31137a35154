/* Shared by all files of the simulated NPU.
 *
 * libascend_hal.so owns all state: devices, memory, settings and the log. libruntime.so keeps
 * contexts and streams and reaches memory only through hal* functions; libascendcl.so reaches it only
 * through rt* functions. So a call of a program shows at every layer, as with the real libraries. */
#ifndef SIMCANN_H
#define SIMCANN_H

#include "sim.h"

#include <acl.h>

/* hal_device.c: the real HAL counts devices of the machine, the runtime those that
 * ASCEND_RT_VISIBLE_DEVICES leaves. -1: no such device. */
EXPORT int simcann_physical(int device);
EXPORT int simcann_ordinal(int physical);

/* rt_context.c */
EXPORT int simcann_current_device(void); /* -1 before a device is set */
EXPORT int simcann_error(int hal);       /* a HAL error as the runtime reports it */
EXPORT int simcann_set_device(int device);
EXPORT int simcann_reset_device(int device);
EXPORT void *simcann_current_context(void);
EXPORT int simcann_create_context(void **context, int device);
EXPORT int simcann_destroy_context(void *context);
EXPORT int simcann_set_current_context(void *context);
EXPORT bool simcann_device_active(int device);

/* rt_stream.c */
EXPORT void simcann_synchronize(void);

#endif
