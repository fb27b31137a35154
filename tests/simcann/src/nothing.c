/* Libraries that a program is linked with and from which it calls nothing. They are not quite empty, because
 * a library without code has no unwinding rules, of which PyTorch complains when it takes stacks. */
#include "sim.h"

EXPORT int simcann_nothing(void) { return 0; }
