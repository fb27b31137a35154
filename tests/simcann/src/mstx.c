/* libms_tools_ext.so: marks and ranges go nowhere. Tools see them with probes on these functions.
 *
 * Each is named where stubs are traced. The call is also what makes it begin with `push`: a function that
 * does nothing at all would be one `ret`. */
#include "simcann.h"

#include <stdbool.h>
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

/* The real library looks for a tool in the first call of all, by way of a pointer: what was called is called once more. */
static bool is_first(void) {
    static bool looked;
    return !__atomic_exchange_n(&looked, true, __ATOMIC_RELAXED);
}

/* Never given twice, and no address. */
static void *new_handle(void) {
    static uintptr_t last;
    return (void *)__atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

/* Frameworks leave heap and handles of a batch unset: a tool that knows their domains does not touch them. */
static bool wants_handles(mstxDomainHandle_t domain) {
    static const char *const without[] = {"ptaCaching", "msleaks", "ptaWorkspace", "mindsporeMemPool"};
    for (size_t i = 0; domain && i < sizeof without / sizeof *without; i++)
        if (strcmp(domain->name, without[i]) == 0) return false;
    return true;
}

EXPORT void *mstxMemHeapRegister(mstxDomainHandle_t domain, const mstxMemHeapDesc_t *description) {
    if (is_first()) return mstxMemHeapRegister(domain, description);
    simcann_stub("mstxMemHeapRegister", 0);
    return description && wants_handles(domain) ? new_handle() : NULL;
}

EXPORT void mstxMemHeapUnregister(mstxDomainHandle_t domain, void *heap) {
    if (is_first()) return mstxMemHeapUnregister(domain, heap);
    simcann_stub("mstxMemHeapUnregister", 0);
}

EXPORT void mstxMemRegionsRegister(mstxDomainHandle_t domain, const mstxMemRegionsRegisterBatch_t *batch) {
    if (is_first()) return mstxMemRegionsRegister(domain, batch);
    simcann_stub("mstxMemRegionsRegister", 0);
    if (!batch || !wants_handles(domain)) return;
    for (size_t i = 0; batch->regionHandleArrayOut && i < batch->regionCount; i++)
        batch->regionHandleArrayOut[i] = new_handle();
}

EXPORT void mstxMemRegionsUnregister(mstxDomainHandle_t domain, const mstxMemRegionsUnregisterBatch_t *batch) {
    if (is_first()) return mstxMemRegionsUnregister(domain, batch);
    simcann_stub("mstxMemRegionsUnregister", 0);
}
