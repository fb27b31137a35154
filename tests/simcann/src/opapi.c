/* libopapi.so: what operators are described with, and the operators whose workspace is known. The others
 * are written by `xtask` from the names that torch_npu looks up: they need no workspace, and each is one
 * launch. */
#include "opapi.h"

#include <stdlib.h>
#include <string.h>

enum { MATMUL_WORKSPACE = 1 << 20 };

struct tensor {
    uint64_t count;
    int64_t sizes[];
};

EXPORT void *aclCreateTensor(const int64_t *sizes, uint64_t count, int type, const int64_t *strides, int64_t offset,
                             int format, const int64_t *storage_sizes, uint64_t storage_count, void *data) {
    (void)type, (void)strides, (void)offset, (void)format, (void)storage_sizes, (void)storage_count, (void)data;
    struct tensor *it = malloc(sizeof *it + count * sizeof *sizes);
    it->count = count;
    if (count != 0) memcpy(it->sizes, sizes, count * sizeof *sizes);
    return it;
}

/* The caller frees the list with delete[], which is free() here. */
EXPORT int aclGetViewShape(const void *tensor, int64_t **sizes, uint64_t *count) {
    const struct tensor *it = tensor;
    if (!it || !sizes || !count) return ACL_ERROR_INVALID_PARAM;
    *count = it->count;
    *sizes = malloc((it->count + 1) * sizeof **sizes);
    memcpy(*sizes, it->sizes, it->count * sizeof **sizes);
    return 0;
}

EXPORT void *aclCreateScalar(void *value, int type) { return (void)value, (void)type, malloc(1); }
EXPORT void *aclCreateIntArray(const int64_t *values, uint64_t count) { return (void)values, (void)count, malloc(1); }
EXPORT void *aclCreateBoolArray(const bool *values, uint64_t count) { return (void)values, (void)count, malloc(1); }
EXPORT void *aclCreateFloatArray(const float *values, uint64_t count) { return (void)values, (void)count, malloc(1); }

/* Lists own their elements. */
struct list {
    uint64_t count;
    void *elements[];
};

static void *new_list(void *const *elements, uint64_t count) {
    struct list *it = malloc(sizeof *it + count * sizeof *elements);
    it->count = count;
    if (count != 0) memcpy(it->elements, elements, count * sizeof *elements);
    return it;
}

static int destroy_list(const void *list) {
    const struct list *it = list;
    for (uint64_t i = 0; it && i < it->count; i++) free(it->elements[i]);
    free((void *)list);
    return 0;
}

EXPORT void *aclCreateTensorList(void *const *elements, uint64_t count) { return new_list(elements, count); }
EXPORT void *aclCreateScalarList(void *const *elements, uint64_t count) { return new_list(elements, count); }
EXPORT int aclDestroyTensorList(const void *it) { return destroy_list(it); }
EXPORT int aclDestroyScalarList(const void *it) { return destroy_list(it); }
EXPORT int aclDestroyTensor(const void *it) { return free((void *)it), 0; }
EXPORT int aclDestroyScalar(const void *it) { return free((void *)it), 0; }
EXPORT int aclDestroyIntArray(const void *it) { return free((void *)it), 0; }
EXPORT int aclDestroyBoolArray(const void *it) { return free((void *)it), 0; }
EXPORT int aclDestroyFloatArray(const void *it) { return free((void *)it), 0; }
EXPORT int aclDestroyAclOpExecutor(void *it) { return (void)it, 0; }

int simcann_operator(const char *name, void *stream) {
    simcann_stub(name, 0);
    return rtKernelLaunchWithFlagV2(name, 1, NULL, NULL, stream, 0, NULL);
}

#define MATMUL(name, ...)                                                                          \
    EXPORT int name##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspace, void **executor) {         \
        (void)executor;                                                                            \
        *workspace = MATMUL_WORKSPACE;                                                             \
        return 0;                                                                                  \
    }                                                                                              \
    OPERATOR_RUNS(name)

#pragma GCC diagnostic ignored "-Wunused-parameter"
MATMUL(aclnnMatmul, const void *a, const void *b, void *out, int8_t cube)
MATMUL(aclnnMm, const void *a, const void *b, void *out, int8_t cube)
MATMUL(aclnnBatchMatMul, const void *a, const void *b, void *out, int8_t cube)
MATMUL(aclnnAddmm, const void *self, const void *a, const void *b, const void *beta, const void *alpha, void *out,
       int8_t cube)
MATMUL(aclnnBaddbmm, const void *self, const void *a, const void *b, const void *beta, const void *alpha, void *out,
       int8_t cube)
