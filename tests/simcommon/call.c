/* What every exported function shares: the lock, nesting depth, fork, the tracing of stubs. */
#include "sim.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Recursive, because a function of an upper layer holds it while it calls the one below. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static __thread int depth;
static bool started, forked;

void sim_lock(void) { pthread_mutex_lock(&lock); }
void sim_unlock(void) { pthread_mutex_unlock(&lock); }

static void before_fork(void) { sim_lock(); }
static void after_fork_in_parent(void) { sim_unlock(); }
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
bool sim_forked(void) { return forked; }
void sim_started(void) { started = true; }

int sim_begin(struct sim_call *call, const char *function) {
    sim_lock();
    depth++;
    *call = (struct sim_call){.function = function};
    call->injected = sim_planned_failure(function);
    if (call->injected == 0 && forked) call->injected = sim_not_initialized_of(function);
    return call->injected;
}

int sim_end(struct sim_call *call, uintptr_t pointer, size_t size, int device,
                const void *stream, int result) {
    depth--;
    sim_log_line(call, depth, pointer, size, device, stream, result);
    sim_unlock();
    return result;
}

int sim_leave(struct sim_call *call, int result) {
    (void)call;
    depth--;
    sim_unlock();
    return result;
}

/* For functions that have no log line but can be made to fail. */
int sim_fail(const char *function) {
    sim_lock();
    int error = sim_planned_failure(function);
    sim_unlock();
    return error;
}

int sim_stub(const char *function, int result) {
    if (sim_settings()->trace_stubs) fprintf(stderr, SIM_NAME ": stub %s\n", function);
    return result;
}

uint64_t sim_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
