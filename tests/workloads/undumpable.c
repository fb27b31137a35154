/* A process that keeps its memory from its own user, as those do that have changed their user or have file capabilities. */
#include <stdio.h>
#include <sys/prctl.h>

int main(void) {
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
        return 1;
    }
    puts("{\"ready\": true}");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
