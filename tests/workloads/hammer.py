"""Threads that allocate and free device tensors, without a pause unless they are told to make one,
until they are held at a barrier.

`python` threads share Python's lock; `native` ones (hammer.c) never take it: they call PyTorch's C
interface, and nothing but the allocator's own lock is between them.
"""

import ctypes
import os
import pathlib
import random
import threading
import time

import torch

# Where tensors live, "cuda" or "npu", and PyTorch's module for it. `native` knows CUDA only.
DEVICE = os.environ.get("MEMSCOPE_TEST_DEVICE", "cuda")
gpu = getattr(torch, DEVICE)

SLOTS = 24


class Gate:
    """Holds threads between two operations. Each has a number; those below `allowed` go on."""

    def __init__(self):
        self.condition = threading.Condition()
        self.allowed = 0
        self.threads = 0
        self.parked = 0

    def start(self, work):
        threading.Thread(target=work, args=(self.threads,), daemon=True).start()
        self.threads += 1

    def pause(self, number):
        """Called by the threads."""
        if number >= self.allowed:
            with self.condition:
                self.parked += 1
                self.condition.notify_all()
                self.condition.wait_for(lambda: number < self.allowed)
                self.parked -= 1

    def allow(self, count):
        """Returns when all others stand still."""
        with self.condition:
            self.allowed = count
            self.condition.notify_all()
            self.condition.wait_for(lambda: self.parked >= self.threads - count)


class Python:
    """Threads of Python's."""

    def __init__(self, count):
        self.gate = Gate()
        self.done = [0] * count
        self.pause = 0
        self.errors = []
        self.shared = [None] * 64
        self.side = gpu.Stream()
        for _ in range(count):
            self.gate.start(self.work)

    def size(self, chance):
        kind = chance.randrange(10)
        limit = 16 << 20 if kind == 0 else 4 << 20 if kind < 3 else 300_000
        return chance.randrange(limit) + 1

    def work(self, number):
        chance = random.Random(number)
        own = [None] * SLOTS
        stream = self.side if number % 2 else gpu.current_stream()
        try:
            with gpu.stream(stream):
                while True:
                    self.gate.pause(number)
                    if self.pause:
                        time.sleep(self.pause / 1e6)
                    slot = chance.randrange(SLOTS)
                    if own[slot] is None:
                        own[slot] = torch.empty(self.size(chance), dtype=torch.uint8, device=DEVICE)
                        if chance.randrange(8) == 0:
                            own[slot].record_stream(self.side)
                    elif chance.randrange(4) == 0:
                        # Another thread frees it.
                        self.shared[chance.randrange(len(self.shared))], own[slot] = own[slot], None
                    else:
                        own[slot] = None
                    self.done[number] += 1
        except Exception as error:  # noqa: BLE001: reported with the next answer
            self.errors.append(repr(error))

    def operations(self):
        return sum(self.done)

    def failures(self):
        return self.errors

    def allow(self, count, pause):
        self.pause = pause
        self.gate.allow(count)


class Native:
    """Threads without Python's lock."""

    def __init__(self, library, count):
        self.library = ctypes.CDLL(library)
        self.library.hammer_operations.restype = ctypes.c_long
        self.library.hammer_failures.restype = ctypes.c_long
        folder = pathlib.Path(torch.__file__).parent / "lib"
        general = ctypes.CDLL(folder / "libtorch_cpu.so")
        cuda = ctypes.CDLL(folder / "libtorch_cuda.so")
        self.side = torch.cuda.Stream()
        functions = (
            general.aoti_torch_empty_strided,
            general.aoti_torch_delete_tensor_object,
            cuda.aoti_torch_create_cuda_stream_guard,
        )
        addresses = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
        stream = ctypes.c_void_p(self.side.cuda_stream)
        assert self.library.hammer_start(count, *addresses, stream) == 0

    def operations(self):
        return self.library.hammer_operations()

    def failures(self):
        count = self.library.hammer_failures()
        return [f"{count} calls failed"] if count else []

    def allow(self, count, pause):
        self.library.hammer_allow(count, pause)


class Hammer:
    """Threads of one kind, and one that empties the cache now and then so that segments go as well."""

    def __init__(self, kind, count, library=None):
        gpu.init()
        self.count = count
        self.threads = Native(library, count) if kind == "native" else Python(count)
        self.sweeper = Gate()
        self.sweeper.start(self.sweep)

    def sweep(self, number):
        due = 0
        while True:
            self.sweeper.pause(number)
            if self.threads.operations() >= due:
                gpu.empty_cache()
                due = self.threads.operations() + 5000
            time.sleep(0.002)

    def allow(self, count, pause=0):
        """So many threads go on, with a pause of microseconds before each operation."""
        self.threads.allow(count, pause)
        self.sweeper.allow(1 if count else 0)
        assert not self.threads.failures(), self.threads.failures()

    def operations(self):
        return self.threads.operations()
