"""Allocates from every kind of Python frame through a device runtime in a library, and says which frames there were.

`interpreter.py LIBRARY` reads commands from standard input and answers each with a line of JSON: `allocate` with
the frames (file, line, name; innermost first) by the size of each allocation, all sizes being different; `broken`
allocates while a frame is not what it should be; `loop` allocates until it is killed; `end` ends. It runs with CPython
from 3.9 on and uses nothing but its standard library.
"""

import asyncio
import ctypes
import json
import os
import sys
import threading

library = ctypes.CDLL(sys.argv[1])
taken = {}
lock = threading.Lock()


def frames(frame):
    found = []
    while frame is not None:
        code = frame.f_code
        found.append([code.co_filename, frame.f_lineno, code.co_name])
        frame = frame.f_back
    return found


def take(call=library.cudaMalloc, more=()):
    pointer, size = ctypes.c_void_p(), 0
    with lock:
        size = (len(taken) + 1) << 20
        taken[size] = None
    taken[size], status = frames(sys._getframe()), call(ctypes.byref(pointer), ctypes.c_size_t(size), *more)
    assert status == 0
    return size


def descend(depth):
    return take() if depth == 0 else descend(depth - 1)


def yields():
    yield take()
    yield from (take() for _ in range(3))


class Gives:
    def __del__(self):
        take()

    @property
    def öffnung(self):
        return take()

    def __enter__(self):
        return take()

    def __exit__(self, *_):
        take()


async def awaits(depth):
    await asyncio.sleep(0)
    return await awaits(depth - 1) if depth else take()


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
def compare(a, b):
    take()
    return a[0] - b[0]


def allocate():
    taken.clear()
    for depth in (0, 10, 100, 150):
        descend(depth)
    list(yields())
    gives = Gives()
    gives.öffnung
    with gives:
        pass
    del gives
    asyncio.run(awaits(5))
    numbers = (ctypes.c_int * 3)(3, 1, 2)
    ctypes.CDLL(None).qsort(numbers, ctypes.c_size_t(3), ctypes.c_size_t(4), compare)
    sorted([2, 1], key=lambda _: take())
    threads = [threading.Thread(target=descend, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Made, called and freed, again and again at the same addresses.
    for number in range(300):
        space = {"take": take}
        exec(compile("\n" * number + f"def made_{number}():\n    return take()\n", f"made {number}.py", "exec"), space)
        space[f"made_{number}"]()
    return {str(size): found for size, found in taken.items()}


def word(address):
    return ctypes.c_uint64.from_address(address).value


def frame_3_11():
    """Where this frame lies, and so the one of whatever the caller calls next: thread state → cframe → current frame (that
    of `word`) → previous. Of 3.11 only."""
    ctypes.pythonapi.PyThreadState_Get.restype = ctypes.c_void_p
    state = ctypes.pythonapi.PyThreadState_Get()
    return word(word(word(state + 56) + 8) + 48)


def broken():
    """What each allocation's innermost frame names as its caller, code and instruction, and is not."""
    taken.clear()
    poked, said = library.poked, {}
    poked.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64]
    here = frame_3_11()
    for name, place, value in (
        ("a circle", here + 48, here),
        ("nothing mapped", here + 48, 0x10),
        ("the kernel", here + 48, 0xffff_8000_0000_0000),
        ("not aligned", here + 48, here + 3),
        ("no code", here + 32, 0x1000),
        ("no instruction", here + 56, 0x1008),
    ):
        said[name] = take(poked, (ctypes.c_void_p(place), ctypes.c_uint64(value)))
    said["whole again"] = take()
    return said


print(json.dumps({"pid": os.getpid(), "version": list(sys.version_info[:2])}), flush=True)
for line in sys.stdin:
    command = line.strip()
    if command == "end":
        break
    if command == "loop":
        print(json.dumps({}), flush=True)
        while True:
            descend(60)
    print(json.dumps({"allocate": allocate, "broken": broken}[command]()), flush=True)
