/* libhccl.so: communicators own memory and move nothing: each process is alone. */
#include "simcann.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two buffers of HCCL_BUFFSIZE, 200 MiB by default: what a communicator takes of a device. */
enum { DEFAULT_MIB = 200, ROOT_INFO_BYTES = 4108, NAME_BYTES = 128, HCCL_E_PARA = 1, HCCL_E_MEMORY = 3 };

struct communicator {
    uint32_t ranks, rank;
    void *buffer;
    char name[NAME_BYTES];
};

static size_t buffer_bytes(void) {
    const char *text = getenv("HCCL_BUFFSIZE");
    long mib = text ? atol(text) : DEFAULT_MIB;
    return (size_t)(mib > 0 ? mib : DEFAULT_MIB) << 21;
}

static int create(uint32_t ranks, uint32_t rank, void **out) {
    static int made;
    struct simcann_call call;
    void *buffer = NULL;
    int result = simcann_begin(&call, "HcclCommInit");
    if (result == 0 && !out) result = HCCL_E_PARA;
    if (result == 0 && rtMalloc(&buffer, buffer_bytes(), RT_MEMORY_HBM, MODULE_HCCL) != 0) result = HCCL_E_MEMORY;
    if (result == 0) {
        struct communicator *it = calloc(1, sizeof *it);
        it->ranks = ranks;
        it->rank = rank;
        it->buffer = buffer;
        snprintf(it->name, sizeof it->name, "simcann_%d", made++);
        *out = it;
    }
    return simcann_leave(&call, result);
}

EXPORT int HcclGetRootInfo(void *info) {
    memset(info, 0, ROOT_INFO_BYTES);
    return 0;
}

EXPORT int HcclCommInitRootInfo(uint32_t ranks, const void *info, uint32_t rank, void **out) {
    (void)info;
    return create(ranks, rank, out);
}

EXPORT int HcclCommInitRootInfoConfig(uint32_t ranks, const void *info, uint32_t rank, const void *config,
                                      void **out) {
    (void)info, (void)config;
    return create(ranks, rank, out);
}

EXPORT int HcclCommInitAll(uint32_t devices, int32_t *list, void **out) {
    (void)list;
    for (uint32_t i = 0; i < devices; i++) {
        int result = create(devices, i, &out[i]);
        if (result != 0) return result;
    }
    return 0;
}

EXPORT int HcclCreateSubCommConfig(void **parent, uint32_t ranks, uint32_t *ids, uint64_t id, uint32_t rank,
                                   void *config, void **out) {
    (void)parent, (void)ids, (void)id, (void)config;
    return create(ranks, rank, out);
}

EXPORT int HcclCommDestroy(void *communicator) {
    struct simcann_call call;
    struct communicator *it = communicator;
    int result = simcann_begin(&call, "HcclCommDestroy");
    if (result == 0 && !it) result = HCCL_E_PARA;
    if (result == 0) {
        rtFree(it->buffer);
        free(it);
    }
    return simcann_leave(&call, result);
}

EXPORT int HcclGetCommName(void *communicator, char *name) {
    if (!communicator || !name) return HCCL_E_PARA;
    snprintf(name, NAME_BYTES, "%s", ((struct communicator *)communicator)->name);
    return 0;
}

EXPORT int HcclGetRankSize(void *communicator, uint32_t *ranks) {
    if (!communicator || !ranks) return HCCL_E_PARA;
    *ranks = ((struct communicator *)communicator)->ranks;
    return 0;
}

EXPORT int HcclGetRankId(void *communicator, uint32_t *rank) {
    if (!communicator || !rank) return HCCL_E_PARA;
    *rank = ((struct communicator *)communicator)->rank;
    return 0;
}

EXPORT int HcclGetCommAsyncError(void *communicator, int *error) {
    (void)communicator;
    if (error) *error = 0;
    return 0;
}

EXPORT const char *HcclGetErrorString(int error) { return (void)error, "simulated"; }
EXPORT uint32_t HcclGetCommConfigCapability(void) { return 0; }

#define STUB(name) \
    EXPORT int name(void) { return simcann_stub(#name, 0); }

STUB(HcclAllReduce)
STUB(HcclBroadcast)
STUB(HcclReduceScatter)
STUB(HcclReduceScatterV)
STUB(HcclAllGather)
STUB(HcclAllGatherV)
STUB(HcclAlltoAll)
STUB(HcclAlltoAllV)
STUB(HcclReduce)
STUB(HcclScatter)
STUB(HcclSend)
STUB(HcclRecv)
STUB(HcclBatchSendRecv)
STUB(HcclBarrier)
STUB(HcclGroupStart)
STUB(HcclGroupEnd)
STUB(HcclSetConfig)
STUB(HcclCommResume)
STUB(HcclCommSuspend)
STUB(HcclCommWorkingDevNicSet)
