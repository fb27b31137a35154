/* A process that makes the Ascend calls that it is told to make.
 *
 * Each line on standard input is a command with its arguments; each is answered with one JSON object on
 * standard output. Memory goes by names that the commands give. It ends with its input. */
#define _GNU_SOURCE
#include "commands.h"

#include <acl.h>

#include <pthread.h>
#include <stdatomic.h>

enum { NAMES = 256, KEY_BYTES = 65 };

struct named {
    char name[24];
    void *value;
    char key[KEY_BYTES];
};

static struct named names[NAMES];

static struct named *find(const char *name) {
    for (int i = 0; name && i < NAMES; i++)
        if (strcmp(names[i].name, name) == 0) return &names[i];
    return NULL;
}

static struct named *known(int word) {
    struct named *it = find(words[word]);
    if (!it) fail("no such name");
    return it;
}

static size_t number_or(int word, size_t otherwise) { return words[word] ? number(word) : otherwise; }

/* Says what a call returned, and keeps what it gave under the command's first argument. */
static struct named *gave(int result, void *value) {
    struct named *it = NULL;
    if (result == 0) {
        it = find(words[1]);
        if (!it) it = find("");
        if (!it) fail("too many names");
        snprintf(it->name, sizeof it->name, "%s", words[1]);
        it->value = value;
    }
    printf("{\"result\":%d,\"pointer\":%llu}\n", result, result == 0 ? (unsigned long long)value : 0);
    return it;
}

static void took(int result, struct named *it) {
    if (result == 0 && it) it->name[0] = 0;
    printf("{\"result\":%d}\n", result);
}

/* Threads that free each other's memory. `shared` holds what lives. */
enum { SHARED = 64 };
static _Atomic(void *) shared[SHARED];
static atomic_ullong came, went, failed;

static void *work(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    size_t rounds = number(2);
    aclrtSetDevice(0);
    for (size_t round = 0; round < rounds; round++) {
        void *memory = NULL;
        size_t size = 512 + (size_t)rand_r(&seed) % 100000;
        int result;
        if (rand_r(&seed) % 2 == 0) {
            result = aclrtMalloc(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST);
        } else {
            uint64_t flag = MEM_SPACE_DEVICE << MEM_SPACE_SHIFT | (uint64_t)MODULE_HCCL << MEM_MODULE_SHIFT;
            result = halMemAlloc(&memory, size, flag);
        }
        if (result != 0) {
            atomic_fetch_add(&failed, 1);
            continue;
        }
        atomic_fetch_add(&came, 1);
        void *other = atomic_exchange(&shared[(unsigned)rand_r(&seed) % SHARED], memory);
        if (!other) continue;
        result = rand_r(&seed) % 2 == 0 ? aclrtFree(other) : halMemFree(other);
        atomic_fetch_add(result == 0 ? &went : &failed, 1);
    }
    return NULL;
}

static void threads(void) {
    pthread_t ids[16];
    size_t count = number(1);
    if (count > 16) fail("too many threads");
    for (size_t i = 0; i < count; i++) pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)(i * 7919 + 1));
    for (size_t i = 0; i < count; i++) pthread_join(ids[i], NULL);
    printf("{\"result\":0,\"came\":%llu,\"went\":%llu,\"failed\":%llu}\n", (unsigned long long)came,
           (unsigned long long)went, (unsigned long long)failed);
}

