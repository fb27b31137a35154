"""Python code without end: `codes.py LIBRARY` makes code objects that allocate through a device runtime.

Commands come on standard input, each answered with a line of JSON: `fill COUNT` makes as many functions that live on and
has each of them in the stack of an allocation; `make NUMBER SIZE` frees the function that it made last, makes `made_NUMBER`,
which allocates SIZE bytes, and says where its code lies; `drop` frees it; `end`
ends. Nothing but the standard library is used.
"""

import ctypes
import gc
import json
import os
import sys
import types

library = ctypes.CDLL(sys.argv[1])
DEEP = 400
kept = []
space = {}


def take(size):
    assert library.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size)) == 0


def link(rest):
    if rest:
        return rest.pop()(rest)
    return take(1)


def fill(count):
    for _ in range(0, count, DEEP):
        functions = [types.FunctionType(link.__code__.replace(co_name=f"link_{n}"), globals()) for n in range(DEEP)]
        kept.append(list(functions))
        functions.pop()(functions)
    return len(kept) * DEEP


def drop():
    space.clear()
    return gc.collect()


def make(number, size):
    """A function at the place of one that was made before, sooner or later."""
    drop()
    space["take"] = take
    name = f"made_{number}"
    exec(compile(f"def {name}():\n    return take({size})\n", f"{name}.py", "exec"), space)
    space[name]()
    return id(space[name].__code__)


sys.setrecursionlimit(10_000)
print(json.dumps({"pid": os.getpid()}), flush=True)
for line in sys.stdin:
    command, *numbers = line.split()
    if command == "end":
        break
    print(json.dumps({"fill": fill, "make": make, "drop": drop}[command](*map(int, numbers))), flush=True)
