/* What the simulated devices share: settings, the log, the lock, device memory and the table of
 * address ranges.
 *
 * Each device compiles these files into the library that owns its state (libcuda.so.1,
 * libascend_hal.so), with a `simdevice.h` of its own in the include path. That header says how the
 * device is called and what its errors are. The functions get the device's name as their prefix
 * (simcuda_lock, simcann_lock), so that two simulated devices in one process do not answer for each
 * other. */
#ifndef SIM_H
#define SIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Defines SIM_DEVICE (the prefix), SIM_NAME (the same as a string), SIM_ENV (the prefix of settings),
 * SIM_VISIBLE (the variable that selects devices), SIM_ASCENDING (whether it must ascend), and the errors
 * of the lowest layer SIM_OUT_OF_MEMORY and SIM_BROKEN (the operating system refuses). */
#include "simdevice.h"

#define EXPORT __attribute__((visibility("default")))

#define SIM_JOIN_(device, name) device##_##name
#define SIM_JOIN(device, name) SIM_JOIN_(device, name)
#define sim_range SIM_JOIN(SIM_DEVICE, range)
#define sim_call SIM_JOIN(SIM_DEVICE, call)
#define sim_settings SIM_JOIN(SIM_DEVICE, settings)
#define sim_kind SIM_JOIN(SIM_DEVICE, kind)
#define sim_planned_failure SIM_JOIN(SIM_DEVICE, planned_failure)
#define sim_log_line SIM_JOIN(SIM_DEVICE, log_line)
#define sim_refuse SIM_JOIN(SIM_DEVICE, refuse)
#define sim_read_own_settings SIM_JOIN(SIM_DEVICE, read_own_settings)
#define sim_number_of_name SIM_JOIN(SIM_DEVICE, number_of_name)
#define sim_out_of_memory_of SIM_JOIN(SIM_DEVICE, out_of_memory_of)
#define sim_not_initialized_of SIM_JOIN(SIM_DEVICE, not_initialized_of)
#define sim_lock SIM_JOIN(SIM_DEVICE, lock)
#define sim_unlock SIM_JOIN(SIM_DEVICE, unlock)
#define sim_begin SIM_JOIN(SIM_DEVICE, begin)
#define sim_end SIM_JOIN(SIM_DEVICE, end)
#define sim_leave SIM_JOIN(SIM_DEVICE, leave)
#define sim_fail SIM_JOIN(SIM_DEVICE, fail)
#define sim_forked SIM_JOIN(SIM_DEVICE, forked)
#define sim_started SIM_JOIN(SIM_DEVICE, started)
#define sim_stub SIM_JOIN(SIM_DEVICE, stub)
#define sim_now_ns SIM_JOIN(SIM_DEVICE, now_ns)
#define sim_page SIM_JOIN(SIM_DEVICE, page)
#define sim_used_bytes SIM_JOIN(SIM_DEVICE, used_bytes)
#define sim_charge SIM_JOIN(SIM_DEVICE, charge)
#define sim_discharge SIM_JOIN(SIM_DEVICE, discharge)
#define sim_take SIM_JOIN(SIM_DEVICE, take)
#define sim_give_back SIM_JOIN(SIM_DEVICE, give_back)
#define sim_device_address SIM_JOIN(SIM_DEVICE, device_address)
#define sim_device_file SIM_JOIN(SIM_DEVICE, device_file)
#define sim_track SIM_JOIN(SIM_DEVICE, track)
#define sim_untrack SIM_JOIN(SIM_DEVICE, untrack)
#define sim_find SIM_JOIN(SIM_DEVICE, find)
#define sim_each_of SIM_JOIN(SIM_DEVICE, each_of)
#define sim_copy SIM_JOIN(SIM_DEVICE, copy)
#define sim_set SIM_JOIN(SIM_DEVICE, set)
#define sim_reserve SIM_JOIN(SIM_DEVICE, reserve)
#define sim_reserved_at SIM_JOIN(SIM_DEVICE, reserved_at)
#define sim_unreserve SIM_JOIN(SIM_DEVICE, unreserve)
#define sim_is_reserved SIM_JOIN(SIM_DEVICE, is_reserved)

enum { SIM_MAX_DEVICES = 64 };

