/* Device memory and the table of address ranges.
 *
 * Each device's memory is one sparse memory file, mapped whole and shared at the first use. An
 * allocation is a range of that file, so that another process can map the same range (IPC), and so
 * that physical memory can be mapped a second time elsewhere. Nothing is resident until it is
 * written. */
#include "sim.h"

#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SMALL_ALIGNMENT = 512, LARGE_ALIGNMENT = 2 << 20 };

struct hole {
    uint64_t offset, size;
    struct hole *next;
};

static struct memory {
    int file;
    uintptr_t base;
    size_t used;
    struct hole *holes; /* by offset, never adjacent */
} memories[SIM_MAX_DEVICES];

static void *ranges; /* tsearch tree; disjoint ranges compare equal when they overlap */
static uint64_t next_id = 1;

/* 64 KiB on many Arm hosts. */
size_t sim_page(void) {
    static size_t page;
    if (page == 0) page = (size_t)sysconf(_SC_PAGESIZE);
    return page;
}

size_t sim_used_bytes(int device) { return memories[device].used; }

int sim_charge(int device, size_t bytes) {
    size_t total = sim_settings()->device_bytes[device];
    struct memory *memory = &memories[device];
    if (bytes > total || memory->used > total - bytes) return SIM_OUT_OF_MEMORY;
    memory->used += bytes;
    return 0;
}

void sim_discharge(int device, size_t bytes) { memories[device].used -= bytes; }

/* Twice the device and more: the address space must not run out before the memory does. */
static size_t file_bytes(int device) {
    return round_up(sim_settings()->device_bytes[device], LARGE_ALIGNMENT) * 4 + (1ul << 30);
}

static int open_memory(int device) {
    struct memory *memory = &memories[device];
    if (memory->base != 0) return 0;
    size_t bytes = file_bytes(device);
    char name[32];
    snprintf(name, sizeof name, SIM_NAME "-device-%d", sim_settings()->physical[device]);
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0) return SIM_BROKEN;
    /* Descriptors below 10 are what shells and tests redirect. */
    int high = fcntl(file, F_DUPFD_CLOEXEC, 200);
    if (high >= 0) {
        close(file);
        file = high;
    }
    char *space = MAP_FAILED;
    if (ftruncate(file, (off_t)bytes) == 0)
        space = mmap(NULL, bytes + LARGE_ALIGNMENT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space != MAP_FAILED) {
        char *base = (char *)round_up((uintptr_t)space, LARGE_ALIGNMENT);
        if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0) == base) {
            struct hole *all = malloc(sizeof *all);
            *all = (struct hole){.offset = 0, .size = bytes};
            *memory = (struct memory){.file = file, .base = (uintptr_t)base, .used = memory->used, .holes = all};
            return 0;
        }
    }
    close(file);
    return SIM_BROKEN;
}

int sim_device_file(int device) {
    return open_memory(device) == 0 ? memories[device].file : -1;
}

uintptr_t sim_device_address(int device, uint64_t offset) { return memories[device].base + offset; }

int sim_take(int device, size_t bytes, size_t alignment, uint64_t *offset) {
    int result = open_memory(device);
    if (result != 0) return result;
    if (alignment == 0) alignment = bytes >= (1 << 20) ? LARGE_ALIGNMENT : SMALL_ALIGNMENT;
    bytes = round_up(bytes, SMALL_ALIGNMENT);
    for (struct hole **link = &memories[device].holes, *hole; (hole = *link); link = &hole->next) {
        uint64_t start = round_up(hole->offset, alignment), end = hole->offset + hole->size;
        if (start > end || end - start < bytes) continue;
        *offset = start;
        uint64_t before = start - hole->offset, after = end - start - bytes;
        if (before != 0 && after != 0) {
            struct hole *second = malloc(sizeof *second);
            *second = (struct hole){.offset = start + bytes, .size = after, .next = hole->next};
            hole->size = before;
            hole->next = second;
        } else if (before != 0) {
            hole->size = before;
        } else if (after != 0) {
            hole->offset = start + bytes;
            hole->size = after;
        } else {
            *link = hole->next;
            free(hole);
        }
        return 0;
    }
    return SIM_OUT_OF_MEMORY;
}

void sim_give_back(int device, uint64_t offset, size_t bytes) {
    struct memory *memory = &memories[device];
    bytes = round_up(bytes, SMALL_ALIGNMENT);
    /* Freed memory must not stay resident; small ranges are not worth a system call. */
    uint64_t first = round_up(offset, sim_page()), last = (offset + bytes) / sim_page() * sim_page();
    if (bytes >= 64 * 1024 && last > first)
        fallocate(memory->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first, (off_t)(last - first));

    struct hole *previous = NULL, *next = memory->holes;
    while (next && next->offset < offset) {
        previous = next;
        next = next->next;
    }
    if (previous && previous->offset + previous->size == offset) {
        previous->size += bytes;
    } else {
        struct hole *hole = malloc(sizeof *hole);
        *hole = (struct hole){.offset = offset, .size = bytes, .next = next};
        if (previous) previous->next = hole;
        else memory->holes = hole;
        previous = hole;
    }
    if (next && previous->offset + previous->size == next->offset) {
        previous->size += next->size;
        previous->next = next->next;
        free(next);
    }
}

