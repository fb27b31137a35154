/* A workload that does what it is told. Each line on standard input is a command with its arguments; each is answered
 * with one JSON object on standard output. It ends with its input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS = 80 };

/* Of the command: its name, its arguments, and NULL behind them. */
static char *words[WORDS];

/* Says why and ends: the test is wrong. */
static void fail(const char *why) {
    printf("{\"result\":-1,\"error\":\"%s\"}\n", why);
    fflush(stdout);
    exit(3);
}

static int is(const char *name) { return strcmp(words[0], name) == 0; }

static size_t number(int word) {
    if (!words[word]) fail("a number is missing");
    return strtoull(words[word], NULL, 0);
}

/* Says that it is ready, and has each command obeyed, which also answers it. */
static int obey_commands(void (*obey)(void)) {
    char *line = NULL;
    size_t room = 0;
    printf("{\"ready\":true,\"pid\":%d}\n", (int)getpid());
    fflush(stdout);
    while (getline(&line, &room, stdin) > 0) {
        char *state = NULL;
        int count = 0;
        memset(words, 0, sizeof words);
        for (char *word = strtok_r(line, " \n", &state); word; word = strtok_r(NULL, " \n", &state)) {
            if (count == WORDS - 1) fail("too many words");
            words[count++] = word;
        }
        if (count == 0) continue;
        obey();
        fflush(stdout);
    }
    return 0;
}
