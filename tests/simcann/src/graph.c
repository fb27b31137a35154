/* libgraph.so: graphs of operators are not simulated. Older torch_npu (2.6) describes some operators to it
 * when it is loaded, through C++ functions; these are their names. */
#include "simcann.h"

#include <string.h>

/* A constructor must leave what a destructor can take: a null pointer to what strings share. */
enum { SHARED_BYTES = 16 };

/* ge::AscendString(char const*) */
EXPORT void _ZN2ge12AscendStringC1EPKc(void *self, const char *text) {
    (void)text;
    memset(self, 0, SHARED_BYTES);
}

/* ge::Operator(char const*, char const*) and the same with two strings: the pointer to the virtual functions
 * is set by the class that inherits from it. */
EXPORT void _ZN2ge8OperatorC2EPKcS2_(void *self, const char *name, const char *type) {
    (void)name, (void)type;
    memset((char *)self + sizeof(void *), 0, SHARED_BYTES);
}

EXPORT void _ZN2ge8OperatorC2ERKNS_12AscendStringES3_(void *self, const void *name, const void *type) {
    (void)name, (void)type;
    memset((char *)self + sizeof(void *), 0, SHARED_BYTES);
}

/* ge::OperatorCreatorRegister(char const*, std::function const&): never called back. */
#define REGISTERS(name) \
    EXPORT void name(void) { simcann_stub(#name, 0); }

REGISTERS(_ZN2ge23OperatorCreatorRegisterC1EPKcRKSt8functionIFNS_8OperatorERKNS_12AscendStringEEE)
REGISTERS(_ZN2ge8Operator12AttrRegisterEPKcb)
REGISTERS(_ZN2ge8Operator12AttrRegisterEPKcl)
REGISTERS(_ZN2ge8Operator13InputRegisterEPKc)
REGISTERS(_ZN2ge8Operator14OutputRegisterEPKc)
REGISTERS(_ZN2ge8Operator20DynamicInputRegisterEPKcjb)
REGISTERS(_ZN2ge8Operator20RequiredAttrRegisterEPKc)
REGISTERS(_ZN2ge8Operator27DynamicInputRegisterByIndexEPKcjm)
