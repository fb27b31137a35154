"""Threads that rest in all kinds of calls, and a reporter that says what Python itself sees of them.

A thread rests in a read from a pipe that nobody writes to. The reporter answers each line of standard input with the
stacks of all resting threads as JSON, innermost frame first: file, name, line, last instruction.
"""
import asyncio
import ctypes
import functools
import json
import os
import signal
import sys
import threading

sys.setrecursionlimit(3000)
RESTING = {}
PIPE, _WRITE = os.pipe()


def rest():
    RESTING[threading.get_ident()] = 1; os.read(PIPE, 1)


def nested():
    def outer():
        def middle():
            return [inner() for _ in range(1)]

        def inner():
            return (lambda: rest())()
        middle()
    outer()


def generators():
    def leaf():
        yield 1
        rest()
        yield 2

    def through():
        yield from leaf()

    def expression():
        return sum(x for x in through())
    expression()


def asynchronous():
    async def leaf():
        rest()

    async def stream():
        yield 1
        await leaf()
        yield 2

    async def main():
        await asyncio.gather(consume())

    async def consume():
        async for _ in stream():
            pass
    asyncio.run(main())


def executed():
    source = "\n" * 700 + "def made():\n    exec('rest()')\nclass Body:\n    made()\n"
    exec(compile(source, "<made up: größe 関数 \U0001f600>", "exec"), {"rest": rest})


def names():
    source = (
        "def größe():\n    関数()\n"
        "def 関数():\n    \U00010400bc()\n"
        "def \U00010400bc():\n    rest()\n"
        "größe()\n"
    )
    exec(compile(source, "/tmp/undecodable-\udc80-größe.py", "exec"), {"rest": rest})


def long_names():
    name = "n" * 6000
    scope = {"rest": rest}
    exec(compile("def %s():\n    rest()\n%s()\n" % (name, name), "x" * 5000, "exec"), scope)


def spread():
    # Lines far apart, backward jumps between lines, and calls over several of them.
    source = "def f(*a, **k):\n    return (\n" + "\n" * 200 + "        g(1,\n" + "\n" * 60 + (
        "          2)\n        +\n          1)\ndef g(*a):\n    try:\n        raise ValueError\n"
        "    except ValueError:\n        with open('/dev/null'):\n            rest()\n    finally:\n        pass\n"
        "f(\n 1,\n *[\n  2\n ],\n **{\n 'x': 3})\n")
    exec(compile(source, "spread.py", "exec"), {"rest": rest})


def through_c():
    class Number:
        def __lt__(self, other):
            return functools.reduce(lambda a, b: rest(), [1, 2])

    class Lazy:
        def __getattr__(self, name):
            return max([1, 2], key=lambda x: sorted([Number(), Number()]))

        @property
        def value(self):
            return self.missing
    list(map(lambda x: getattr(x, "value"), [Lazy()]))


def through_ctypes():
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def compare(a, b):
        rest()
        return 0
    numbers = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(numbers, 2, 4, kind(compare))


def deleted():
    class Dying:
        def __del__(self):
            rest()

    def drop():
        dying = Dying()
        dying = None
    drop()


def deep(depth=300):
    def down(n):
        a, b, c = n, n, n
        if n % 50 == 49:
            return functools.reduce(lambda x, y: down(n - 1), [1, 2])
        if n:
            return down(n - 1) + a + b + c
        rest()
    down(depth)


def wide():
    # Frames of many sizes: they leave gaps at the ends of the pieces of the data stack.
    source = "def f(n):\n    if n == 0: rest()\n    else: g(n - 1)\ndef g(n):\n" + "".join(
        "    v%d = n\n" % i for i in range(300)) + "    f(n)\nf(40)\n"
    exec(compile(source, "wide.py", "exec"), {"rest": rest})


def foreign(started):
    """A thread that C has made, and that calls Python."""
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

    def entered(_):
        rest()
        return 0
    entry = kind(entered)
    thread = ctypes.c_ulong()
    ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, entry, None)
    started.append((entry, thread))


def clean(text):
    return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text[:4096])


def report():
    threads = []
    for ident, frame in sys._current_frames().items():
        if ident not in RESTING:
            continue
        frames = []
        while frame:
            code = frame.f_code
            frames.append([clean(code.co_filename), clean(code.co_name), frame.f_lineno, frame.f_lasti])
            frame = frame.f_back
        threads.append({"ident": ident, "frames": frames})
    print(json.dumps(threads), flush=True)


def reporter(expected):
    print(json.dumps({"pid": os.getpid(), "expected": expected, "version": sys.version_info[:3]}), flush=True)
    while sys.stdin.readline():
        report()
    os._exit(0)


SCENES = [nested, generators, asynchronous, executed, names, long_names, spread, through_c, through_ctypes, deleted,
          deep, wide]
for scene in SCENES:
    threading.Thread(target=scene, daemon=True).start()
KEPT = []
foreign(KEPT)
threading.Thread(target=reporter, args=(len(SCENES) + 2,), daemon=True).start()


def handler(number, frame):
    rest()


signal.signal(signal.SIGUSR1, handler)
signal.raise_signal(signal.SIGUSR1)
