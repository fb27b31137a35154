/* Settings from the environment, the failure plan, and the log. README.md documents each. */
#include "simcuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_PLANNED = 32 };

/* `from`..`to` are call numbers, counted from 1. */
struct planned {
    char function[64];
    unsigned long from, to, seen;
    int error;
};

static struct simcuda_settings settings;
static struct planned plan[MAX_PLANNED];
static int planned_count;
static int log_file = -1;
static pid_t log_pid;
static uint64_t log_number;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void refuse(const char *variable, const char *text) {
    fprintf(stderr, "simcuda: cannot read %s=%s; see tests/simcuda/README.md\n", variable, text);
    _exit(125);
}

/* "16GiB", "512M", "1073741824"; units are powers of 1024. */
static size_t bytes_of(const char *variable, const char *text, const char **rest) {
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (end == text || errno != 0 || number < 0) refuse(variable, text);
    static const char units[] = "kmgt";
    double factor = 1;
    for (int i = 0; units[i] != 0; i++) {
        factor *= 1024;
        if ((*end | 0x20) == units[i]) {
            number *= factor;
            end++;
            if (*end == 'i') end++;
            break;
        }
    }
    if (*end == 'B' || *end == 'b') end++;
    *rest = end;
    return (size_t)number;
}

static int error_of(const char *text) {
    if (strcmp(text, "oom") == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    char *end;
    long code = strtol(text, &end, 10);
    if (end == text || *end != 0 || code <= 0 || code > 999) refuse("SIMCUDA_FAIL", text);
    return (int)code;
}

/* FUNCTION:CALLS=ERROR[,...]; CALLS is N, N-M, N+ or *; ERROR is a number or "oom". */
static void read_plan(const char *text) {
    char *copy = strdup(text), *state = NULL;
    for (char *item = strtok_r(copy, ",", &state); item; item = strtok_r(NULL, ",", &state)) {
        char *equals = strchr(item, '=');
        char *colon = strchr(item, ':');
        if (planned_count == MAX_PLANNED) refuse("SIMCUDA_FAIL", "more than 32 entries");
        struct planned *entry = &plan[planned_count++];
        *entry = (struct planned){.from = 1, .to = ~0ul, .error = CUDA_ERROR_OUT_OF_MEMORY};
        if (equals) {
            *equals = 0;
            entry->error = error_of(equals + 1);
        }
        if (colon) {
            *colon = 0;
            char *end = colon + 1;
            if (strcmp(end, "*") != 0) {
                entry->from = strtoul(colon + 1, &end, 10);
                if (end == colon + 1 || entry->from == 0) refuse("SIMCUDA_FAIL", text);
                entry->to = entry->from;
                if (strcmp(end, "+") == 0) {
                    entry->to = ~0ul;
                } else if (*end == '-') {
                    entry->to = strtoul(end + 1, &end, 10);
                    if (*end != 0 || entry->to < entry->from) refuse("SIMCUDA_FAIL", text);
                } else if (*end != 0) {
                    refuse("SIMCUDA_FAIL", text);
                }
            }
        }
        snprintf(entry->function, sizeof entry->function, "%s", item);
    }
    free(copy);
}

/* -1 unless `text` begins with the UUID, or the beginning of the UUID, of a device. */
static long number_of_uuid(const char *text, char **end) {
    size_t length = strcspn(text, ",");
    for (int i = 0; i < settings.present && length > 4; i++) {
        uint64_t low = SIMCUDA_UUID_LOW + (uint64_t)i;
        char uuid[64];
        snprintf(uuid, sizeof uuid, "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(SIMCUDA_UUID_HIGH >> 32),
                 (unsigned)(SIMCUDA_UUID_HIGH >> 16 & 0xffff), (unsigned)(SIMCUDA_UUID_HIGH & 0xffff),
                 (unsigned)(low >> 48), (unsigned long long)(low & 0xffffffffffff));
        if (strncmp(uuid, text, length) == 0) {
            *end = (char *)text + length;
            return i;
        }
    }
    return -1;
}

/* A list of numbers or UUIDs; like the real driver, stops at the first entry it cannot use. */
static void read_visible(const char *text) {
    int present = settings.present, count = 0;
    while (*text != 0 && count < present) {
        char *end;
        long number = strncmp(text, "GPU-", 4) == 0 ? number_of_uuid(text, &end) : strtol(text, &end, 10);
        if (number < 0 || end == text || number >= present) break;
        settings.physical[count++] = (int)number;
        if (*end != ',') break;
        text = end + 1;
    }
    settings.devices = count;
}

static void read_settings(void) {
    const char *text, *rest;
    settings.devices = 1;
    if ((text = getenv("SIMCUDA_DEVICES"))) {
        settings.devices = atoi(text);
        if (settings.devices < 0 || settings.devices > SIMCUDA_MAX_DEVICES) refuse("SIMCUDA_DEVICES", text);
    }
    text = getenv("SIMCUDA_DEVICE_SIZE");
    if (!text) text = "16GiB";
    for (int i = 0; i < SIMCUDA_MAX_DEVICES; i++) {
        settings.physical_bytes[i] = bytes_of("SIMCUDA_DEVICE_SIZE", text, &rest);
        if (*rest == ',') text = rest + 1;
        else if (*rest != 0) refuse("SIMCUDA_DEVICE_SIZE", text);
        settings.physical[i] = i;
    }
    settings.present = settings.devices;
    if ((text = getenv("CUDA_VISIBLE_DEVICES"))) read_visible(text);
    for (int i = 0; i < settings.devices; i++)
        settings.device_bytes[i] = settings.physical_bytes[settings.physical[i]];

    settings.capability_major = 8;
    settings.capability_minor = 0;
    if ((text = getenv("SIMCUDA_COMPUTE_CAPABILITY")) &&
        sscanf(text, "%d.%d", &settings.capability_major, &settings.capability_minor) != 2)
        refuse("SIMCUDA_COMPUTE_CAPABILITY", text);
    if ((text = getenv("SIMCUDA_EVENT_DELAY_US")))
        settings.event_delay_ns = strtoull(text, NULL, 10) * 1000;
    settings.copy_limit = 1 << 20;
    if ((text = getenv("SIMCUDA_COPY_LIMIT")))
        settings.copy_limit = bytes_of("SIMCUDA_COPY_LIMIT", text, &rest);
    settings.trace_stubs = getenv("SIMCUDA_TRACE_STUBS") != NULL;
    settings.exact_reads = getenv("SIMCUDA_EXACT_READS") != NULL;
    if ((text = getenv("SIMCUDA_FAIL"))) read_plan(text);
    if ((text = getenv("SIMCUDA_LOG")) && *text != 0) {
        log_file = open(text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (log_file < 0) refuse("SIMCUDA_LOG", text);
    }
}

const struct simcuda_settings *simcuda_settings(void) {
    pthread_once(&once, read_settings);
    return &settings;
}

int simcuda_planned_failure(const char *function) {
    simcuda_settings();
    for (int i = 0; i < planned_count; i++) {
        struct planned *entry = &plan[i];
        if (strcmp(entry->function, function) != 0) continue;
        unsigned long number = ++entry->seen;
        if (number >= entry->from && number <= entry->to) return entry->error;
    }
    return 0;
}

void simcuda_log_line(const char *function, int depth, uintptr_t pointer, size_t size, int device,
                      const void *stream, int result) {
    simcuda_settings();
    if (log_file < 0) return;
    if (log_pid != getpid()) {
        log_pid = getpid();
        log_number = 0;
    }
    char line[512];
    int length = snprintf(
        line, sizeof line,
        "{\"n\":%llu,\"time_ns\":%llu,\"pid\":%d,\"tid\":%d,\"depth\":%d,\"function\":\"%s\","
        "\"pointer\":\"0x%llx\",\"size\":%llu,\"device\":%d,\"stream\":\"0x%llx\",\"result\":%d}\n",
        (unsigned long long)++log_number, (unsigned long long)simcuda_now_ns(), (int)log_pid,
        (int)syscall(SYS_gettid), depth, function, (unsigned long long)pointer,
        (unsigned long long)size, device, (unsigned long long)(uintptr_t)stream, result);
    /* One write per line: O_APPEND keeps the lines of several processes apart. */
    if (write(log_file, line, (size_t)length) != length) {
        static const char message[] = "simcuda: the log is incomplete (write failed)\n";
        if (write(2, message, sizeof message - 1) < 0) return;
    }
}
