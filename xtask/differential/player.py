"""Plays programs over PyTorch's caching allocator, element by element, with PyTorch's own recorder on, and says what
PyTorch knows of itself at each moment. Several programs are played in one process, one after the other.

    player.py

Each line on standard input is a JSON object with an `order`; each is answered with one line of JSON:

    begin    forgets PyTorch's recorded history and begins a new one.
    mark     an observer is attached: what the recorder writes from here on, the observer sees as well. Peaks begin anew.
    play     `elements`, one after the other. Gives `refused`: how many allocations ran out of memory, `lacking`: what
             this PyTorch does not have, so that those elements did nothing, and `reserved_bytes`: what it holds then.
    moment   writes PyTorch's own snapshot to `file`; gives `unix_ns`, a time at which the process was as the file says,
             and `devices`, PyTorch's own statistics.
    end      gives up all that the program made.

An unexpected exception is the answer {"error": …}. The process ends with its input. What an element does is said by the
function of its name in ELEMENTS; `generate.py` makes them.
"""

import contextlib
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

# What a moment lies apart from the events before and after it: more than clocks differ by.
APART_S = 0.003

ELEMENTS = {}


def element(function):
    ELEMENTS[function.__name__.rstrip("_")] = function
    return function


class State:
    """What the program that is being played has made."""

    def __init__(self):
        self.slots = {}
        self.pools = {}
        self.graphs = {}
        self.models = {}
        self.refused = 0
        self.lacking = set()


state = State()
# By device, the side streams: those of all programs are the same, as PyTorch takes them from a pool anyway.
streams = {}
# By device: entries of PyTorch's trace that came before the observer.
marks = []
workers = {}
# Graphs whose capture failed.
broken = []


def stream_of(device, number):
    """The side stream with this number, or None for the default stream."""
    if number == 0:
        return None
    if (device, number) not in streams:
        streams[device, number] = torch.cuda.Stream(device=device)
    return streams[device, number]


class Worker:
    """A thread that does one thing after the other, and is waited for."""

    def __init__(self):
        self.orders = queue.Queue()
        self.answers = queue.Queue()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            work, values = self.orders.get()
            try:
                self.answers.put((work(**values), None))
            except BaseException as error:  # noqa: BLE001: raised again by whoever waits
                self.answers.put((None, error))
            # Nothing of the last order lives on in this frame.
            work = values = None

    def do(self, work, values):
        self.orders.put((work, values))
        answer, error = self.answers.get()
        if error:
            raise error
        return answer


def out_of_memory(error):
    """Also what becomes of a request that no address space has room for, with segments that expand."""
    said = str(error)
    return any(words in said for words in ("out of memory", "Allocation on device", "invalid argument"))


def take(size, device):
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")


def deep(size, device, depth):
    return take(size, device) if depth == 0 else deep(size, device, depth - 1)


def from_generator(size, device, depth):
    def gives():
        yield deep(size, device, depth)

    return next(gives())


def from_lambda(size, device, depth):
    return (lambda n: deep(size, device, n))(depth)


def from_made(size, device, depth):
    """A function that is made for this one call and is gone afterwards."""
    space = {"deep": deep}
    lines = "\n" * (size % 7)
    exec(compile(f"{lines}def made(*all):\n    return deep(*all)\n", f"<made {size % 5}>", "exec"), space)
    return space["made"](size, device, depth)


WAYS = {"deep": deep, "generator": from_generator, "lambda": from_lambda, "made": from_made}


def in_pool(pool, device):
    """The context of a private pool by its number; 0 is the default one."""
    if pool == 0:
        return contextlib.nullcontext()
    if not hasattr(torch.cuda, "MemPool"):
        state.lacking.add("torch.cuda.MemPool")
        return contextlib.nullcontext()
    if (device, pool) not in state.pools:
        state.pools[device, pool] = torch.cuda.MemPool()
    return torch.cuda.use_mem_pool(state.pools[device, pool], device=device)


@element
def alloc(slot, size, device=0, stream=0, pool=0, way="deep", depth=0):
    """A tensor, kept in a slot."""
    try:
        with torch.cuda.device(device), in_pool(pool, device), torch.cuda.stream(stream_of(device, stream)):
            state.slots.setdefault(slot, []).append(WAYS[way](size, device, depth))
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        state.refused += 1


@element
def free(slot):
    """All that a slot keeps."""
    state.slots.pop(slot, None)


@element
def record_stream(slot, stream):
    """What a slot keeps is used by another stream, too: its free is pending until that stream has come so far."""
    for tensor in state.slots.get(slot, []):
        if tensor.is_cuda:
            used_by = stream_of(tensor.device.index, stream) or torch.cuda.default_stream(tensor.device)
            tensor.record_stream(used_by)


@element
def churn(pairs, size, device=0):
    """Allocations that are freed at once."""
    for _ in range(pairs):
        try:
            torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            state.refused += 1
            return


@element
def empty_cache():
    torch.cuda.empty_cache()


@element
def synchronize(device=0):
    torch.cuda.synchronize(device)


@element
def oom(device=0):
    """A request that no device can fulfil."""
    alloc("none", 1 << 50, device)


@element
def fraction(share, device=0):
    """From here on the process may take so much of the device."""
    torch.cuda.set_per_process_memory_fraction(share, device)


@element
def settings(text):
    """The allocator is told how to be, while it runs."""
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    change(text)


