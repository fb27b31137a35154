/* A process with pools that tell of themselves through mstx.
 *
 * Each line on standard input is a command with its arguments; each is answered with one JSON object on standard
 * output. Domains, heaps and regions go by names that the commands give; addresses are made up. It ends with its input.
 *
 *   domain NAME                                   makes it; `none` is the one that is always there
 *   heap DOMAIN NAME DEVICE ADDRESS BYTES
 *   heap_gone DOMAIN NAME                         by its handle
 *   heap_gone_at DOMAIN ADDRESS                   by its address
 *   regions DOMAIN HEAP {NAME DEVICE ADDRESS BYTES}
 *   many DOMAIN COUNT ADDRESS BYTES               in one call, one behind the other, on device 0; HEAP and handles unset
 *   gone DOMAIN {ADDRESS}                         in one call
 *   gone_by DOMAIN {NAME}                         in one call, by their handles
 *   many_gone DOMAIN COUNT ADDRESS BYTES          as many */
#define _GNU_SOURCE
#include "commands.h"

#include <acl.h>

enum { NAMES = 512, BATCH = 64 };

static struct {
    char name[24];
    void *handle;
} names[NAMES];

static void **named(const char *name, int make) {
    if (!name) fail("a name is missing");
    for (int pass = 0; pass < 1 + make; pass++)
        for (int i = 0; i < NAMES; i++)
            if (strcmp(names[i].name, pass ? "" : name) == 0) {
                snprintf(names[i].name, sizeof names[i].name, "%s", name);
                return &names[i].handle;
            }
    fail("no such name");
    return NULL;
}

static mstxDomainHandle_t domain(void) {
    return words[1] && strcmp(words[1], "none") == 0 ? NULL : *named(words[1], 0);
}

static mstxMemVirtualRangeDesc_t range(size_t device, size_t address, size_t bytes) {
    return (mstxMemVirtualRangeDesc_t){.deviceId = (uint32_t)device, .ptr = (void *)address, .size = bytes};
}

static void regions(void) {
    mstxMemVirtualRangeDesc_t ranges[BATCH];
    void *handles[BATCH] = {0};
    size_t count = 0;
    for (int word = 3; words[word] && count < BATCH; word += 4, count++)
        ranges[count] = range(number(word + 1), number(word + 2), number(word + 3));
    mstxMemRegionsRegisterBatch_t batch = {
        .heap = strcmp(words[2], "-") == 0 ? NULL : *named(words[2], 0),
        .regionCount = count,
        .regionDescArray = ranges,
        .regionHandleArrayOut = handles,
    };
    mstxMemRegionsRegister(domain(), &batch);
    for (size_t i = 0; i < count; i++) *named(words[3 + 4 * i], 1) = handles[i];
}

static void many(void) {
    mstxMemVirtualRangeDesc_t ranges[BATCH];
    size_t count = number(2);
    if (count > BATCH) fail("too many");
    for (size_t i = 0; i < count; i++) ranges[i] = range(0, number(3) + i * number(4), number(4));
    /* What frameworks leave unset is anything. */
    mstxMemRegionsRegisterBatch_t batch = {
        .heap = (void *)0x1234,
        .regionCount = count,
        .regionDescArray = ranges,
        .regionHandleArrayOut = (void **)0x5678,
    };
    if (strcmp(words[1], "mindsporeMemPool") != 0) batch.regionHandleArrayOut = NULL;
    mstxMemRegionsRegister(domain(), &batch);
}

static void gone(int by_handle) {
    mstxMemRegionRef_t references[BATCH];
    memset(references, 0, sizeof references);
    size_t count = 0;
    for (int word = 2; words[word] && count < BATCH; word++, count++) {
        references[count].refType = by_handle;
        if (by_handle)
            references[count].handle = *named(words[word], 0);
        else
            references[count].pointer = (void *)number(word);
    }
    mstxMemRegionsUnregisterBatch_t batch = {.refCount = count, .refArray = references};
    mstxMemRegionsUnregister(domain(), &batch);
}

static void many_gone(void) {
    mstxMemRegionRef_t references[BATCH];
    memset(references, 0, sizeof references);
    size_t count = number(2);
    if (count > BATCH) fail("too many");
    for (size_t i = 0; i < count; i++) references[i].pointer = (void *)(number(3) + i * number(4));
    mstxMemRegionsUnregisterBatch_t batch = {.refCount = count, .refArray = references};
    mstxMemRegionsUnregister(domain(), &batch);
}

static void act(void) {
    if (is("domain")) {
        *named(words[1], 1) = mstxDomainCreateA(words[1]);
    } else if (is("heap")) {
        mstxMemVirtualRangeDesc_t has = range(number(3), number(4), number(5));
        mstxMemHeapDesc_t heap = {.typeSpecificDesc = &has};
        *named(words[2], 1) = mstxMemHeapRegister(domain(), &heap);
    } else if (is("heap_gone")) {
        mstxMemHeapUnregister(domain(), *named(words[2], 0));
    } else if (is("heap_gone_at")) {
        mstxMemHeapUnregister(domain(), (void *)number(2));
    } else if (is("regions")) {
        regions();
    } else if (is("many")) {
        many();
    } else if (is("gone")) {
        gone(0);
    } else if (is("gone_by")) {
        gone(1);
    } else if (is("many_gone")) {
        many_gone();
    } else {
        fail("no such command");
    }
    printf("{\"result\":0}\n");
}

int main(void) { return obey_commands(act); }
