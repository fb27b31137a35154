/* libacl_op_compiler.so: operators that are compiled at run time. Each is one launch that does nothing. */
#include "simcann.h"

#include <string.h>

static int launch(void *stream) { return rtKernelLaunchWithFlagV2(NULL, 1, NULL, NULL, stream, 0, NULL); }

EXPORT int aclopCompileAndExecute(const char *type, int inputs, const void *const input_descriptions[],
                                  const void *const input_buffers[], int outputs,
                                  const void *const output_descriptions[], void *const output_buffers[],
                                  const void *attributes, int engine, int compilation, const char *path,
                                  void *stream) {
    (void)type, (void)inputs, (void)input_descriptions, (void)input_buffers, (void)outputs;
    (void)output_descriptions, (void)output_buffers, (void)attributes, (void)engine, (void)compilation, (void)path;
    return launch(stream);
}

EXPORT int aclopCompileAndExecuteV2(const char *type, int inputs, void *input_descriptions[], void *input_buffers[],
                                    int outputs, void *output_descriptions[], void *output_buffers[],
                                    void *attributes, int engine, int compilation, const char *path, void *stream) {
    (void)type, (void)inputs, (void)input_descriptions, (void)input_buffers, (void)outputs;
    (void)output_descriptions, (void)output_buffers, (void)attributes, (void)engine, (void)compilation, (void)path;
    return launch(stream);
}

EXPORT int aclSetCompileopt(int option, const char *value) {
    (void)option, (void)value;
    return 0;
}

/* An Ascend910B compiles nothing at run time: with it torch_npu takes the ready-made operators (aclnn). */
static const char jit[] = "disable";

static const char *value_of(int option) {
    enum { ACL_OP_JIT_COMPILE = 10 };
    return option == ACL_OP_JIT_COMPILE ? jit : "";
}

EXPORT size_t aclGetCompileoptSize(int option) { return strlen(value_of(option)) + 1; }

EXPORT int aclGetCompileopt(int option, char *value, size_t length) {
    if (!value || length <= strlen(value_of(option))) return ACL_ERROR_INVALID_PARAM;
    strcpy(value, value_of(option));
    return 0;
}
