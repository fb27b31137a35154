/* Address space that is reserved, for memory to be mapped into it. Callers hold the lock. */
#include "sim.h"

#include <stdlib.h>
#include <sys/mman.h>

struct reservation {
    uintptr_t base;
    size_t size;
    struct reservation *next;
};

static struct reservation *reservations;

/* 0: there is none left. */
uintptr_t sim_reserve(size_t size, size_t alignment) {
    char *space = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return 0;
    uintptr_t base = round_up((uintptr_t)space, alignment);
    size_t before = base - (uintptr_t)space;
    if (before != 0) munmap(space, before);
    if (alignment != before) munmap((char *)base + size, alignment - before);
    struct reservation *reservation = malloc(sizeof *reservation);
    *reservation = (struct reservation){.base = base, .size = size, .next = reservations};
    reservations = reservation;
    return base;
}

/* Bytes of the reservation that begins here; 0: none does. */
size_t sim_reserved_at(uintptr_t base) {
    for (struct reservation *it = reservations; it; it = it->next)
        if (it->base == base) return it->size;
    return 0;
}

void sim_unreserve(uintptr_t base) {
    struct reservation **link = &reservations;
    while (*link && (*link)->base != base) link = &(*link)->next;
    struct reservation *gone = *link;
    if (!gone) return;
    munmap((void *)gone->base, gone->size);
    *link = gone->next;
    free(gone);
}

bool sim_is_reserved(uintptr_t base, size_t size) {
    for (struct reservation *it = reservations; it; it = it->next)
        if (base >= it->base && base + size <= it->base + it->size) return true;
    return false;
}
