/* What every exported function shares: the lock, nesting depth, fork, the tracing of stubs. */
#include "simcuda.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Recursive, because the runtime's cudaMalloc holds it while it calls the driver's cuMemAlloc. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static __thread int depth;
static bool started, forked;

void simcuda_lock(void) { pthread_mutex_lock(&lock); }
void simcuda_unlock(void) { pthread_mutex_unlock(&lock); }

static void before_fork(void) { simcuda_lock(); }
static void after_fork_in_parent(void) { simcuda_unlock(); }
static void after_fork_in_child(void) {
    /* The lock's owner is a thread id of the parent: start afresh. */
    lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    depth = 0;
    forked = forked || started;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* A child forked after the parent initialised the device cannot use it, as with a real driver. */
bool simcuda_forked(void) { return forked; }
void simcuda_started(void) { started = true; }

int simcuda_begin(struct simcuda_call *call, const char *function) {
    simcuda_lock();
    depth++;
    call->function = function;
    call->injected = simcuda_planned_failure(function);
    if (call->injected == 0 && forked) call->injected = CUDA_ERROR_NOT_INITIALIZED;
    return call->injected;
}

int simcuda_end(struct simcuda_call *call, uintptr_t pointer, size_t size, int device,
                const void *stream, int result) {
    depth--;
    simcuda_log_line(call->function, depth, pointer, size, device, stream, result);
    simcuda_unlock();
    return result;
}

/* For functions that have no log line but can be made to fail. */
int simcuda_fail(const char *function) {
    simcuda_lock();
    int error = simcuda_planned_failure(function);
    simcuda_unlock();
    return error;
}

int simcuda_stub(const char *function, int result) {
    if (simcuda_settings()->trace_stubs) fprintf(stderr, "simcuda: stub %s\n", function);
    return result;
}

uint64_t simcuda_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
