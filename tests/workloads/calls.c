/* A process that makes the CUDA calls that it is told to make.
 *
 * Each line on standard input is a command with its arguments; each is answered with one JSON object on
 * standard output. Memory goes by names that the commands give. It ends with its input. */
#define _GNU_SOURCE
#include "commands.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

typedef unsigned long long u64;
struct extent { size_t width, height, depth; };
struct pitched { void *ptr; size_t pitch, xsize, ysize; };
struct channels { int x, y, z, w, kind; };
struct handle { char bytes[64]; };
struct location { int type, id; };
struct properties { int type, handles; struct location location; void *security; char flags[8]; };
struct pool_properties { int type, handles; struct location location; void *security; size_t largest; char rest[56]; };

int cudaSetDevice(int);
int cudaDeviceReset(void);
int cudaMemGetInfo(size_t *, size_t *);
int cudaMalloc(void **, size_t);
int cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaMalloc3D(struct pitched *, struct extent);
int cudaMallocManaged(void **, size_t, unsigned);
int cudaFree(void *);
int cudaHostAlloc(void **, size_t, unsigned);
int cudaMallocHost(void **, size_t);
int cudaFreeHost(void *);
int cudaHostRegister(void *, size_t, unsigned);
int cudaHostUnregister(void *);
int cudaStreamCreate(void **);
int cudaMallocAsync(void **, size_t, void *);
int cudaMallocAsync_ptsz(void **, size_t, void *);
int cudaMallocFromPoolAsync(void **, size_t, void *, void *);
int cudaFreeAsync(void *, void *);
int cudaFreeAsync_ptsz(void *, void *);
int cudaMemPoolCreate(void **, const struct pool_properties *);
int cudaMallocArray(void **, const struct channels *, size_t, size_t, unsigned);
int cudaFreeArray(void *);
int cudaIpcGetMemHandle(struct handle *, void *);
int cudaIpcOpenMemHandle(void **, struct handle, unsigned);
int cudaIpcCloseMemHandle(void *);
int cuMemAlloc_v2(u64 *, size_t);
int cuMemAllocPitch_v2(u64 *, size_t *, size_t, size_t, unsigned);
int cuMemAllocManaged(u64 *, size_t, unsigned);
int cuMemFree_v2(u64);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemAllocAsync(u64 *, size_t, void *);
int cuMemFreeAsync(u64, void *);
int cuMemAddressReserve(u64 *, size_t, size_t, u64, u64);
int cuMemAddressFree(u64, size_t);
int cuMemCreate(u64 *, size_t, const struct properties *, u64);
int cuMemRelease(u64);
int cuMemMap(u64, size_t, size_t, u64, u64);
int cuMemUnmap(u64, size_t);
int cuMemRetainAllocationHandle(u64 *, void *);
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxDestroy_v2(void *);
int cuCtxPushCurrent_v2(void *);
int cuCtxPopCurrent_v2(void **);
int cuCtxSetCurrent(void *);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxReset_v2(int);

enum { NAMES = 4096 };
static struct named { char name[24]; u64 value; size_t size; } names[NAMES];
static void *side_stream, *own_pool;

static struct named *find(const char *name) {
    for (int i = 0; i < NAMES; i++)
        if (strcmp(names[i].name, name) == 0) return &names[i];
    return NULL;
}

static struct named *known(const char *name) {
    struct named *it = find(name);
    if (!it) fail("no such name");
    return it;
}

static struct named *fresh(const char *name) {
    struct named *it = find(name);
    if (!it) it = find("");
    if (!it) fail("too many names");
    snprintf(it->name, sizeof it->name, "%s", name);
    return it;
}

/* Says what a call returned, and keeps what it gave under the command's first argument. */
static void gave(int result, u64 value, size_t size) {
    if (result == 0) {
        struct named *it = fresh(words[1]);
        it->value = value;
        it->size = size;
    }
    printf("{\"result\":%d,\"pointer\":%llu}\n", result, result == 0 ? value : 0);
}

