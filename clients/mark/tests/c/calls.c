/* Calls everything, from several threads, with the library as it is; argv[1] is another copy of it. */
#include <dlfcn.h>
#include <memscope_mark.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 8
#define RANGES 20000

static uint64_t numbers[THREADS + 1][RANGES];

static void *work(void *place) {
    uint64_t *mine = place;
    for (int i = 0; i < RANGES; i++) {
        memscope_mark("a mark");
        mine[i] = memscope_range_begin(i % 2 ? "a range" : NULL);
        memscope_step();
        memscope_range_end(mine[i]);
    }
    return NULL;
}

static int order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "which is the other copy?\n");
        return 2;
    }
    memscope_mark(NULL);
    memscope_mark("");
    memscope_range_end(0);
    memscope_range_end(UINT64_MAX);
    memscope_event(MEMSCOPE_INSTANT, 0, NULL, 0);
    memscope_event(MEMSCOPE_BEGIN, 7, "seven and more", 5);
    memscope_event(MEMSCOPE_END, 7, NULL, 0);
    memscope_event(99, UINT64_MAX, (const char *)1, SIZE_MAX);

    void *copy = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!copy) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    uint64_t (*begin)(const char *) = (uint64_t(*)(const char *))dlsym(copy, "memscope_range_begin");
    if (!begin || begin == memscope_range_begin) {
        fprintf(stderr, "the other copy is this one\n");
        return 1;
    }
    for (int i = 0; i < RANGES; i++) numbers[THREADS][i] = begin("of the other");

    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, numbers[i])) return 3;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

    uint64_t *all = &numbers[0][0];
    size_t count = (THREADS + 1) * (size_t)RANGES;
    qsort(all, count, sizeof *all, order);
    for (size_t i = 0; i < count; i++) {
        if (!all[i] || (i && all[i] == all[i - 1])) {
            fprintf(stderr, "%llu is there twice, or 0\n", (unsigned long long)all[i]);
            return 1;
        }
    }
    printf("%zu ranges\n", count);
    return 0;
}
