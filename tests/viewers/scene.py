"""A PyTorch process in one of several scenes, for looking at its snapshots in viewers.

Its first line of input is the scene's name and a folder. It says "ready" and waits for a line (now memscope attaches);
plays the scene, says "played" and waits for a line (now memscope exports); then writes PyTorch's own snapshot of the
same moment into the folder, as `control.pickle`, and what the allocator holds as `page.html.expected`, says "written"
and ends with its input.
PyTorch's own recorder begins where memscope does, so that both saw the same.
"""

import contextlib
import json
import pickle
import sys

import torch
from torch import nn
from torch.nn import functional

KEPT = {}


def mebi(count, device="cuda"):
    return torch.empty(int(count * (1 << 20)), dtype=torch.uint8, device=device)


def model():
    if "model" not in KEPT:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        KEPT["model"] = nn.Sequential(layers, nn.Flatten(), nn.Linear(64 * 128, 10)).cuda()
        KEPT["optimizer"] = torch.optim.AdamW(KEPT["model"].parameters())
    return KEPT["model"], KEPT["optimizer"]


def steps(count):
    network, optimizer = model()
    for _ in range(count):
        batch = torch.randn(8, 64, 128, device="cuda")
        labels = torch.randint(0, 10, (8,), device="cuda")
        functional.cross_entropy(network(batch), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def training():
    steps(6)


def expandable():
    """Grows, gives parts back, and grows again."""
    steps(2)
    for turn in range(4):
        KEPT[turn] = [mebi(3 + turn) for _ in range(12)]
        del KEPT[turn][::3]
    torch.cuda.synchronize()
    KEPT.pop(0), KEPT.pop(2)
    torch.cuda.empty_cache()
    KEPT["more"] = [mebi(30), mebi(0.01)]


def streams():
    """Blocks of several streams; one is freed while a stream may still use it."""
    sides = [torch.cuda.Stream() for _ in range(3)]
    for turn in range(9):
        with torch.cuda.stream(sides[turn % 3]):
            KEPT[turn] = mebi(1.5 + turn)
            passed = mebi(4)
        passed.record_stream(torch.cuda.current_stream())
        del passed
    del KEPT[1], KEPT[5]


@contextlib.contextmanager
def into(pool):
    """Allocates from a private pool."""
    if hasattr(torch.cuda, "MemPool"):
        with torch.cuda.use_mem_pool(pool):
            yield
        return
    # Before torch 2.5 graphs alone have private pools.
    graph = torch.cuda.CUDAGraph()
    KEPT.setdefault("graphs", []).append(graph)
    with torch.cuda.graph(graph, pool=pool):
        yield


def pools():
    """Two private pools beside the default one."""
    steps(1)
    make = getattr(torch.cuda, "MemPool", torch.cuda.graph_pool_handle)
    pools = KEPT["pools"] = [make() for _ in range(2)]
    for turn in range(6):
        with into(pools[turn % 2]):
            KEPT[turn] = [mebi(2 + turn), mebi(0.2)]
    del KEPT[0], KEPT[3][0]
    KEPT["default"] = mebi(7)


def oom():
    """Runs out of memory, goes on, and runs out once more at the end."""
    for _ in range(2):
        steps(2)
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        raise AssertionError("a PiB fits")


def before_late():
    """What is there when memscope comes: some of it is freed later, some stays."""
    steps(3)
    KEPT["old"] = [mebi(2.5) for _ in range(8)]
    KEPT["kept"] = [mebi(0.3) for _ in range(8)]


def late():
    del KEPT["old"][::2]
    steps(3)
    KEPT["new"] = [mebi(6), mebi(0.1)]
    del KEPT["old"]


def devices():
    for turn in range(6):
        KEPT[turn] = mebi(1 + turn, f"cuda:{turn % 2}")
    del KEPT[2], KEPT[3]
    steps(1)


def expected(snapshot):
    found = {}
    for segment in snapshot["segments"]:
        device = found.setdefault(segment["device"], {"reserved": 0, "allocated": 0})
        device["reserved"] += segment["total_size"]
        device["allocated"] += segment["allocated_size"]
    return {"devices": found}


def main(name, folder):
    before = globals().get(f"before_{name}")
    if before:
        before()
        torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    print("ready", torch.__version__, flush=True)
    sys.stdin.readline()
    globals()[name]()
    print("played", flush=True)
    sys.stdin.readline()
    snapshot = torch.cuda.memory._snapshot()
    with open(f"{folder}/control.pickle", "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    with open(f"{folder}/page.html.expected", "w") as file:
        json.dump(expected(snapshot), file)
    print("written", flush=True)
    sys.stdin.readline()


main(*sys.stdin.readline().split())