@element
def train(model, width, layers, batch, steps, device=0):
    """Training steps of a small network; the model lives on until it is dropped."""
    try:
        if model not in state.models:
            parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
            network = nn.Sequential(*parts, nn.Linear(width, 8)).to(f"cuda:{device}")
            state.models[model] = network, torch.optim.AdamW(network.parameters()), device, width
        network, optimizer, device, width = state.models[model]
        for _ in range(steps):
            inputs = torch.zeros(batch, width, device=f"cuda:{device}")
            network(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        state.refused += 1


@element
def drop_model(model):
    state.models.pop(model, None)


@element
def graph(name, sizes, kept, device=0):
    """A graph is captured, whose tensors lie in a pool of its own; the first `kept` of them are kept besides."""
    captured = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(device), torch.cuda.graph(captured):
            tensors = [take(size, device) for size in sizes]
            results = tensors[:kept]
            del tensors
        state.graphs[name] = captured, results
    except RuntimeError as error:
        # Its destructor can throw, and then PyTorch ends the process.
        broken.append(captured)
        if not out_of_memory(error):
            raise
        state.refused += 1


@element
def drop_graph(name):
    state.graphs.pop(name, None)


@element
def drop_pool(pool, device=0):
    """The pool is given up; what of it lives is kept by its tensors."""
    state.pools.pop((device, pool), None)


class Burst:
    """Threads that allocate at the same time, each by its own little program, and free what others allocated."""

    def __init__(self, slot, threads, operations, seed, largest, devices):
        self.boxes = [[] for _ in range(threads)]
        self.errors = []
        self.largest = largest
        self.devices = devices
        self.operations = operations
        started = [threading.Thread(target=self.work, args=(number, seed)) for number in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        if self.errors:
            raise self.errors[0]
        for box in self.boxes:
            state.slots.setdefault(slot, []).extend(box)

    def work(self, number, seed):
        try:
            self.run(random.Random(seed * 1000 + number), number)
        except Exception as error:  # noqa: BLE001: raised by whoever waits
            self.errors.append(error)

    def run(self, chance, number):
        device = self.devices[number % len(self.devices)]
        with torch.cuda.device(device), torch.cuda.stream(stream_of(device, number % 3)):
            for _ in range(self.operations):
                box = chance.choice(self.boxes)
                what = chance.randrange(10)
                if what < 5 or not box:
                    self.take(chance, box, device)
                elif what < 9:
                    with contextlib.suppress(IndexError):
                        box.pop(chance.randrange(len(box)))
                else:
                    self.lend(chance, box, device)

    def take(self, chance, box, device):
        try:
            box.append(take(1 + chance.randrange(chance.choice([2000, 300_000, self.largest])), device))
        except RuntimeError as error:
            if not out_of_memory(error):
                raise

    def lend(self, chance, box, device):
        with contextlib.suppress(IndexError):
            tensor = box[chance.randrange(len(box))]
            if tensor.device.index == device:
                tensor.record_stream(stream_of(device, 1 + chance.randrange(2)))


@element
def burst(**values):
    Burst(**values)


def play(what):
    """One element, in the thread that it names."""
    values = dict(what)
    work = ELEMENTS[values.pop("do")]
    number = values.pop("thread", 0)
    if number == 0:
        work(**values)
        return
    if number not in workers:
        workers[number] = Worker()
    workers[number].do(work, values)


def statistics():
    """What PyTorch's allocator says of itself."""
    found = []
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        found.append({
            "device": device,
            "allocated_bytes": stats.get("allocated_bytes.all.current", 0),
            "reserved_bytes": stats.get("reserved_bytes.all.current", 0),
            "active_bytes": stats.get("active_bytes.all.current", 0),
            "peak_allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
            "peak_reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
            "requested_bytes": stats.get("requested_bytes.all.current", 0),
            "live_blocks": stats.get("allocation.all.current", 0),
            "segments": stats.get("segment.all.current", 0),
            "ooms": stats.get("num_ooms", 0),
        })
    return found


def begin(**_):
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=10_000_000)
    marks[:] = []
    # Garbage is collected where a program says so, and not in the middle of a moment.
    gc.collect()
    gc.disable()
    return {"torch": torch.__version__}


def mark(**_):
    marks[:] = [len(trace) for trace in torch.cuda.memory._snapshot()["device_traces"]]
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
    return {"devices": statistics()}


def play_all(elements, **_):
    before = state.refused
    for what in elements:
        play(what)
    reserved = sum(torch.cuda.memory_reserved(device) for device in range(torch.cuda.device_count()))
    return {"refused": state.refused - before, "lacking": sorted(state.lacking), "reserved_bytes": reserved}


def moment(file, **_):
    time.sleep(APART_S)
    taken = time.time_ns()
    time.sleep(APART_S)
    told = statistics()
    snapshot = torch.cuda.memory._snapshot()
    with open(file, "wb") as opened:
        pickle.dump({"marks": marks, "snapshot": snapshot}, opened, protocol=4)
    return {"unix_ns": taken, "devices": told}


def end(settings=None, **_):
    global state
    state = State()
    gc.collect()
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear:
        clear()
    if settings:
        ELEMENTS["settings"](settings)
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(enabled=None)
    return {}


ORDERS = {"begin": begin, "mark": mark, "play": play_all, "moment": moment, "end": end}


def main():
    # Whatever a library prints is no answer of ours.
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**fields):
        said.write(json.dumps(fields) + "\n")
        said.flush()

    torch.cuda.init()
    say(ready=True, torch=torch.__version__)
    for line in sys.stdin:
        words = json.loads(line)
        try:
            say(**ORDERS[words.pop("order")](**words))
        except Exception:  # noqa: BLE001: whoever asked sees it
            say(error=traceback.format_exc())
    # Without the end of an interpreter that holds a device: nothing is compared after this.
    os._exit(0)


if __name__ == "__main__":
    main()
