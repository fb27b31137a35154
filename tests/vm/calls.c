/*
 * Allocates and frees on a device in two threads, in a way that is known beforehand, and says what it did: a line of
 * JSON for each part. The parts wait for a file with their name, so that somebody can attach in between.
 *
 * usage: calls FOLDER
 */
#include "device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KEPT 40
#define ROUNDS 500
#define THREADS 2

struct work {
    unsigned seed;
    unsigned long long allocs, frees, failed, live, live_bytes;
    void *kept[KEPT];
    size_t sizes[KEPT];
    unsigned count;
};

static void part(const char *folder, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    while (access(path, F_OK) != 0)
        usleep(10000);
}

/* The functions call one another so that a stack shows it: no call is the last thing that its caller does. */
__attribute__((noinline)) int take(struct work *work, void **address, size_t bytes) {
    int failed = DEVICE_ALLOC(address, bytes);
    if (failed) {
        work->failed++;
    } else {
        work->allocs++;
        work->live++;
        work->live_bytes += bytes;
    }
    return failed;
}

__attribute__((noinline)) void give(struct work *work, void *address, size_t bytes) {
    if (DEVICE_FREE(address) == 0) {
        work->frees++;
        work->live--;
        work->live_bytes -= bytes;
    }
}

__attribute__((noinline)) void keep_one(struct work *work) {
    size_t bytes = DEVICE_UNIT * (1 + work->seed++ % 7);
    void *address;
    if (work->count < KEPT && take(work, &address, bytes) == 0) {
        work->kept[work->count] = address;
        work->sizes[work->count++] = bytes;
    }
}

__attribute__((noinline)) void use_one(struct work *work, unsigned round) {
    size_t bytes = DEVICE_UNIT << round % 6;
    void *address;
    if (take(work, &address, bytes) == 0)
        give(work, address, bytes);
}

static void *run(void *argument) {
    struct work *work = argument;
    if (DEVICE_SELECT() != 0)
        return argument;
    for (unsigned round = 0; round < ROUNDS; round++) {
        use_one(work, round);
        /* A machine that is simulated takes its time for a stack: at full speed, they would be sampled. */
        usleep(3000);
        if (round % (ROUNDS / KEPT) == 0)
            keep_one(work);
    }
    void *address;
    take(work, &address, (size_t)1 << 50);
    for (unsigned i = 0; i < work->count; i += 4)
        give(work, work->kept[i], work->sizes[i]);
    return NULL;
}

static void say(const char *part, const struct work *works, unsigned count) {
    struct work sum = {0};
    for (unsigned i = 0; i < count; i++) {
        sum.allocs += works[i].allocs;
        sum.frees += works[i].frees;
        sum.failed += works[i].failed;
        sum.live += works[i].live;
        sum.live_bytes += works[i].live_bytes;
    }
    printf("{\"part\":\"%s\",\"allocs\":%llu,\"frees\":%llu,\"failed\":%llu,\"live\":%llu,\"live_bytes\":%llu}\n",
           part, sum.allocs, sum.frees, sum.failed, sum.live, sum.live_bytes);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    static struct work works[THREADS];
    /* Whoever attaches finds the runtime loaded and at work. */
    if (DEVICE_SELECT() != 0)
        return 1;
    puts("ready");
    fflush(stdout);
    part(argv[1], "calls");
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        works[i].seed = i * 3;
        if (pthread_create(&threads[i], NULL, run, &works[i]) != 0)
            return 1;
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    DEVICE_SELECT();
    say("calls", works, THREADS);
    part(argv[1], "unseen");
    /* Nobody is attached any more. */
    for (unsigned round = 0; round < 10; round++)
        use_one(&works[0], round);
    say("unseen", works, THREADS);
    return 0;
}