static void took(int result, struct named *it) {
    if (result == 0 && it) it->name[0] = 0;
    printf("{\"result\":%d}\n", result);
}

/* Device 0 without a word, else the device that it names, or the host. */
static struct location location(int word) {
    if (!words[word]) return (struct location){1, 0};
    if (strcmp(words[word], "host") == 0) return (struct location){2, 0};
    return (struct location){1, (int)number(word)};
}

static void *stream(int word) {
    return words[word] && strcmp(words[word], "side") == 0 ? side_stream : NULL;
}

/* Threads that free each other's memory. `shared` holds what lives. */
enum { SHARED = 256 };
struct piece { void *pointer; size_t size; int asynchronous; };
static _Atomic(struct piece *) shared[SHARED];
static atomic_ullong came, came_bytes, went, failed;

static void give_up(struct piece *piece) {
    int result = piece->asynchronous ? cudaFreeAsync(piece->pointer, NULL) : cudaFree(piece->pointer);
    if (result != 0) atomic_fetch_add(&failed, 1);
    else atomic_fetch_add(&went, 1);
    free(piece);
}

static void *work(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    size_t rounds = number(2);
    cudaSetDevice(0);
    for (size_t round = 0; round < rounds; round++) {
        struct piece *piece = malloc(sizeof *piece);
        piece->size = 512 + (size_t)rand_r(&seed) % 100000;
        piece->asynchronous = rand_r(&seed) % 4 == 0;
        int result = piece->asynchronous ? cudaMallocAsync(&piece->pointer, piece->size, NULL)
                                         : cudaMalloc(&piece->pointer, piece->size);
        if (result != 0) {
            atomic_fetch_add(&failed, 1);
            free(piece);
            continue;
        }
        atomic_fetch_add(&came, 1);
        atomic_fetch_add(&came_bytes, piece->size);
        struct piece *other = atomic_exchange(&shared[(unsigned)rand_r(&seed) % SHARED], piece);
        if (other) give_up(other);
    }
    return NULL;
}

static void threads(void) {
    pthread_t ids[64];
    size_t count = number(1);
    u64 live = 0, live_bytes = 0;
    if (count > 64) fail("too many threads");
    for (size_t i = 0; i < count; i++) pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)(i * 7919 + 1 + (unsigned)getpid()));
    for (size_t i = 0; i < count; i++) pthread_join(ids[i], NULL);
    for (int i = 0; i < SHARED; i++) {
        struct piece *piece = atomic_load(&shared[i]);
        live += piece != NULL;
        live_bytes += piece ? piece->size : 0;
    }
    printf("{\"came\":%llu,\"went\":%llu,\"failed\":%llu,\"live\":%llu,\"live_bytes\":%llu}\n", (u64)came, (u64)went,
           (u64)failed, live, live_bytes);
}

/* A child that makes `number(1)` allocations of `number(2)` bytes when told to, and ends when told to. */
static int to_child = -1;
static void make_child(void) {
    int pair[2];
    if (pipe(pair) != 0) fail("no pipe");
    pid_t child = fork();
    if (child == 0) {
        char told;
        close(pair[1]);
        while (read(pair[0], &told, 1) == 1) {
            int result = 0;
            for (size_t i = 0; i < number(1) && result == 0; i++) {
                void *pointer;
                result = cudaMalloc(&pointer, number(2));
            }
            printf("{\"pid\":%d,\"result\":%d}\n", (int)getpid(), result);
            fflush(stdout);
        }
        _exit(0);
    }
    close(pair[0]);
    to_child = pair[1];
    printf("{\"child\":%d}\n", (int)child);
}

/* Where a call that is to block in its middle writes its result: a page that cannot be written before a line comes. */
enum { PAGE = 4096 };
static void **barred;

static void stand_still(int signal) {
    char one;
    (void)signal;
    if (write(1, "{\"blocked\":true}\n", 17) != 17) _exit(4);
    while (read(0, &one, 1) == 1 && one != '\n') {}
    if (mprotect(barred, PAGE, PROT_READ | PROT_WRITE) != 0) _exit(4);
}

