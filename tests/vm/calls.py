"""Allocates and frees on a device in two threads, in a way that is known beforehand, as calls.c does."""

import ctypes
import json
import os
import sys
import threading
import time

KEPT, ROUNDS, THREADS = 10, 100, 2

folder = sys.argv[1]
library = ctypes.CDLL(os.environ["DEVICE_LIBRARY"])
alloc = getattr(library, os.environ["DEVICE_ALLOC"])
free = getattr(library, os.environ["DEVICE_FREE"])
select = getattr(library, os.environ["DEVICE_SELECT"])
unit = int(os.environ["DEVICE_UNIT"])
# The third is a policy where there is one, and not looked at elsewhere.
alloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_int]
free.argtypes = [ctypes.c_void_p]
lock = threading.Lock()
count = dict.fromkeys(["allocs", "frees", "failed", "live", "live_bytes"], 0)


def add(**changes):
    with lock:
        for name, by in changes.items():
            count[name] += by


def part(name):
    while not os.path.exists(f"{folder}/{name}"):
        time.sleep(0.01)


def say(name):
    print(json.dumps({"part": name, **count}, separators=(",", ":")), flush=True)


def take(size):
    address = ctypes.c_void_p()
    if alloc(ctypes.byref(address), size, 0) != 0:
        add(failed=1)
        return None
    add(allocs=1, live=1, live_bytes=size)
    return address


def give(address, size):
    if free(address) == 0:
        add(frees=1, live=-1, live_bytes=-size)


def use_one(turn):
    size = unit << turn % 6
    give(take(size), size)


def keep_one(kept, turn):
    kept.append(take(unit * (1 + turn % 7)))


def run(kept):
    select(0)
    for turn in range(ROUNDS):
        use_one(turn)
        if turn % (ROUNDS // KEPT) == 0:
            keep_one(kept, turn)
    take(1 << 50)


select(0)
print("ready", flush=True)
part("calls")
kept = []
threads = [threading.Thread(target=run, args=(kept,)) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say("calls")
part("unseen")
for turn in range(10):
    use_one(turn)
say("unseen")
