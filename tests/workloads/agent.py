"""A PyTorch process that does what it is told.

Each line on standard input is a command with its arguments; each is answered with one JSON object on
standard output, which has the allocator's own totals at that moment. An unexpected exception is the
answer {"error": ...}. It ends with its input.
"""

import collections
import ctypes
import gc
import json
import os
import pickle
import queue
import random
import sys
import threading
import time
import traceback

import torch
from torch import nn
from torch.nn import functional

# Where tensors live, "cuda" or "npu", and PyTorch's module for it.
DEVICE = os.environ.get("MEMSCOPE_TEST_DEVICE", "cuda")
gpu = getattr(torch, DEVICE)

COMMANDS = {}
KEPT = {}
STATE = {}
# For each device: entries of its trace that came before an observer.
MARKS = []


def command(function):
    COMMANDS[function.__name__.rstrip("_")] = function
    return function


def say(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def totals():
    """What the allocator itself says; None where the backend does not say it."""
    if not gpu.is_initialized():
        return []
    found = []
    for device in range(gpu.device_count()):
        try:
            found.append(
                {
                    "device": device,
                    "allocated": gpu.memory_allocated(device),
                    "reserved": gpu.memory_reserved(device),
                }
            )
        except Exception:  # noqa: BLE001: a pluggable allocator need not have statistics
            found.append({"device": device, "allocated": None, "reserved": None})
    return found


@command
def init(device="0"):
    gpu.init()
    gpu.set_device(int(device))


@command
def totals_(device="0"):
    """Nothing but the totals."""


@command
def history(kind=None, most="3000000"):
    """Turns PyTorch's own recorder on; `bare` without stacks, `native` also with those of compiled code. It keeps the newest entries."""
    context = None if kind == "bare" else "all"
    stacks = "all" if kind == "native" else "python"
    gpu.memory._record_memory_history(context=context, max_entries=int(most), stacks=stacks)


@command
def end_history():
    gpu.memory._record_memory_history(enabled=None)


@command
def history_counts():
    """Entries of PyTorch's own history by action."""
    traces = gpu.memory._snapshot()["device_traces"]
    return {"counts": collections.Counter(entry["action"] for trace in traces for entry in trace)}


@command
def trace():
    """PyTorch's own history, device by device."""
    snapshot = gpu.memory._snapshot()
    traces = []
    for device in snapshot["device_traces"]:
        entries = []
        for entry in device:
            address = entry["device_free"] if entry["action"] == "oom" else entry["addr"]
            entries.append([entry["action"], address, entry["size"], entry["stream"]])
        traces.append(entries)
    return {"traces": traces}


def comparable(snapshot):
    """What two snapshots of the same moment must agree on."""
    segments = []
    for segment in snapshot["segments"]:
        blocks = []
        for block in segment["blocks"]:
            # What the last owner of a free piece asked for says nothing.
            requested = None if block["state"] == "inactive" else block["requested_size"]
            blocks.append([block["address"], block["size"], block["state"], requested])
        keys = ("device", "address", "total_size", "stream", "segment_type")
        segments.append([*(segment[key] for key in keys), list(segment["segment_pool_id"]), blocks])
    return sorted(segments)


@command
def dump(file, protocol):
    """PyTorch's own snapshot as a file: a pickle of this protocol, or JSON, or a pickle of the segments alone."""
    snapshot = gpu.memory._snapshot()
    if protocol == "list":
        snapshot, protocol = gpu.memory_snapshot(), "4"
    if protocol == "json":
        with open(file, "w", encoding="utf-8") as opened:
            json.dump(snapshot, opened)
    else:
        with open(file, "wb") as opened:
            pickle.dump(snapshot, opened, protocol=int(protocol))


@command
def compare(file):
    """The segments of an exported snapshot, and PyTorch's own."""
    with open(file, "rb") as opened:
        exported = pickle.load(opened)
    own = gpu.memory._snapshot()
    traces = [len(trace) for trace in exported["device_traces"]]
    return {"exported": comparable(exported), "own": comparable(own), "traces": traces}


@command
def mark():
    """From here on an observer that is attached sees everything: the next entry of each device's trace is the first
    that both have."""
    MARKS[:] = [len(trace) for trace in gpu.memory._snapshot()["device_traces"]]


@command
def moment(file):
    """PyTorch's own snapshot, for xtask/conformance/compare.py, and when it was taken. What is between that moment
    and the entries before and after is longer than clocks differ by."""
    time.sleep(0.005)
    taken = time.time_ns()
    time.sleep(0.005)
    snapshot = gpu.memory._snapshot()
    with open(file, "wb") as opened:
        pickle.dump({"marks": MARKS, "snapshot": snapshot}, opened)
    return {"unix_ns": taken}


def model():
    """A transformer of two layers."""
    if "model" not in STATE:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        STATE["model"] = nn.Sequential(layers, nn.Flatten(), nn.Linear(64 * 128, 10)).to(DEVICE)
        STATE["optimizer"] = torch.optim.AdamW(STATE["model"].parameters())
        STATE["side"] = gpu.Stream()
    return STATE["model"], STATE["optimizer"], STATE["side"]


@command
def train(steps="1"):
    """Training steps, each with a batch that a side stream prepares."""
    network, optimizer, side = model()
    for _ in range(int(steps)):
        with gpu.stream(side):
            batch = torch.randn(8, 64, 128).pin_memory().to(DEVICE, non_blocking=True)
        gpu.current_stream().wait_stream(side)
        batch.record_stream(gpu.current_stream())
        labels = torch.randint(0, 10, (8,), device=DEVICE)
        loss = functional.cross_entropy(network(batch), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()


def allocations(snapshot):
    """Address, size and frames of every allocation, in order."""
    found = []
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            frames = [[f["filename"], f["line"], f["name"]] for f in entry.get("frames", [])]
            found.append([entry["addr"], entry["size"], frames])
    return found


@command
def compare_frames(file):
    """The frames of every allocation of an exported snapshot, against PyTorch's own."""
    with open(file, "rb") as opened:
        exported = allocations(pickle.load(opened))
    own = allocations(gpu.memory._snapshot())
    count = min(len(exported), len(own))
    pairs = list(zip(exported[-count:], own[-count:]))
    # At level blocks the sizes are rounded.
    aligned = all(ours[0] == theirs[0] for ours, theirs in pairs)
    different = [[ours[2], theirs[2]] for ours, theirs in pairs if ours[2] != theirs[2]]
    return {
        "exported_count": len(exported),
        "own_count": len(own),
        "aligned": aligned,
        "different": len(different),
        "examples": different[:3],
        "deepest": max((len(theirs[2]) for _, theirs in pairs), default=0),
        "without": sum(1 for _, theirs in pairs if not theirs[2]),
        "stacks": len({json.dumps(theirs[2]) for _, theirs in pairs}),
    }


def function(name):
    """The name of a C++ function without what demanglers write each in their own way: templates, parameters, clones."""
    name = name.replace("(anonymous namespace)", "{anonymous}")
    depth, plain = 0, []
    for letter in name:
        if letter == "(" and depth == 0:
            break
        depth += letter == "<"
        if depth == 0:
            plain.append(letter)
        depth -= letter == ">"
    return "".join(plain).split(" ")[-1]


# PyTorch's recorder and the probe stand at different places of this function, or in what it calls.
ALLOCATES = "DeviceCachingAllocator::malloc"


@command
def compare_mixed(file):
    """Python's frames in stacks of both kinds, against PyTorch's own recorder's; and between which of them compiled code
    stands where `reenters` allocated. (PyTorch puts them among those of compiled code by a rule of thumb.)"""
    def is_python(frame):
        return frame[0].endswith(".py") or frame[0].startswith("<")

    with open(file, "rb") as opened:
        exported = allocations(pickle.load(opened))
    own = allocations(gpu.memory._snapshot())
    count = min(len(exported), len(own))
    pairs = list(zip(exported[-count:], own[-count:]))
    python = [[[f for f in one[2] if is_python(f)] for one in pair] for pair in pairs]
    reentered = []
    for one, _ in pairs:
        if one[1] == REENTERED:
            reentered = [f[2] if is_python(f) else "native" for f in one[2]]
    return {
        "count": count,
        "different": sum(ours != theirs for ours, theirs in python),
        "unnamed": sum(f[2].startswith("0x") for one, _ in pairs for f in one[2]),
        "natives": min((sum(not is_python(f) for f in one[2]) for one, _ in pairs), default=0),
        "reentered": [name for at, name in enumerate(reentered) if at == 0 or [name, reentered[at - 1]] != ["native"] * 2],
    }


REENTERED = 9216


def key(_):
    return take(REENTERED)


def sorts():
    return sorted([0], key=key)


def calls_it():
    return sorts()


@command
def reenters():
    """Allocates in Python code that compiled code calls that Python code calls."""
    calls_it()


@command
def compare_natives(file, most):
    """The innermost frames of compiled code of each allocation, from the allocator's function on, against PyTorch's own."""
    def inner(frames):
        names = [function(name) for name in frames]
        starts = [at for at, name in enumerate(names) if name.endswith(ALLOCATES)]
        return names[starts[-1]:][:int(most)] if starts else []

    with open(file, "rb") as opened:
        exported = allocations(pickle.load(opened))
    own = allocations(gpu.memory._snapshot())
    count = min(len(exported), len(own))
    total = equal = wrong = unnamed = 0
    different, empty = [], 0
    for ours, theirs in zip(exported[-count:], own[-count:]):
        a = inner([f[2] for f in ours[2]])
        b = inner([f[2] for f in theirs[2] if not f[0].endswith(".py")])
        empty += not b
        total += len(b)
        same = sum(x == y for x, y in zip(a, b))
        equal += same
        pairs = [(x, y) for x, y in zip(a, b) if x != y]
        unnamed += sum(x.startswith("0x") for x, _ in pairs)
        wrong += len(pairs)
        if pairs and len(different) < 3:
            different.append([a, b])
    aligned = all(o[0] == t[0] for o, t in zip(exported[-count:], own[-count:]))
    return {
        "exported_count": len(exported),
        "own_count": len(own),
        "aligned": aligned,
        "frames": total,
        "equal": equal,
        "wrong": wrong,
        "unnamed": unnamed,
        "without": empty,
        "deepest": max((len(ours[2]) for ours in exported[-count:]), default=0),
        "examples": different,
    }


def take(size=1000):
    return torch.empty(size, dtype=torch.uint8, device=DEVICE)


def descend(depth):
    return take() if depth == 0 else descend(depth - 1)


def yields():
    kept = take(2000)
    yield kept
    yield from (take(3000 + n) for n in range(3))


class Gives:
    def __del__(self):
        take(4000)

    @property
    def öffnung(self):
        return take(5000)

    def __enter__(self):
        return take(5500)

    def __exit__(self, *_):
        take(5600)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        take(6000)
        return gradient * 2


async def awaits(depth):
    if depth:
        return await awaits(depth - 1)
    return take(7000)


@command
def shapes(depth="150"):
    """Allocations under every kind of frame."""
    import asyncio
    import functools

    list(yields())
    descend(int(depth))
    sorted(range(3), key=lambda n: take(8000 + n).numel() * 0 + n)
    functools.reduce(lambda a, n: take(8100 + n), range(3))
    [take(8200 + n) for n in range(2)]
    exec(compile("def made():\n    take(9000)\n\n\nmade()\n", "<made at run time>", "exec"), {"take": take})
    gives = Gives()
    gives.öffnung
    with gives:
        pass
    del gives
    asyncio.run(awaits(5))
    worker = threading.Thread(target=functools.partial(descend, 3), name="worker")
    worker.start()
    worker.join()
    x = torch.ones(4, device=DEVICE, requires_grad=True)
    Doubles.apply(x).sum().backward()


@command
def made(count):
    """Functions that are made, allocate, and are freed, one after the other."""
    for number in range(int(count)):
        lines = "\n" * (number % 7)
        space = {"take": take}
        exec(compile(f"{lines}def made_{number}():\n    return take(512 * {number % 5 + 1})\n", f"<made {number}>", "exec"), space)
        space[f"made_{number}"]()
        del space
    gc.collect()


@command
def drop():
    """Gives the model up."""
    STATE.clear()
    gc.collect()


@command
def oom(times="1"):
    """Runs out of memory and goes on."""
    for _ in range(int(times)):
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE)
        except RuntimeError as error:  # without the pool it is not an OutOfMemoryError
            # torch 2.4 with the stream-ordered backend says only "Allocation on device".
            said = str(error)
            assert "out of memory" in said or "Allocation on device" in said, error
            continue
        raise AssertionError("a PiB fits")


@command
def empty_cache():
    gpu.synchronize()
    gpu.empty_cache()


@command
def memory_stats(device="0"):
    """PyTorch's own statistics."""
    return {"stats": gpu.memory_stats(int(device))}


@command
def reset_peaks():
    for device in range(gpu.device_count()):
        gpu.reset_peak_memory_stats(device)


@command
def alloc(name, size, device="0"):
    KEPT[name] = torch.empty(int(size), dtype=torch.uint8, device=f"{DEVICE}:{device}")
    return {"address": KEPT[name].data_ptr()}


@command
def in_pool(name, size):
    """In a pool of its own, which is the same one each time."""
    pool = KEPT.setdefault("the pool", None) or gpu.MemPool()
    KEPT["the pool"] = pool
    with gpu.use_mem_pool(pool):
        KEPT[name] = torch.empty(int(size), dtype=torch.uint8, device=DEVICE)


@command
def allocs(name, count, size):
    KEPT[name] = [torch.empty(int(size), dtype=torch.uint8, device=DEVICE) for _ in range(int(count))]


@command
def free(name):
    del KEPT[name]


@command
def churn(pairs):
    """Allocations that are freed at once."""
    for _ in range(int(pairs)):
        torch.empty(1000, dtype=torch.uint8, device=DEVICE)


@command
def edge_threads(count):
    """Threads whose states are the last of the heap, at every distance from the next page, which nobody has touched."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    kept = KEPT.setdefault("edges", [])

    def work():
        kept.append(torch.empty(1000, dtype=torch.uint8, device=DEVICE))

    for _ in range(int(count)):
        # What is free in the middle of the heap is used up: what comes now is cut from its end.
        while libc.sbrk(0) - libc.malloc(360) > 1 << 20:
            pass
        libc.malloc_trim(0)
        libc.malloc(40)
        worker = threading.Thread(target=work)
        worker.start()
        worker.join()


@command
def threads(count, rounds):
    """Threads that free what others allocated."""
    boxes = [queue.Queue() for _ in range(int(count))]
    errors = []

    def work(number):
        try:
            for turn in range(int(rounds)):
                size = 1000 + 7919 * ((number * 31 + turn * 17) % 97)
                boxes[(number + turn) % len(boxes)].put(torch.empty(size, dtype=torch.uint8, device=DEVICE))
                if turn % 3:
                    try:
                        boxes[number].get_nowait()
                    except queue.Empty:
                        pass
        except Exception:  # noqa: BLE001: reported below
            errors.append(traceback.format_exc())

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(boxes))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors
    KEPT["boxes"] = boxes
    return {"left": sum(box.qsize() for box in boxes)}


@command
def leak(steps, size, pause_ms, kept="all"):
    """Training steps of which each keeps one more tensor; with `kept` a number, only the newest so many."""
    held = KEPT.setdefault("leak", [])
    for _ in range(int(steps)):
        train()
        held.append(torch.empty(int(size), dtype=torch.uint8, device=DEVICE))
        if kept != "all":
            del held[: -int(kept)]
        time.sleep(int(pause_ms) / 1000)
    return {"held": len(held)}


@command
def fork():
    """A child that does nothing with the device and waits to be killed."""
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(3600)
    STATE.setdefault("children", []).append(child)
    return {"child": child}


@command
def worker():
    """A child that was forked before anybody used the device, and uses it when told to."""
    orders, answers = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(orders[1])
        with os.fdopen(orders[0]) as told:
            for size in told:
                KEPT[f"worker {len(KEPT)}"] = take(int(size))
                os.write(answers[1], (json.dumps(totals()) + "\n").encode())
        os._exit(0)
    os.close(orders[0])
    os.close(answers[1])
    STATE["worker"] = os.fdopen(orders[1], "w"), os.fdopen(answers[0])
    return {"child": child}


@command
def worker_takes(size):
    """The worker takes so many bytes more, and says what its allocator has."""
    orders, answers = STATE["worker"]
    print(size, file=orders, flush=True)
    return {"worker": {"devices": json.loads(answers.readline())}}


@command
def import_memory(text):
    """Opens another process's memory by its CUDA IPC handle."""
    import ctypes

    runtime = ctypes.CDLL(None)

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 64)]

    handle = Handle()
    ctypes.memmove(ctypes.byref(handle), bytes.fromhex(text), 64)
    pointer = ctypes.c_void_p()
    result = runtime.cudaIpcOpenMemHandle(ctypes.byref(pointer), handle, 1)
    assert result == 0, result
    STATE["imported"] = pointer


