/* libprofapi.so: the profiler, which records nothing. */
#include "simcann.h"

EXPORT uint64_t MsprofSysCycleTime(void) { return simcann_now_ns(); }
EXPORT uint64_t MsprofGetHashId(const char *text, size_t length) {
    (void)text;
    return length;
}
EXPORT int32_t MsprofReportApi(uint32_t ageing, const void *api) { return (void)ageing, (void)api, 0; }
EXPORT int32_t MsprofReportEvent(uint32_t ageing, const void *event) { return (void)ageing, (void)event, 0; }
EXPORT int32_t MsprofReportCompactInfo(uint32_t ageing, const void *data, uint32_t length) {
    (void)ageing, (void)data, (void)length;
    return 0;
}
EXPORT int32_t MsprofReportAdditionalInfo(uint32_t ageing, const void *data, uint32_t length) {
    (void)ageing, (void)data, (void)length;
    return 0;
}
EXPORT int32_t MsprofRegisterProfileCallback(int32_t kind, void *callback, uint32_t length) {
    (void)kind, (void)callback, (void)length;
    return 0;
}
