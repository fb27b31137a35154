/* A process that loads what makes the CUDA calls when it is told to.
 *
 * `load FILE` loads a library; `malloc SIZE` and `free` call its cudaMalloc and cudaFree, or work_malloc
 * and work_free where it has those. `crowd FILE COUNT` maps the first page of a file so many times, `clear` gives that back.
 * Each command is answered with one JSON object. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, CROWD = 65536 };
static void *crowd[CROWD];
static int crowded;

static int map_many(const char *path, int count) {
    int file = open(path, O_RDONLY);
    for (; crowded < count && crowded < CROWD; crowded++) {
        crowd[crowded] = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
        if (crowd[crowded] == MAP_FAILED) return 1;
    }
    return 0;
}

static void clear(void) {
    while (crowded > 0) munmap(crowd[--crowded], PAGE);
}

static int (*allocate)(void **, size_t);
static int (*give_back)(void *);

int main(void) {
    char line[4096], word[4096];
    void *last = NULL;
    unsigned long long size;
    int count;
    printf("{\"ready\":true}\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "load %4095s", word) == 1) {
            void *library = dlopen(word, RTLD_NOW | RTLD_LOCAL);
            if (library) {
                allocate = (int (*)(void **, size_t))dlsym(library, "work_malloc");
                give_back = (int (*)(void *))dlsym(library, "work_free");
                if (!allocate) allocate = (int (*)(void **, size_t))dlsym(library, "cudaMalloc");
                if (!give_back) give_back = (int (*)(void *))dlsym(library, "cudaFree");
            }
            printf("{\"result\":%d}\n", library ? 0 : 1);
            if (!library) fprintf(stderr, "%s\n", dlerror());
        } else if (sscanf(line, "crowd %4095s %d", word, &count) == 2) {
            printf("{\"result\":%d}\n", map_many(word, count));
        } else if (strcmp(line, "clear\n") == 0) {
            clear();
            printf("{\"result\":0}\n");
        } else if (sscanf(line, "malloc %llu", &size) == 1 && allocate) {
            printf("{\"result\":%d}\n", allocate(&last, size));
        } else if (strcmp(line, "free\n") == 0 && give_back) {
            printf("{\"result\":%d}\n", give_back(last));
        } else {
            printf("{\"error\":\"no such command\"}\n");
        }
        fflush(stdout);
    }
    return 0;
}