@command
def pluggable(path):
    """Exchanges the allocator, before it is used."""
    allocator = gpu.memory.CUDAPluggableAllocator(path, "give", "take_back")
    gpu.memory.change_current_allocator(allocator)


@command
def crowd(count):
    """Holds so many small tensors, with free room between them."""
    chance = random.Random(count)
    made = [gpu_bytes(1 + chance.randrange(4096)) for _ in range(int(count) * 5 // 4)]
    del made[::5]
    KEPT["crowd"] = made


def gpu_bytes(size):
    return torch.empty(size, dtype=torch.uint8, device=DEVICE)


@command
def hammer(kind, count, library=None):
    """Threads that allocate without a pause, held until `go`."""
    from hammer import Hammer

    STATE["hammer"] = Hammer(kind, int(count), library)


@command
def go(count=None, pause_us="0"):
    """So many of them go on, with such a pause before each operation; the others stand still."""
    STATE["hammer"].allow(STATE["hammer"].count if count is None else int(count), int(pause_us))


@command
def hold():
    """Returns when all of them stand still."""
    STATE["hammer"].allow(0)


@command
def operations():
    return {"operations": STATE["hammer"].operations()}


@command
def settings(text):
    torch._C._accelerator_setAllocatorSettings(text)


@command
def shared(rounds):
    """Blocks that another stream uses as well, so that their frees wait, between blocks whose frees do not."""
    other, kept = gpu.Stream(), []
    for turn in range(int(rounds)):
        mine = torch.empty(4000 + 1000 * (turn % 3), dtype=torch.uint8, device=DEVICE)
        if turn % 2:
            mine.record_stream(other)
        kept.append(torch.empty(2000, dtype=torch.uint8, device=DEVICE))
        del mine
        if turn % 5 == 0:
            kept.clear()


def main():
    say(ready=True, torch=torch.__version__, devices=totals())
    for line in sys.stdin:
        words = line.split()
        try:
            more = COMMANDS[words[0]](*words[1:]) or {}
            say(**more, devices=totals())
        except Exception:  # noqa: BLE001: the test sees it
            say(error=traceback.format_exc())
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