static int compare(const void *left, const void *right) {
    const struct sim_range *a = left, *b = right;
    if (a->base + a->size <= b->base) return -1;
    if (b->base + b->size <= a->base) return 1;
    return 0;
}

/* NULL when the range overlaps one that is tracked already. */
struct sim_range *sim_track(uintptr_t base, size_t size, enum sim_kind kind, int device) {
    struct sim_range *range = calloc(1, sizeof *range);
    *range = (struct sim_range){
        .base = base, .size = size, .kind = kind, .device = device, .id = next_id++};
    struct sim_range **found = tsearch(range, &ranges, compare);
    if (*found != range) {
        free(range);
        return NULL;
    }
    return range;
}

void sim_untrack(struct sim_range *range) {
    tdelete(range, &ranges, compare);
    free(range);
}

struct sim_range *sim_find(uintptr_t address) {
    struct sim_range key = {.base = address, .size = 1};
    struct sim_range **found = tfind(&key, &ranges, compare);
    return found ? *found : NULL;
}

/* twalk has no argument for its visitor; the lock protects these. */
static void *wanted;
static struct sim_range **collected;
static size_t collected_count;

static void collect(const void *node, VISIT visit, int depth) {
    struct sim_range *range = *(struct sim_range *const *)node;
    (void)depth;
    if ((visit != postorder && visit != leaf) || range->context != wanted) return;
    collected = realloc(collected, (collected_count + 1) * sizeof *collected);
    if (!collected) abort();
    collected[collected_count++] = range;
}

void sim_each_of(void *context, void (*visit)(struct sim_range *)) {
    wanted = context;
    collected_count = 0;
    twalk(ranges, collect);
    for (size_t i = 0; i < collected_count; i++) visit(collected[i]);
}

static bool on_device(const void *address) {
    sim_lock();
    struct sim_range *range = sim_find((uintptr_t)address);
    bool yes = range && range->kind != KIND_HOST && range->kind != KIND_REGISTERED;
    sim_unlock();
    return yes;
}

/* Where the host has put a few bytes lately: a table that forgets. */
static uintptr_t small_writes[4096];

static uintptr_t *small_write(const void *address) {
    return &small_writes[((uintptr_t)address >> 3) % (sizeof small_writes / sizeof *small_writes)];
}

/* Kernels write nothing. Where one would have written a count or a flag, memory holds what was there
 * before, perhaps the bits of a float; a program that allocates that many elements fails. So a single
 * number read by the host is what the host itself has put there, or small, or zero. */
static void read_number(void *to, const void *from, size_t bytes) {
    int64_t number = 0;
    memcpy(&number, from, bytes);
    bool known = *small_write(from) == (uintptr_t)from || sim_settings()->exact_reads;
    if (known || (number >= 0 && number < 65536)) memcpy(to, from, bytes);
    else memset(to, 0, bytes);
}

/* For the same reason the contents of large tensors mean nothing: from device to device only the first
 * bytes are copied, or a machine without a GPU would have to hold all of them. */
void sim_copy(void *to, const void *from, size_t bytes) {
    size_t limit = sim_settings()->copy_limit;
    bool small = bytes <= SMALL_ALIGNMENT, large = bytes > limit;
    if (small || large) {
        bool to_device = on_device(to), from_device = on_device(from);
        if (small && to_device && !from_device) *small_write(to) = (uintptr_t)to;
        if (large && to_device && from_device) bytes = limit;
        if (bytes <= 8 && from_device && !to_device) {
            read_number(to, from, bytes);
            return;
        }
    }
    memmove(to, from, bytes);
}

void sim_set(void *to, int value, size_t bytes) {
    size_t limit = sim_settings()->copy_limit;
    if (bytes <= SMALL_ALIGNMENT) *small_write(to) = (uintptr_t)to;
    if (bytes <= limit || !on_device(to)) {
        memset(to, value, bytes);
        return;
    }
    if (value != 0) {
        memset(to, value, limit);
        return;
    }
    /* Pages that were never written, or are dropped, read as zero. */
    uintptr_t first = round_up((uintptr_t)to, sim_page()), end = (uintptr_t)to + bytes;
    uintptr_t last = end / sim_page() * sim_page();
    if (madvise((void *)first, last - first, MADV_REMOVE) != 0) {
        memset(to, 0, limit);
        return;
    }
    memset(to, 0, first - (uintptr_t)to);
    memset((void *)last, 0, end - last);
}
