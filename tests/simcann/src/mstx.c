/* libms_tools_ext.so: marks and ranges go nowhere. Tools see them with probes on these functions.
 *
 * Each is named where stubs are traced. The call is also what makes it begin with `push`: a function that
 * does nothing at all would be one `ret`. */
#include "simcann.h"

#include <stdlib.h>
#include <string.h>

/* A domain is known by its name: who creates it again gets the same. */
struct mstxDomainRegistration {
    char *name;
    struct mstxDomainRegistration *next;
};

static mstxDomainHandle_t domains;
static mstxRangeId next_range;

static mstxRangeId new_range(const char *function, const char *message) {
    simcann_stub(function, 0);
    return message ? __atomic_add_fetch(&next_range, 1, __ATOMIC_RELAXED) : 0;
}

EXPORT void mstxMarkA(const char *message, void *stream) {
    (void)message, (void)stream;
    simcann_stub("mstxMarkA", 0);
}

EXPORT mstxRangeId mstxRangeStartA(const char *message, void *stream) {
    (void)stream;
    return new_range("mstxRangeStartA", message);
}

EXPORT void mstxRangeEnd(mstxRangeId range) {
    (void)range;
    simcann_stub("mstxRangeEnd", 0);
}

EXPORT mstxDomainHandle_t mstxDomainCreateA(const char *name) {
    simcann_stub("mstxDomainCreateA", 0);
    if (!name) return NULL;
    simcann_lock();
    mstxDomainHandle_t it = domains;
    while (it && strcmp(it->name, name) != 0) it = it->next;
    if (!it) {
        it = malloc(sizeof *it);
        *it = (struct mstxDomainRegistration){.name = strdup(name), .next = domains};
        domains = it;
    }
    simcann_unlock();
    return it;
}

EXPORT void mstxDomainDestroy(mstxDomainHandle_t domain) {
    (void)domain; /* its name stays known */
    simcann_stub("mstxDomainDestroy", 0);
}

EXPORT void mstxDomainMarkA(mstxDomainHandle_t domain, const char *message, void *stream) {
    (void)domain, (void)message, (void)stream;
    simcann_stub("mstxDomainMarkA", 0);
}

EXPORT mstxRangeId mstxDomainRangeStartA(mstxDomainHandle_t domain, const char *message, void *stream) {
    (void)domain, (void)stream;
    return new_range("mstxDomainRangeStartA", message);
}

EXPORT void mstxDomainRangeEnd(mstxDomainHandle_t domain, mstxRangeId range) {
    (void)domain, (void)range;
    simcann_stub("mstxDomainRangeEnd", 0);
}

/* The heap's handle is its description's address, which is as good as any. */
EXPORT void *mstxMemHeapRegister(mstxDomainHandle_t domain, const void *description) {
    (void)domain;
    simcann_stub("mstxMemHeapRegister", 0);
    return (void *)description;
}

EXPORT void mstxMemHeapUnregister(mstxDomainHandle_t domain, void *heap) {
    (void)domain, (void)heap;
    simcann_stub("mstxMemHeapUnregister", 0);
}

EXPORT void mstxMemRegionsRegister(mstxDomainHandle_t domain, const void *batch) {
    (void)domain, (void)batch;
    simcann_stub("mstxMemRegionsRegister", 0);
}

EXPORT void mstxMemRegionsUnregister(mstxDomainHandle_t domain, const void *batch) {
    (void)domain, (void)batch;
    simcann_stub("mstxMemRegionsUnregister", 0);
}
