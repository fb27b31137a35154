/* What the simulated devices' tests in C share. A test is a process: without an argument the program says its tests'
 * names. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20 };

static int failures;

static void check(bool ok, const char *text, int line) {
    if (ok) return;
    fprintf(stderr, "selftest.c:%d: not so: %s\n", line, text);
    failures++;
}
#define CHECK(condition) check((condition), #condition, __LINE__)
#define OK(call) CHECK((int)(call) == 0)
#define FAILS(call, code) CHECK((int)(call) == (int)(code))

struct test {
    const char *name;
    void (*run)(void);
};

/* The exit status. A name that no test has is 2. */
static int run_test(const struct test *tests, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (!name) puts(tests[i].name);
        else if (strcmp(name, tests[i].name) == 0) {
            tests[i].run();
            return failures != 0;
        }
    }
    return name ? 2 : 0;
}
