"""Compiles the standard library, and says of every instruction which line PyCode_Addr2Line gives it."""
import ctypes
import json
import os
import sys
import sysconfig
import types

LIMIT = int(sys.argv[1])
line_of = ctypes.pythonapi.PyCode_Addr2Line
line_of.argtypes = [ctypes.py_object, ctypes.c_int]
MADE = [
    "\n" * 1000 + "def f(a):\n    return (a\n" + "\n" * 300 + "  + a)\n",
    "def f():\n    return [\n      x for x in [\n" + "\n" * 130 + "  1]\n if x]\n",
    "def f():\n" + "    x = 1; y = 2\n" * 400 + "    while x:\n        pass\n",
    "async def f():\n    async with a as b, c as d:\n        async for x in y:\n            await z\n",
    "def f(x):\n    try:\n        g()\n    except (A,\n            B) as e:\n        raise C from e\n    finally:\n        h()\n",
    "def größe(関数):\n    def \U00010400():\n        nonlocal 関数\n        return 関数\n    return \U00010400\n",
    "",
]


def sources():
    for i, text in enumerate(MADE):
        yield text, "<made %d größe 関数 \U0001f600>" % i
    library = sysconfig.get_paths()["stdlib"]
    folders = [library] + [os.path.join(library, name) for name in ("asyncio", "email", "json", "unittest")]
    for folder in folders:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb") as file:
                    yield file.read(), os.path.join(folder, name)


def each(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from each(constant)


KEPT = []
for text, name in sources():
    try:
        KEPT.extend(each(compile(text, name, "exec", dont_inherit=True)))
    except SyntaxError:
        continue
    if len(KEPT) > LIMIT:
        break
for code in KEPT:
    length = len(code.co_code)
    changes, last = [], None
    for at in range(0, length, 2):
        line = line_of(code, at)
        if line != last:
            changes.append([at, line])
            last = line
    if hasattr(code, "co_lines"):
        # The oracle's own check: what the language documents says the same.
        told = {at: line for start, end, line in code.co_lines() for at in range(start, end, 2)}
        assert all((line if line is not None else -1) == line_of(code, at) for at, line in told.items())
    print(json.dumps([id(code), code.co_filename, code.co_name, getattr(code, "co_qualname", None),
                      code.co_firstlineno, length, changes]))
print("null", flush=True)
sys.stdin.readline()
