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
alloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
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
    if alloc(ctypes.byref(address), size) != 0:
        add(failed=1)
        return None
    add(allocs=1, live=1, live_bytes=size)
    return address


def give(address, size):
    if free(address) == 0:
        add(frees=1, live=-1, live_bytes=-size)


def use_one(turn):
    size = 512 << turn % 12
    give(take(size), size)


def keep_one(kept, turn):
    kept.append(take(4096 * (1 + turn % 7)))


def run(kept):
    for turn in range(ROUNDS):
        use_one(turn)
        if turn % (ROUNDS // KEPT) == 0:
            keep_one(kept, turn)
    take(1 << 50)


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
