// A disk that fails or is slow, for `cargo xtask chaos`: loaded into memscoped by LD_PRELOAD.
//
// FAULTS_FILE names a file that is looked at in each call: `eio` makes the calls below fail with EIO, `slow MS` makes each of them take
// that many milliseconds longer, and without the file the disk is well. Only files below FAULTS_BELOW are meant.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static char *control, *below;

__attribute__((constructor)) static void start(void)
{
    const char *file = getenv("FAULTS_FILE"), *folder = getenv("FAULTS_BELOW");
    control = file ? strdup(file) : NULL;
    below = folder ? strdup(folder) : NULL;
    // Programs that this one starts are not meant.
    unsetenv("LD_PRELOAD");
}

static int is_meant(int fd, const char *path)
{
    char link[40], name[PATH_MAX];
    if (!path) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, name, sizeof name - 1);
        if (length <= 0)
            return 0;
        name[length] = 0;
        path = name;
    }
    return strncmp(path, below, strlen(below)) == 0;
}

// Whether the call is to fail. `path`, or the file of `fd`.
static int fails(int fd, const char *path)
{
    if (!control || !below)
        return 0;
    char words[32] = "";
    int before = errno, failed = 0;
    int file = open(control, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t length = read(file, words, sizeof words - 1);
        close(file);
        if (length > 0 && is_meant(fd, path)) {
            long ms = strncmp(words, "slow ", 5) == 0 ? atol(words + 5) : 0;
            struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };
            nanosleep(&pause, NULL);
            failed = strncmp(words, "eio", 3) == 0;
        }
    }
    errno = failed ? EIO : before;
    return failed;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define OF_FD(result, name, parameters, ...) \
    result name parameters \
    { \
        REAL(name); \
        return fails(fd, NULL) ? -1 : real(__VA_ARGS__); \
    }

OF_FD(ssize_t, write, (int fd, const void *bytes, size_t count), fd, bytes, count)
OF_FD(ssize_t, pwrite, (int fd, const void *bytes, size_t count, off_t at), fd, bytes, count, at)
OF_FD(ssize_t, pwrite64, (int fd, const void *bytes, size_t count, off64_t at), fd, bytes, count, at)
OF_FD(int, fsync, (int fd), fd)
OF_FD(int, fdatasync, (int fd), fd)
OF_FD(int, ftruncate, (int fd, off_t size), fd, size)
OF_FD(int, ftruncate64, (int fd, off64_t size), fd, size)
OF_FD(int, fallocate, (int fd, int mode, off_t at, off_t size), fd, mode, at, size)
OF_FD(int, fallocate64, (int fd, int mode, off64_t at, off64_t size), fd, mode, at, size)

int rename(const char *from, const char *to)
{
    REAL(rename);
    return fails(-1, from) ? -1 : real(from, to);
}