static void obey(void) {
    void *memory = NULL;
    int result;
    aclrtMallocAttribute attribute = {.attr = ACL_RT_MEM_ATTR_MODULE_ID};
    aclrtMallocConfig config = {.attrs = &attribute, .numAttrs = 1};
    if (is("aclrtSetDevice")) took(aclrtSetDevice((int)number(1)), NULL);
    else if (is("aclrtResetDevice")) took(aclrtResetDevice((int)number(1)), NULL);
    else if (is("aclrtResetDeviceForce")) took(aclrtResetDeviceForce((int)number(1)), NULL);
    else if (is("aclrtCreateContext")) result = aclrtCreateContext(&memory, (int)number(2)), gave(result, memory);
    else if (is("aclrtSetCurrentContext")) took(aclrtSetCurrentContext(known(1)->value), NULL);
    else if (is("aclrtDestroyContext")) took(aclrtDestroyContext(known(1)->value), known(1));
    else if (is("aclrtCreateStream")) result = aclrtCreateStream(&memory), gave(result, memory);
    else if (is("aclrtDestroyStream")) took(aclrtDestroyStream(known(1)->value), known(1));
    else if (is("aclrtGetMemInfo")) {
        size_t available = 0, total = 0;
        result = aclrtGetMemInfo((aclrtMemAttr)number_or(1, ACL_HBM_MEM), &available, &total);
        printf("{\"result\":%d,\"free\":%zu,\"total\":%zu}\n", result, available, total);
    }
    /* NAME BYTES [POLICY] */
    else if (is("aclrtMalloc")) result = aclrtMalloc(&memory, number(2), number_or(3, 0)), gave(result, memory);
    else if (is("aclrtMallocAlign32")) result = aclrtMallocAlign32(&memory, number(2), number_or(3, 0)), gave(result, memory);
    else if (is("aclrtMallocCached")) result = aclrtMallocCached(&memory, number(2), number_or(3, 0)), gave(result, memory);
    /* NAME BYTES MODULE */
    else if (is("aclrtMallocWithCfg")) {
        attribute.value.moduleId = (uint16_t)number(3);
        result = aclrtMallocWithCfg(&memory, number(2), ACL_MEM_MALLOC_HUGE_ONLY, &config);
        gave(result, memory);
    } else if (is("aclrtMallocForTaskScheduler")) {
        attribute.value.moduleId = (uint16_t)number(3);
        result = aclrtMallocForTaskScheduler(&memory, number(2), ACL_MEM_MALLOC_NORMAL_ONLY, &config);
        gave(result, memory);
    } else if (is("aclrtMallocHostWithCfg")) {
        attribute.value.moduleId = (uint16_t)number(3);
        result = aclrtMallocHostWithCfg(&memory, number(2), &config);
        gave(result, memory);
    } else if (is("aclrtFree")) took(aclrtFree(known(1)->value), known(1));
    else if (is("aclrtFreeWrong")) took(aclrtFree((void *)0x1234560), NULL);
    else if (is("aclrtFreeWithDevSync")) took(aclrtFreeWithDevSync(known(1)->value), known(1));
    else if (is("aclrtMallocHost")) result = aclrtMallocHost(&memory, number(2)), gave(result, memory);
    else if (is("aclrtFreeHost")) took(aclrtFreeHost(known(1)->value), known(1));
    else if (is("aclrtFreeHostWithDevSync")) took(aclrtFreeHostWithDevSync(known(1)->value), known(1));
    else if (is("aclrtHostRegister")) {
        void *mapped;
        memory = aligned_alloc(4096, number(2));
        result = aclrtHostRegister(memory, number(2), 0, &mapped);
        gave(result, memory);
    } else if (is("aclrtHostRegisterV2")) {
        memory = aligned_alloc(4096, number(2));
        result = aclrtHostRegisterV2(memory, number(2), (uint32_t)number(3));
        gave(result, memory);
    } else if (is("aclrtHostUnregister")) took(aclrtHostUnregister(known(1)->value), known(1));
    else if (is("aclrtReserveMemAddress")) result = aclrtReserveMemAddress(&memory, number(2), 0, NULL, 0), gave(result, memory);
    else if (is("aclrtReleaseMemAddress")) took(aclrtReleaseMemAddress(known(1)->value), known(1));
    /* NAME BYTES DEVICE ATTRIBUTE; device -1 is the host */
    else if (is("aclrtMallocPhysical")) {
        int device = words[3] ? atoi(words[3]) : 0;
        aclrtPhysicalMemProp properties = {
            .memAttr = (aclrtMemAttr)number_or(4, ACL_HBM_MEM_HUGE),
            .location = {.id = device < 0 ? 0 : (uint32_t)device,
                         .type = device < 0 ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_DEVICE},
        };
        result = aclrtMallocPhysical(&memory, number(2), &properties, 0);
        gave(result, memory);
    } else if (is("aclrtFreePhysical")) took(aclrtFreePhysical(known(1)->value), known(1));
    /* SPACE OFFSET HANDLE BYTES; SPACE OFFSET */
    else if (is("aclrtMapMem")) took(aclrtMapMem((char *)known(1)->value + number(2), number(4), 0, known(3)->value, 0), NULL);
    else if (is("aclrtUnmapMem")) took(aclrtUnmapMem((char *)known(1)->value + number(2)), NULL);
    else if (is("aclrtMemImportFromShareableHandle")) {
        /* NAME HANDLE: of this very process, which the driver does not mind. */
        uint64_t shareable = 0;
        result = aclrtMemExportToShareableHandle(known(2)->value, 0, 0, &shareable);
        if (result == 0) result = aclrtMemImportFromShareableHandle(shareable, 0, &memory);
        gave(result, memory);
    } else if (is("aclrtIpcMemImportByKey")) {
        char key[KEY_BYTES] = "";
        result = aclrtIpcMemGetExportKey(known(2)->value, number(3), key, sizeof key, 0);
        if (result == 0) result = aclrtIpcMemImportByKey(&memory, key, 0);
        struct named *it = gave(result, memory);
        if (it) memcpy(it->key, key, sizeof key);
    } else if (is("aclrtIpcMemClose")) took(aclrtIpcMemClose(known(1)->key), known(1));
    /* NAME BYTES FLAG */
    else if (is("halMemAlloc")) result = halMemAlloc(&memory, number(2), number(3)), gave(result, memory);
    else if (is("halMemFree")) took(halMemFree(known(1)->value), known(1));
    /* NAME BYTES SIDE DEVICE MODULE PAGES */
    else if (is("halMemCreate")) {
        struct drv_mem_prop properties = {
            .side = (uint32_t)number(3), .devid = (uint32_t)number(4), .module_id = (uint32_t)number(5), .pg_type = (uint32_t)number(6)};
        result = halMemCreate((drv_mem_handle_t **)&memory, number(2), &properties, 0);
        gave(result, memory);
    } else if (is("halMemRelease")) took(halMemRelease(known(1)->value), known(1));
    else if (is("halMemAddressReserve")) result = halMemAddressReserve(&memory, number(2), 0, NULL, 0), gave(result, memory);
    else if (is("halMemAddressFree")) took(halMemAddressFree(known(1)->value), known(1));
    else if (is("halMemMap")) took(halMemMap((char *)known(1)->value + number(2), number(4), 0, known(3)->value, 0), NULL);
    else if (is("halMemUnmap")) took(halMemUnmap((char *)known(1)->value + number(2)), NULL);
    else if (is("rtKernelLaunch")) took(rtKernelLaunch(NULL, 1, NULL, 0, NULL, NULL), NULL);
    else if (is("rtKernelLaunchWithFlagV2")) took(rtKernelLaunchWithFlagV2(NULL, 1, NULL, NULL, NULL, 0, NULL), NULL);
    else if (is("rtKernelLaunchWithHandleV2")) took(rtKernelLaunchWithHandleV2(NULL, 0, 1, NULL, NULL, NULL, NULL), NULL);
    else if (is("rtLaunchKernelByFuncHandleV2")) took(rtLaunchKernelByFuncHandleV2(NULL, 1, NULL, NULL, NULL), NULL);
    else if (is("aclrtLaunchKernel")) took(aclrtLaunchKernel(NULL, 1, NULL, 0, NULL), NULL);
    else if (is("threads")) threads();
    else fail("no such command");
}

int main(void) { return obey_commands(obey); }
