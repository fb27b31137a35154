/* What a program links against or looks up, and of which nothing but success is expected. */
#include "simcann.h"

#define STUB(name) \
    EXPORT int name(void) { return simcann_stub(#name, 0); }

STUB(aclrtCtxSetSysParamOpt)
STUB(aclrtSetSysParamOpt)
STUB(aclrtSetDeviceSatMode)
STUB(aclrtSetOpExecuteTimeOut)
STUB(aclrtSetOpWaitTimeout)
STUB(aclrtSetStreamFailureMode)
STUB(aclrtSetStreamOverflowSwitch)
STUB(aclrtSetStreamAttribute)
STUB(aclrtSetTsDevice)
STUB(aclrtCmoAsync)
STUB(aclrtDeviceTaskAbort)
STUB(aclmdlInitDump)
STUB(aclmdlFinalizeDump)
STUB(aclmdlSetDump)
STUB(aclopStartDumpArgs)
STUB(aclopStopDumpArgs)
STUB(aclSetTensorDescName)
STUB(aclSetTensorFormat)
STUB(aclSetTensorPlaceMent)
STUB(aclSetTensorShape)
STUB(aclopSetAttrBool)
STUB(aclopSetAttrDataType)
STUB(aclopSetAttrFloat)
STUB(aclopSetAttrInt)
STUB(aclopSetAttrListBool)
STUB(aclopSetAttrListFloat)
STUB(aclopSetAttrListInt)
STUB(aclopSetAttrListListInt)
STUB(aclopSetAttrString)
STUB(aclprofInit)
STUB(aclprofStart)
STUB(aclprofStop)
STUB(aclprofFinalize)

/* The message is not printed: an error is told by its code, and the program says the rest. */
EXPORT void aclAppLog(int level, const char *function, const char *file, uint32_t line, const char *format, ...) {
    (void)level, (void)function, (void)file, (void)line, (void)format;
}

EXPORT int aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t *actual) {
    if (actual) *actual = timeout;
    return 0;
}

EXPORT int aclrtGetStreamOverflowSwitch(void *stream, uint32_t *flag) {
    (void)stream;
    if (flag) *flag = 0;
    return 0;
}

EXPORT int aclrtGetOverflowStatus(void *output, size_t size, void *stream) {
    (void)output, (void)size, (void)stream;
    return 0;
}

/* Descriptions of operators that are compiled at run time: nothing of them is read back. */
static int description;

EXPORT void *aclCreateTensorDesc(int type, int dimensions, const int64_t *sizes, int format) {
    (void)type, (void)dimensions, (void)sizes, (void)format;
    return &description;
}
EXPORT void aclDestroyTensorDesc(const void *it) { (void)it; }
EXPORT void *aclCreateDataBuffer(void *data, size_t size) {
    (void)data, (void)size;
    return &description;
}
EXPORT int aclDestroyDataBuffer(const void *it) { return (void)it, 0; }
EXPORT void *aclopCreateAttr(void) { return &description; }
EXPORT void aclopDestroyAttr(const void *it) { (void)it; }
EXPORT int aclGetTensorDescType(const void *it) { return (void)it, 0; }
EXPORT int aclGetTensorDescFormat(const void *it) { return (void)it, 0; }
EXPORT size_t aclGetTensorDescNumDims(const void *it) { return (void)it, 0; }
EXPORT int aclGetTensorDescDimV2(const void *it, size_t index, int64_t *size) {
    (void)it, (void)index;
    if (size) *size = 0;
    return 0;
}