/* blocked NAME SIZE: a cudaMalloc that says when it is in its middle, and goes on with the next line. */
static void blocked(void) {
    struct sigaction action = {.sa_handler = stand_still};
    barred = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (barred == MAP_FAILED || sigaction(SIGSEGV, &action, NULL) != 0) fail("nothing to block with");
    int result = cudaMalloc(barred, number(2));
    signal(SIGSEGV, SIG_DFL);
    gave(result, (u64)*barred, number(2));
    munmap(barred, PAGE);
}

/* Starts a child that executes what its words say. It has an input of its own, which ends with this process. */
static void spawn(void) {
    int input[2];
    if (pipe(input) != 0) fail("pipe failed");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        if (dup2(input[0], 0) < 0 || dup2(nowhere, 1) < 0) _exit(126);
        close(input[0]);
        close(input[1]);
        execv(words[1], words + 1);
        _exit(127);
    }
    close(input[0]);
    fcntl(input[1], F_SETFD, FD_CLOEXEC);
    printf("{\"child\":%d}\n", (int)child);
}

static void obey(void);

/* deep COMMAND …: the same from a frame that lies deeper than that of any other command's call. */
static __attribute__((noinline)) void deep(void) {
    volatile char room[4 * PAGE];
    room[0] = room[sizeof room - 1] = 0;
    memmove(words, words + 1, sizeof words - sizeof *words);
    obey();
    room[0] = 1;
}

