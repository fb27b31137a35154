/* A process that does on purpose what costs whoever traces it the most. */
#define _GNU_SOURCE
#include "commands.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

int cudaMalloc(void **, size_t);
int cudaFree(void *);

static void obey(void) {
    /* Calls the dynamic linker's hook for debuggers, as if code had been mapped each time. */
    if (is("hook")) {
        void (*hook)(void) = (void (*)(void))_r_debug.r_brk;
        for (size_t left = number(1); left > 0; left--) hook();
        printf("{\"result\":0}\n");
        return;
    }
    /* Allocates small blocks that it never frees. */
    if (is("leak")) {
        int result = 0;
        for (size_t left = number(1); left > 0 && result == 0; left--) {
            void *memory = NULL;
            result = cudaMalloc(&memory, 512);
        }
        printf("{\"result\":%d}\n", result);
        return;
    }
    if (is("malloc")) {
        void *memory = NULL;
        int result = cudaMalloc(&memory, number(1));
        printf("{\"result\":%d}\n", result);
        return;
    }
    /* Belongs to another user from here on. */
    if (is("user")) {
        uid_t user = (uid_t)number(1);
        int result = setresuid(user, user, user);
        if (result == 0) result = prctl(PR_SET_DUMPABLE, 1);
        printf("{\"result\":%d}\n", result);
        return;
    }
    /* Has children that do nothing until it ends. */
    if (is("forks")) {
        int result = 0;
        for (size_t left = number(1); left > 0 && result == 0; left--) {
            pid_t child = fork();
            if (child < 0) result = -1;
            if (child == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;) pause();
            }
        }
        printf("{\"result\":%d}\n", result);
        return;
    }
    /* Makes contexts that it never destroys. */
    if (is("contexts")) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        int (*create)(void **, unsigned, int) = driver ? (int (*)(void **, unsigned, int))dlsym(driver, "cuCtxCreate_v2") : NULL;
        if (!create) fail("no driver");
        int result = 0;
        for (size_t left = number(1); left > 0 && result == 0; left--) {
            void *context = NULL;
            result = create(&context, 0, 0);
        }
        printf("{\"result\":%d}\n", result);
        return;
    }
    fail("no such command");
}

int main(void) { return obey_commands(obey); }
