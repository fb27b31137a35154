/* libgraph.so and libge_runner.so: graphs are not simulated. Older torch_npu registers operators with
 * the first when it is loaded; the names are those of the C++ functions. */
#include "simcann.h"

#include <string.h>

/* Constructors must leave something that can be destroyed: a null pointer to shared contents. */
enum { STRING_BYTES = 16 };

EXPORT void _ZN2ge12AscendStringC1EPKc(void *self, const char *text) {
    (void)text;
    memset(self, 0, STRING_BYTES);
}
