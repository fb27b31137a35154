/*
 * Loaded before the C library into the memscoped that systemd starts in a trial's container. systemd must be the first process of a pid
 * namespace, and there memscoped refuses to start, because it would see no event. What is tried in that container is the unit and the
 * package's scripts, so memscoped is told that its namespace is the machine's. It traces nothing there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/types.h>

/* PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h. */
static const char INITIAL[] = "pid:[4026531836]";

ssize_t readlink(const char *path, char *buffer, size_t size)
{
	ssize_t (*next)(const char *, char *, size_t) = dlsym(RTLD_NEXT, "readlink");
	if (strcmp(path, "/proc/self/ns/pid") != 0)
		return next(path, buffer, size);
	size_t length = sizeof(INITIAL) - 1;
	if (length > size)
		length = size;
	memcpy(buffer, INITIAL, length);
	return (ssize_t)length;
}