static void obey(void) {
    void *pointer = NULL;
    u64 address = 0;
    size_t pitch = 0;
    int result;
    if (is("cudaSetDevice")) took(cudaSetDevice((int)number(1)), NULL);
    else if (is("cudaDeviceReset")) took(cudaDeviceReset(), NULL);
    else if (is("cudaMemGetInfo")) {
        size_t available = 0, total = 0;
        result = cudaMemGetInfo(&available, &total);
        printf("{\"result\":%d,\"free\":%zu,\"total\":%zu}\n", result, available, total);
    } else if (is("cudaMalloc")) result = cudaMalloc(&pointer, number(2)), gave(result, (u64)pointer, number(2));
    else if (is("cudaMallocPitch")) {
        result = cudaMallocPitch(&pointer, &pitch, number(2), number(3));
        gave(result, (u64)pointer, pitch * number(3));
    } else if (is("cudaMalloc3D")) {
        struct pitched out = {0};
        result = cudaMalloc3D(&out, (struct extent){number(2), number(3), number(4)});
        gave(result, (u64)out.ptr, out.pitch * number(3) * number(4));
    } else if (is("cudaMallocManaged")) result = cudaMallocManaged(&pointer, number(2), 1), gave(result, (u64)pointer, number(2));
    else if (is("cudaFree")) {
        if (words[1] && strcmp(words[1], "NULL") == 0) took(cudaFree(NULL), NULL);
        else took(cudaFree((void *)known(words[1])->value), known(words[1]));
    } else if (is("cudaFreeWrong")) took(cudaFree((void *)0x1234560), NULL);
    else if (is("cudaHostAlloc")) result = cudaHostAlloc(&pointer, number(2), 0), gave(result, (u64)pointer, number(2));
    else if (is("cudaMallocHost")) result = cudaMallocHost(&pointer, number(2)), gave(result, (u64)pointer, number(2));
    else if (is("cudaFreeHost")) took(cudaFreeHost((void *)known(words[1])->value), known(words[1]));
    else if (is("cudaHostRegister")) {
        pointer = aligned_alloc(4096, number(2));
        result = cudaHostRegister(pointer, number(2), 0);
        gave(result, (u64)pointer, number(2));
    } else if (is("cudaHostUnregister")) took(cudaHostUnregister((void *)known(words[1])->value), known(words[1]));
    else if (is("cudaStreamCreate")) took(cudaStreamCreate(&side_stream), NULL);
    else if (is("cudaMallocAsync")) result = cudaMallocAsync(&pointer, number(2), stream(3)), gave(result, (u64)pointer, number(2));
    else if (is("cudaMallocAsync_ptsz")) result = cudaMallocAsync_ptsz(&pointer, number(2), stream(3)), gave(result, (u64)pointer, number(2));
    else if (is("cudaFreeAsync")) took(cudaFreeAsync((void *)known(words[1])->value, stream(2)), known(words[1]));
    else if (is("cudaFreeAsync_ptsz")) took(cudaFreeAsync_ptsz((void *)known(words[1])->value, stream(2)), known(words[1]));
    else if (is("cudaMemPoolCreate")) {
        struct pool_properties properties = {.type = 1, .location = location(1)};
        took(cudaMemPoolCreate(&own_pool, &properties), NULL);
    } else if (is("cudaMallocFromPoolAsync")) {
        result = cudaMallocFromPoolAsync(&pointer, number(2), own_pool, stream(3));
        gave(result, (u64)pointer, number(2));
    } else if (is("cudaMallocArray")) {
        struct channels format = {.x = 32};
        result = cudaMallocArray(&pointer, &format, number(2), number(3), 0);
        gave(result, (u64)pointer, 4 * number(2) * number(3));
    } else if (is("cudaFreeArray")) took(cudaFreeArray((void *)known(words[1])->value), known(words[1]));
    else if (is("cudaIpcGetMemHandle")) {
        struct handle handle = {{0}};
        result = cudaIpcGetMemHandle(&handle, (void *)known(words[1])->value);
        printf("{\"result\":%d,\"handle\":\"", result);
        for (int i = 0; i < 64; i++) printf("%02x", (unsigned char)handle.bytes[i]);
        printf("\"}\n");
    } else if (is("cudaIpcOpenMemHandle")) {
        struct handle handle = {{0}};
        for (int i = 0; i < 64; i++) {
            unsigned byte = 0;
            if (!words[2] || sscanf(words[2] + 2 * i, "%2x", &byte) != 1) fail("no handle");
            handle.bytes[i] = (char)byte;
        }
        result = cudaIpcOpenMemHandle(&pointer, handle, 1);
        gave(result, (u64)pointer, 0);
    } else if (is("cudaIpcCloseMemHandle")) took(cudaIpcCloseMemHandle((void *)known(words[1])->value), known(words[1]));
    else if (is("cuMemAlloc")) result = cuMemAlloc_v2(&address, number(2)), gave(result, address, number(2));
    else if (is("cuMemAllocPitch")) {
        result = cuMemAllocPitch_v2(&address, &pitch, number(2), number(3), 4);
        gave(result, address, pitch * number(3));
    } else if (is("cuMemAllocManaged")) result = cuMemAllocManaged(&address, number(2), 1), gave(result, address, number(2));
    else if (is("cuMemFree")) took(cuMemFree_v2(known(words[1])->value), known(words[1]));
    else if (is("cuMemHostAlloc")) result = cuMemHostAlloc(&pointer, number(2), 0), gave(result, (u64)pointer, number(2));
    else if (is("cuMemFreeHost")) took(cuMemFreeHost((void *)known(words[1])->value), known(words[1]));
    else if (is("cuMemAllocAsync")) result = cuMemAllocAsync(&address, number(2), stream(3)), gave(result, address, number(2));
    else if (is("cuMemFreeAsync")) took(cuMemFreeAsync(known(words[1])->value, stream(2)), known(words[1]));
    else if (is("cuMemAddressReserve")) result = cuMemAddressReserve(&address, number(2), 0, 0, 0), gave(result, address, number(2));
    else if (is("cuMemAddressFree")) took(cuMemAddressFree(known(words[1])->value, known(words[1])->size), known(words[1]));
    else if (is("cuMemCreate")) {
        struct properties properties = {.type = 1, .location = location(3)};
        result = cuMemCreate(&address, number(2), &properties, 0);
        gave(result, address, number(2));
    } else if (is("cuMemRelease")) took(cuMemRelease(known(words[1])->value), known(words[1]));
    /* cuMemMap SPACE OFFSET HANDLE SIZE; cuMemUnmap SPACE OFFSET SIZE */
    else if (is("cuMemMap")) took(cuMemMap(known(words[1])->value + number(2), number(4), 0, known(words[3])->value, 0), NULL);
    else if (is("cuMemUnmap")) took(cuMemUnmap(known(words[1])->value + number(2), number(3)), NULL);
    /* cuMemRetain NAME SPACE OFFSET */
    else if (is("cuMemRetain")) {
        result = cuMemRetainAllocationHandle(&address, (void *)(known(words[2])->value + number(3)));
        gave(result, address, 0);
    } else if (is("cuCtxCreate")) result = cuCtxCreate_v2(&pointer, 0, (int)number(2)), gave(result, (u64)pointer, 0);
    else if (is("cuCtxDestroy")) took(cuCtxDestroy_v2((void *)known(words[1])->value), known(words[1]));
    else if (is("cuCtxPushCurrent")) took(cuCtxPushCurrent_v2((void *)known(words[1])->value), NULL);
    else if (is("cuCtxPopCurrent")) took(cuCtxPopCurrent_v2(NULL), NULL);
    else if (is("cuCtxSetCurrent")) took(cuCtxSetCurrent(words[1] ? (void *)known(words[1])->value : NULL), NULL);
    else if (is("cuDevicePrimaryCtxRetain")) {
        result = cuDevicePrimaryCtxRetain(&pointer, (int)number(2));
        gave(result, (u64)pointer, 0);
    } else if (is("cuDevicePrimaryCtxReset")) took(cuDevicePrimaryCtxReset_v2((int)number(1)), NULL);
    else if (is("pairs")) {
        /* As many allocations, each freed at once. */
        int bad = 0;
        for (size_t i = 0; i < number(1); i++) {
            bad |= cudaMalloc(&pointer, number(2));
            bad |= cudaFree(pointer);
        }
        took(bad, NULL);
    } else if (is("many")) {
        /* many NAME COUNT SIZE: as many allocations, never freed. */
        int bad = 0;
        for (size_t i = 0; i < number(2); i++) bad |= cudaMalloc(&pointer, number(3));
        took(bad, NULL);
    } else if (is("leak")) {
        /* leak ROUNDS SIZE PAUSE_MS KEEP: traffic of some sizes, and one more of SIZE a round. */
        void *kept[4096] = {0};
        int bad = 0;
        size_t rounds = number(1), keep = number(4);
        for (size_t round = 0; round < rounds && round < 4096; round++) {
            void *traffic[8];
            for (int i = 0; i < 8; i++) bad |= cudaMalloc(&traffic[i], 1000 * (size_t)(1 + (round + (size_t)i * 5) % 13));
            bad |= cudaMalloc(&kept[round], number(2));
            for (int i = 0; i < 8; i++) bad |= cudaFree(traffic[i]);
            if (keep != 0 && round >= keep) bad |= cudaFree(kept[round - keep]);
            usleep((useconds_t)number(3) * 1000);
        }
        took(bad, NULL);
    } else if (is("blocked")) blocked();
    else if (is("deep")) deep();
    else if (is("threads")) threads();
    else if (is("fork")) make_child();
    else if (is("child")) {
        /* The child answers. */
        if (write(to_child, "x", 1) != 1) fail("no child");
        return;
    } else if (is("end_child")) {
        close(to_child);
        took(wait(NULL) < 0, NULL);
    } else if (is("exec")) {
        fflush(stdout);
        execv(words[1], (char *[]){words[1], NULL});
        fail("exec failed");
    } else if (is("spawn")) spawn();
    else if (is("exit")) exit((int)number(1));
    else fail("no such command");
}

int main(void) { return obey_commands(obey); }
