/* Stands in for the probe: its own memscope_event comes before the library's, and prints what it is given. */
#include <memscope_mark.h>
#include <stdio.h>

void memscope_event(uint32_t kind, uint64_t range, const char *name, size_t length) {
    static uint64_t first;
    if (range && !first) first = range;
    printf("%u %llu %s%.*s %zu\n", kind, range ? (unsigned long long)(range - first) + 1 : 0ull,
           name ? ":" : "null", (int)length, name ? name : "", length);
}

int main(void) {
    memscope_mark("moment");
    memscope_mark("");
    memscope_mark(NULL);
    uint64_t outer = memscope_range_begin("outer");
    uint64_t inner = memscope_range_begin(NULL);
    memscope_range_end(outer);
    memscope_range_end(inner);
    memscope_range_end(0);
    memscope_step();
    return 0;
}
