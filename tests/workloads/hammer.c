/* Threads that allocate and free device tensors without Python's lock, through PyTorch's C interface
 * (which is handed in as addresses). They make no pause unless they are told to, and stand still when
 * they are held. */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*empty_strided_fn)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **);
typedef int (*delete_fn)(void *);
typedef int (*stream_guard_fn)(void *, int32_t, void **);

enum { SLOTS = 24, SHARED = 64, CUDA = 1, BYTE = 0 };

static empty_strided_fn empty_strided;
static delete_fn delete_tensor;
static stream_guard_fn stream_guard;
static void *side_stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int threads, parked;
/* Threads with a number below this go on, with such a pause in microseconds. */
static atomic_int allowed, pause_us;
static atomic_long operations, failures;
/* What one thread allocated and another frees. */
static _Atomic(void *) shared[SHARED];

static void park(int number) {
    pthread_mutex_lock(&lock);
    parked++;
    pthread_cond_broadcast(&changed);
    while (number >= atomic_load(&allowed))
        pthread_cond_wait(&changed, &lock);
    parked--;
    pthread_mutex_unlock(&lock);
}

static uint64_t next(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Mostly small, some of the large pool, a few with a segment of their own. */
static int64_t size_of(uint64_t seed) {
    switch (seed % 10) {
    case 0:
        return (int64_t)(seed >> 8) % (16 << 20) + 1;
    case 1:
    case 2:
        return (int64_t)(seed >> 8) % (4 << 20) + 1;
    default:
        return (int64_t)(seed >> 8) % 300000 + 1;
    }
}

static void *allocate(uint64_t seed) {
    void *tensor = NULL;
    int64_t size = size_of(seed), stride = 1;
    if (empty_strided(1, &size, &stride, BYTE, CUDA, 0, &tensor) != 0) {
        atomic_fetch_add(&failures, 1);
        return NULL;
    }
    return tensor;
}

static void drop(void *tensor) {
    if (tensor && delete_tensor(tensor) != 0)
        atomic_fetch_add(&failures, 1);
}

static void *work(void *argument) {
    int number = (int)(intptr_t)argument;
    uint64_t seed = 0x9e3779b97f4a7c15u * (uint64_t)(number + 1);
    void *own[SLOTS] = {0}, *guard = NULL;
    if (number % 2 && stream_guard(side_stream, 0, &guard) != 0)
        atomic_fetch_add(&failures, 1);
    for (;;) {
        if (number >= atomic_load(&allowed))
            park(number);
        if (atomic_load(&pause_us) > 0)
            usleep((useconds_t)atomic_load(&pause_us));
        uint64_t turn = next(&seed);
        void **slot = &own[turn % SLOTS];
        if (*slot) {
            /* One in four is left for another thread. */
            void *before = *slot;
            if ((turn >> 40) % 4 == 0)
                before = atomic_exchange(&shared[(turn >> 8) % SHARED], before);
            drop(before);
            *slot = NULL;
        } else {
            *slot = allocate(next(&seed));
        }
        atomic_fetch_add(&operations, 1);
    }
    return NULL;
}

/* Starts so many threads, held. */
int hammer_start(int count, void *empty, void *give_back, void *guard, void *stream) {
    empty_strided = (empty_strided_fn)empty;
    delete_tensor = (delete_fn)give_back;
    stream_guard = (stream_guard_fn)guard;
    side_stream = stream;
    threads = count;
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)i) != 0)
            return 1;
        pthread_detach(thread);
    }
    return 0;
}

/* Lets so many threads go on. Returns when all others stand still between two operations. */
void hammer_allow(int count, int pause) {
    pthread_mutex_lock(&lock);
    atomic_store(&pause_us, pause);
    atomic_store(&allowed, count);
    pthread_cond_broadcast(&changed);
    while (parked < threads - count)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

long hammer_operations(void) { return atomic_load(&operations); }

long hammer_failures(void) { return atomic_load(&failures); }
