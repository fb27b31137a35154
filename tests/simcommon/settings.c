/* Settings from the environment, the failure plan, and the log. README.md documents each. */
#include "sim.h"

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

static struct sim_settings settings;
static struct planned plan[MAX_PLANNED];
static int planned_count;
static int log_file = -1;
static pid_t log_pid;
static uint64_t log_number;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void sim_refuse(const char *variable, const char *text) {
    fprintf(stderr, SIM_NAME ": cannot read %s=%s; see tests/" SIM_NAME "/README.md\n", variable, text);
    _exit(125);
}

/* "16GiB", "512M", "1073741824"; units are powers of 1024. */
static size_t bytes_of(const char *variable, const char *text, const char **rest) {
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (end == text || errno != 0 || number < 0) sim_refuse(variable, text);
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

/* 0 stands for the function's own way to say that memory is out. */
static int error_of(const char *text) {
    if (strcmp(text, "oom") == 0) return 0;
    char *end;
    long code = strtol(text, &end, 10);
    if (end == text || *end != 0 || code <= 0 || code > 999999) sim_refuse(SIM_ENV "_FAIL", text);
    return (int)code;
}

/* FUNCTION:CALLS=ERROR[,...]; CALLS is N, N-M, N+ or *; ERROR is a number or "oom". */
static void read_plan(const char *text) {
    char *copy = strdup(text), *state = NULL;
    for (char *item = strtok_r(copy, ",", &state); item; item = strtok_r(NULL, ",", &state)) {
        char *equals = strchr(item, '=');
        char *colon = strchr(item, ':');
        if (planned_count == MAX_PLANNED) sim_refuse(SIM_ENV "_FAIL", "more than 32 entries");
        struct planned *entry = &plan[planned_count++];
        *entry = (struct planned){.from = 1, .to = ~0ul, .error = 0};
        if (equals) {
            *equals = 0;
            entry->error = error_of(equals + 1);
        }
        if (colon) {
            *colon = 0;
            char *end = colon + 1;
            if (strcmp(end, "*") != 0) {
                entry->from = strtoul(colon + 1, &end, 10);
                if (end == colon + 1 || entry->from == 0) sim_refuse(SIM_ENV "_FAIL", text);
                entry->to = entry->from;
                if (strcmp(end, "+") == 0) {
                    entry->to = ~0ul;
                } else if (*end == '-') {
                    entry->to = strtoul(end + 1, &end, 10);
                    if (*end != 0 || entry->to < entry->from) sim_refuse(SIM_ENV "_FAIL", text);
                } else if (*end != 0) {
                    sim_refuse(SIM_ENV "_FAIL", text);
                }
            }
        }
        snprintf(entry->function, sizeof entry->function, "%s", item);
        if (entry->error == 0) entry->error = sim_out_of_memory_of(entry->function);
    }
    free(copy);
}

/* A list of numbers or names; like the real driver, stops at the first entry it cannot use. CANN takes nothing
 * of a list that does not ascend. */
static void read_visible(const char *text) {
    int present = settings.present, count = 0;
    while (*text != 0 && count < present) {
        char *end;
        long number = sim_number_of_name(text, &end, present);
        if (number < 0) number = strtol(text, &end, 10);
        if (number < 0 || end == text || number >= present) break;
        if (SIM_ASCENDING && count != 0 && number <= settings.physical[count - 1]) {
            count = 0;
            break;
        }
        settings.physical[count++] = (int)number;
        if (*end != ',') break;
        text = end + 1;
    }
    settings.devices = count;
}

static void read_settings(void) {
    const char *text, *rest;
    settings.devices = 1;
    if ((text = getenv(SIM_ENV "_DEVICES"))) {
        settings.devices = atoi(text);
        if (settings.devices < 0 || settings.devices > SIM_MAX_DEVICES) sim_refuse(SIM_ENV "_DEVICES", text);
    }
    text = getenv(SIM_ENV "_DEVICE_SIZE");
    if (!text) text = "16GiB";
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        settings.physical_bytes[i] = bytes_of(SIM_ENV "_DEVICE_SIZE", text, &rest);
        if (*rest == ',') text = rest + 1;
        else if (*rest != 0) sim_refuse(SIM_ENV "_DEVICE_SIZE", text);
        settings.physical[i] = i;
    }
    settings.present = settings.devices;
    if ((text = getenv(SIM_VISIBLE))) read_visible(text);
    for (int i = 0; i < settings.devices; i++)
        settings.device_bytes[i] = settings.physical_bytes[settings.physical[i]];

    if ((text = getenv(SIM_ENV "_EVENT_DELAY_US")))
        settings.event_delay_ns = strtoull(text, NULL, 10) * 1000;
    settings.copy_limit = 1 << 20;
    if ((text = getenv(SIM_ENV "_COPY_LIMIT")))
        settings.copy_limit = bytes_of(SIM_ENV "_COPY_LIMIT", text, &rest);
    settings.trace_stubs = getenv(SIM_ENV "_TRACE_STUBS") != NULL;
    settings.exact_reads = getenv(SIM_ENV "_EXACT_READS") != NULL;
    sim_read_own_settings();
    if ((text = getenv(SIM_ENV "_FAIL"))) read_plan(text);
    if ((text = getenv(SIM_ENV "_LOG")) && *text != 0) {
        log_file = open(text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (log_file < 0) sim_refuse(SIM_ENV "_LOG", text);
    }
}

const struct sim_settings *sim_settings(void) {
    pthread_once(&once, read_settings);
    return &settings;
}

int sim_planned_failure(const char *function) {
    sim_settings();
    for (int i = 0; i < planned_count; i++) {
        struct planned *entry = &plan[i];
        if (strcmp(entry->function, function) != 0) continue;
        unsigned long number = ++entry->seen;
        if (number >= entry->from && number <= entry->to) return entry->error;
    }
    return 0;
}

void sim_log_line(const struct sim_call *call, int depth, uintptr_t pointer, size_t size, int device,
                  const void *stream, int result) {
    sim_settings();
    if (log_file < 0) return;
    if (log_pid != getpid()) {
        log_pid = getpid();
        log_number = 0;
    }
    char line[512], flag[40] = "";
    if (call->flagged) snprintf(flag, sizeof flag, ",\"flag\":\"0x%llx\"", (unsigned long long)call->flag);
    int length = snprintf(
        line, sizeof line,
        "{\"n\":%llu,\"time_ns\":%llu,\"pid\":%d,\"tid\":%d,\"depth\":%d,\"function\":\"%s\","
        "\"pointer\":\"0x%llx\",\"size\":%llu,\"device\":%d,\"stream\":\"0x%llx\",\"result\":%d%s}\n",
        (unsigned long long)++log_number, (unsigned long long)sim_now_ns(), (int)log_pid,
        (int)syscall(SYS_gettid), depth, call->function, (unsigned long long)pointer,
        (unsigned long long)size, device, (unsigned long long)(uintptr_t)stream, result, flag);
    /* One write per line: O_APPEND keeps the lines of several processes apart. */
    if (write(log_file, line, (size_t)length) != length) {
        static const char message[] = SIM_NAME ": the log is incomplete (write failed)\n";
        if (write(2, message, sizeof message - 1) < 0) return;
    }
}
