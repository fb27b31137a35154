/* Allocates and frees on the simulated device, and counts what it does.
 *
 *   guest SEED
 *
 * Each line on standard input is a command:
 *   work N   N calls that allocate or free; the answer is what it has counted since it began
 *   run      makes calls without a pause until it is killed, or until it reads the next line
 *   exec     begins anew as another image, and answers as at its start
 * It ends with its input. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cudaSetDevice(int);
int cudaMalloc(void **, size_t);
int cudaFree(void *);

enum { SLOTS = 64 };
static struct { void *pointer; size_t size; } slots[SLOTS];
static unsigned long long allocs, live;
static uint64_t seed;

static uint64_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static void call(void) {
    int at = (int)(next() % SLOTS);
    if (slots[at].pointer) {
        if (cudaFree(slots[at].pointer) != 0) exit(1);
        live -= slots[at].size;
        slots[at].pointer = NULL;
        return;
    }
    slots[at].size = 1 + next() % 100000;
    if (cudaMalloc(&slots[at].pointer, slots[at].size) != 0) exit(1);
    allocs++;
    live += slots[at].size;
}

static int is_told(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, 0) != 0;
}

int main(int count, char **words) {
    char line[64];
    if (count != 2) return 2;
    seed = strtoull(words[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    setvbuf(stdin, NULL, _IONBF, 0);
    if (cudaSetDevice(0) != 0) return 1;
    puts("{\"ready\":true}");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "work ", 5) == 0) {
            for (long left = strtol(line + 5, NULL, 10); left > 0; left--) call();
            printf("{\"allocs\":%llu,\"live\":%llu}\n", allocs, live);
            fflush(stdout);
        } else if (strcmp(line, "run\n") == 0) {
            while (!is_told()) call();
        } else if (strcmp(line, "exec\n") == 0) {
            execv("/proc/self/exe", words);
            return 1;
        } else {
            return 2;
        }
    }
    return 0;
}
