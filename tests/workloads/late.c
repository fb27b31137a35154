/* A process that loads what makes the CUDA calls when it is told to.
 *
 * `load FILE` loads a library; `malloc SIZE` and `free` call its cudaMalloc and cudaFree, or work_malloc
 * and work_free where it has those. Each command is answered with one JSON object. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int (*allocate)(void **, size_t);
static int (*give_back)(void *);

int main(void) {
    char line[4096], word[4096];
    void *last = NULL;
    unsigned long long size;
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
