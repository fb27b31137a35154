/* A process with files on a file system of its own (FUSE), whose server may stop to answer. Arguments: an empty folder for the
 * file system, the file that is shown there, and the name by which it is shown. */
#define _GNU_SOURCE
#include "commands.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>

enum { USER = 65534, FOLDER = 1, FILE_NODE = 2 };

/* What the server no longer answers; set by the process, read by the server. */
struct hold {
    volatile int opens, reads;
};

static struct hold *hold;
static const char *name;
static char path[4096];
static char *contents;
static size_t size;
static void *library;

static void reply(int device, uint64_t request, int error, const void *bytes, size_t length) {
    struct fuse_out_header head = {.len = sizeof head + length, .error = -error, .unique = request};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)bytes, length}};
    /* The request may have been interrupted by now. */
    if (writev(device, parts, length ? 2 : 1) < 0 && errno != ENOENT) _exit(4);
}

static struct fuse_attr facts(uint64_t node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .uid = USER, .gid = USER, .blksize = 4096};
    attr.mode = node == FOLDER ? S_IFDIR | 0755 : S_IFREG | 0755;
    attr.size = node == FOLDER ? 0 : size;
    return attr;
}

/* What was asked and not answered while that was held. */
enum { KEPT = 256 };
static struct kept {
    uint64_t request;
    int is_open;
    size_t from, size;
} kept[KEPT];
static int kept_count;

static void answer_open(int device, uint64_t request) {
    struct fuse_open_out out = {.fh = 1};
    reply(device, request, 0, &out, sizeof out);
}

static void answer_read(int device, uint64_t request, size_t from, size_t wanted) {
    if (from > size) from = size;
    size_t most = size - from;
    reply(device, request, 0, contents + from, wanted < most ? wanted : most);
}

static void keep(struct kept one) {
    if (kept_count == KEPT) _exit(5);
    kept[kept_count++] = one;
}

/* Who asked while it was held waits for the answer, and nothing else would wake it. */
static void answer_kept(int device) {
    for (int i = 0; i < kept_count; i++) {
        if (kept[i].is_open) answer_open(device, kept[i].request);
        else answer_read(device, kept[i].request, kept[i].from, kept[i].size);
    }
    kept_count = 0;
}

static void serve(int device) {
    static char buffer[1 << 20];
    for (;;) {
        if (!hold->opens && !hold->reads) answer_kept(device);
        struct pollfd ready = {.fd = device, .events = POLLIN};
        if (poll(&ready, 1, 20) == 0) continue;
        ssize_t length = read(device, buffer, sizeof buffer);
        if (length < 0 && (errno == EINTR || errno == ENOENT)) continue;
        if (length < 0) _exit(0);
        struct fuse_in_header *in = (void *)buffer;
        void *rest = in + 1;
        switch (in->opcode) {
        case FUSE_INIT: {
            struct fuse_init_out out = {.major = 7, .minor = 31, .max_write = 4096, .max_readahead = 65536};
            reply(device, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_LOOKUP: {
            struct fuse_entry_out out = {.nodeid = FILE_NODE, .attr = facts(FILE_NODE)};
            if (strcmp(rest, name) != 0) reply(device, in->unique, ENOENT, NULL, 0);
            else reply(device, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_GETATTR: {
            struct fuse_attr_out out = {.attr = facts(in->nodeid)};
            reply(device, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_OPEN: {
            if (hold->opens) keep((struct kept){.request = in->unique, .is_open = 1});
            else answer_open(device, in->unique);
            break;
        }
        case FUSE_READ: {
            struct fuse_read_in *wanted = rest;
            if (hold->reads) keep((struct kept){in->unique, 0, wanted->offset, wanted->size});
            else answer_read(device, in->unique, wanted->offset, wanted->size);
            break;
        }
        case FUSE_STATFS: {
            struct fuse_statfs_out out = {.st = {.bsize = 4096, .namelen = 255}};
            reply(device, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT:
            break;
        case FUSE_FLUSH:
        case FUSE_RELEASE:
            reply(device, in->unique, 0, NULL, 0);
            break;
        default:
            reply(device, in->unique, ENOSYS, NULL, 0);
        }
    }
}

static void read_contents(const char *from) {
    int file = open(from, O_RDONLY);
    struct stat its;
    if (file < 0 || fstat(file, &its) != 0) fail("the file to show");
    size = its.st_size;
    contents = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (contents == MAP_FAILED) fail("the file to show cannot be mapped");
}

static void mount_it(const char *folder) {
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) fail("a mount namespace");
    int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", device, USER, USER);
    if (device < 0 || mount("withheld", folder, "fuse.withheld", MS_NOSUID | MS_NODEV, options) != 0) fail("a FUSE file system");
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(STDIN_FILENO);
        close(STDOUT_FILENO);
        serve(device);
    }
    close(device);
}

static int open_it(void) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) fail("the file that is shown");
    return file;
}

static void obey(void) {
    if (is("hold")) {
        hold->opens = strcmp(words[1], "opens") == 0;
        hold->reads = strcmp(words[1], "reads") == 0;
    } else if (is("become")) {
        /* From here on it is a user's process, into which its user may look. */
        if (setgid(USER) != 0 || setuid(USER) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0) fail("another user");
    } else if (is("load")) {
        library = dlopen(words[1] ? words[1] : path, RTLD_NOW);
        if (!library) fail(dlerror());
    } else if (is("map")) {
        /* As code, and nothing of it is read. */
        if (mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, open_it(), 0) == MAP_FAILED) fail("mmap");
    } else if (is("cover")) {
        /* Puts a page of the file where this symbol of the library lies, or so many pages behind it. */
        uintptr_t place = (uintptr_t)dlsym(library, words[1]) & ~(uintptr_t)4095;
        if (!place) fail("no such symbol");
        if (words[2]) place += number(2) * 4096;
        if (mmap((void *)place, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, open_it(), 0) == MAP_FAILED) fail("mmap");
    } else if (is("malloc")) {
        int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(library, "cudaMalloc");
        void *memory = NULL;
        if (!allocate) fail("no cudaMalloc");
        printf("{\"result\":%d}\n", allocate(&memory, number(1)));
        return;
    } else {
        fail("no such command");
    }
    printf("{\"result\":0}\n");
}

int main(int count, char **arguments) {
    if (count != 4) fail("three arguments");
    hold = mmap(NULL, sizeof *hold, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    name = arguments[3];
    snprintf(path, sizeof path, "%s/%s", arguments[1], name);
    read_contents(arguments[2]);
    mount_it(arguments[1]);
    return obey_commands(obey);
}