/* What a tracked address range is. */
enum sim_kind {
    KIND_DEVICE = 1,  /* plain device memory: charged to the device */
    KIND_POOL,        /* stream-ordered memory: charged to the pool */
    KIND_ARRAY,       /* arrays: charged to the device, not addressable by users */
    KIND_MANAGED,     /* managed memory: may exceed the device, so it is not charged */
    KIND_HOST,        /* pinned host memory */
    KIND_REGISTERED,  /* registered host memory: the memory is the caller's */
    KIND_IPC,         /* another process's memory */
    KIND_MAPPED,      /* a mapping of physical memory: charged when that was created */
};

struct sim_range {
    uintptr_t base;
    size_t size;
    enum sim_kind kind;
    int device;
    unsigned flags;
    uint64_t id;          /* unique in the process, never used again */
    uint64_t offset;      /* in the device's memory file */
    size_t held;          /* bytes taken from the device's memory file */
    void *mapping;        /* what to unmap, where that is not [base, base + size) */
    size_t mapping_size;
    void *owner;          /* what the device keeps of it */
    void *context;        /* what it goes with, if it goes with something */
};

/* One call of an allocator function, from entry to result. Holds the global lock: calls are
 * serialised, so the log's order is the true order. */
struct sim_call {
    const char *function;
    int injected;  /* error code that the failure plan asks for, or 0 */
    bool flagged;  /* the log line has a "flag" */
    uint64_t flag;
};

/* settings.c */
struct sim_settings {
    int present; /* devices in the machine, of which SIM_VISIBLE may hide some */
    size_t physical_bytes[SIM_MAX_DEVICES];
    int devices;
    int physical[SIM_MAX_DEVICES]; /* ordinal -> physical number (SIM_VISIBLE) */
    size_t device_bytes[SIM_MAX_DEVICES];
    uint64_t event_delay_ns;
    size_t copy_limit;
    bool trace_stubs, exact_reads;
};
EXPORT const struct sim_settings *sim_settings(void);
int sim_planned_failure(const char *function);
void sim_log_line(const struct sim_call *call, int depth, uintptr_t pointer, size_t size, int device,
                  const void *stream, int result);
/* Ends the process: a setting that cannot be understood must not go unnoticed. */
void sim_refuse(const char *variable, const char *text);

/* What the device adds to the settings. The first reads variables of its own; the second finds the
 * number of a device that SIM_VISIBLE names otherwise than by number, or -1; the others are a
 * function's own errors for memory that is out and for a device that a fork has lost. */
void sim_read_own_settings(void);
long sim_number_of_name(const char *text, char **end, int present);
int sim_out_of_memory_of(const char *function);
int sim_not_initialized_of(const char *function);

/* call.c */
EXPORT void sim_lock(void);
EXPORT void sim_unlock(void);
EXPORT int sim_begin(struct sim_call *call, const char *function);
EXPORT int sim_end(struct sim_call *call, uintptr_t pointer, size_t size, int device,
                   const void *stream, int result);
/* Ends a call that has no line in the log. */
EXPORT int sim_leave(struct sim_call *call, int result);
EXPORT int sim_fail(const char *function);
EXPORT bool sim_forked(void);
EXPORT void sim_started(void);
EXPORT int sim_stub(const char *function, int result);
EXPORT uint64_t sim_now_ns(void);

/* memory.c: device memory files and the table of address ranges. Callers hold the lock. */
EXPORT size_t sim_page(void);
EXPORT size_t sim_used_bytes(int device);
int sim_charge(int device, size_t bytes);
void sim_discharge(int device, size_t bytes);
int sim_take(int device, size_t bytes, size_t alignment, uint64_t *offset);
void sim_give_back(int device, uint64_t offset, size_t bytes);
uintptr_t sim_device_address(int device, uint64_t offset);
int sim_device_file(int device);
struct sim_range *sim_track(uintptr_t base, size_t size, enum sim_kind kind, int device);
void sim_untrack(struct sim_range *range);
EXPORT struct sim_range *sim_find(uintptr_t address);
/* Calls `visit` with each range that goes with this context. It may untrack the range. */
void sim_each_of(void *context, void (*visit)(struct sim_range *));
EXPORT void sim_copy(void *to, const void *from, size_t bytes);
EXPORT void sim_set(void *to, int value, size_t bytes);

/* space.c: address space without memory. */
uintptr_t sim_reserve(size_t size, size_t alignment);
size_t sim_reserved_at(uintptr_t base);
void sim_unreserve(uintptr_t base);
bool sim_is_reserved(uintptr_t base, size_t size);

static inline size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

#endif
