// A small library as compilers make them: exported and local functions, unwind tables, a class with a name, an operator
// of PyTorch's with its schema. It is one of the files that the fuzz tests begin with (`small.so`, `debug.so`).
// Made by: g++ -O1 -g0 (small.so) or -Os -gdwarf-4 (debug.so) -fPIC -shared -nostdlib -fno-exceptions
// -fasynchronous-unwind-tables -Wl,--build-id=sha1 -Wl,-z,noseparate-code -Wl,-z,max-page-size=64
struct Base { virtual int size(int of) const; int held; };
int Base::size(int of) const { return of + held; }
namespace at {
struct Tensor { void *impl; ~Tensor(); };
Tensor::~Tensor() { impl = 0; }
namespace _ops { struct add_Tensor { static Tensor call(const Tensor &self, const Tensor &other); }; }
}
extern "C" int outside(int);
extern "C" { extern const char schema[]; const char schema[] = "add.Tensor(Tensor self, Tensor other) -> Tensor"; }
static __attribute__((noinline)) int inner(int of) { volatile int room[40]; room[of & 31] = of; return outside(room[1]) + of; }
extern "C" int cudaMalloc(void **to, unsigned long bytes) { *to = (void *)bytes; return inner((int)bytes); }
at::Tensor at::_ops::add_Tensor::call(const Tensor &self, const Tensor &other) { return {inner(2) ? self.impl : other.impl}; }
extern "C" Base *make(void *at) { Base *base = (Base *)at; Base made; made.held = 3; *base = made; __builtin_memcpy(at, &made, sizeof made); return base; }
