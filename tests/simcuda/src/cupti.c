/* CUPTI: not available. The real one, over a simulated driver, does not fail cleanly in every version.
 * The stubs of this library report CUPTI_ERROR_NOT_INITIALIZED. */
#include "simcuda.h"

int cuptiGetResultString(int result, const char **text) {
    *text = result == 0 ? "CUPTI_SUCCESS" : "CUPTI_ERROR_NOT_INITIALIZED";
    return 0;
}

int cuptiGetErrorMessage(int result, const char **text) { return cuptiGetResultString(result, text); }
