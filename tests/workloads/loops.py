"""Loops as programs have them, made to go on in portions: `loops.py KIND`.

Each line on standard input is a number of iterations; each is answered with one JSON object: how many there were so far, by
the loop's own count, and the allocator's own totals. Nothing here knows of memscope.
"""

import ctypes
import json
import os
import random
import sys

import torch
from torch import nn
from torch.nn import functional

DEVICE = torch.device("cuda")
KINDS = {}
count = 0


def kind(function):
    KINDS[function.__name__] = function
    return function


def model(width=64, layers=3):
    parts = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*parts).to(DEVICE)


def loss(net, rows=8, width=64):
    return functional.mse_loss(net(torch.randn(rows, width, device=DEVICE)), torch.zeros(rows, width, device=DEVICE))


@kind
def optimizer():
    net = model()
    adam = torch.optim.AdamW(net.parameters())
    while True:
        loss(net).backward()
        adam.step()
        adam.zero_grad()
        yield


@kind
def by_hand():
    net = model()
    while True:
        loss(net).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        yield


@kind
def accumulation():
    net = model()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    while True:
        for _ in range(4):
            (loss(net) / 4).backward()
        sgd.step()
        sgd.zero_grad()
        yield


@kind
def accumulation_by_hand():
    net = model()
    while True:
        for _ in range(4):
            (loss(net) / 4).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        yield


@kind
def two_optimizers():
    one, other = model(), model()
    first = torch.optim.Adam(one.parameters())
    second = torch.optim.Adam(other.parameters())
    while True:
        loss(one).backward()
        first.step()
        first.zero_grad()
        loss(other).backward()
        second.step()
        second.zero_grad()
        yield


@kind
def inference():
    net = model(layers=6).eval()
    while True:
        with torch.inference_mode():
            hidden = torch.randn(16, 64, device=DEVICE)
            net(hidden).argmax(-1)
        yield


@kind
def generation():
    net = model().eval()
    cache = []
    lengths = random.Random(7)
    length, limit = 0, 12
    while True:
        with torch.inference_mode():
            length += 1
            if length > limit:
                cache.clear()
                length, limit = 1, lengths.randint(5, 40)
            cache.append(net(torch.randn(1, 64, device=DEVICE)))
            torch.cat(cache).sum()
        yield


@kind
def leak():
    net = model()
    adam = torch.optim.AdamW(net.parameters())
    kept = []
    while True:
        value = loss(net)
        value.backward()
        adam.step()
        adam.zero_grad()
        kept.append(torch.ones(3000, device=DEVICE))  # LEAK
        if len(kept) > 400:
            kept.clear()
        yield


@kind
def two_loops():
    """A warm-up, then the main loop: each steps the optimizer in a line of its own, and leaks as much."""
    net = model()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    kept = []
    for _ in range(40):
        loss(net).backward()
        sgd.step()
        sgd.zero_grad()
        kept.append(torch.ones(3000, device=DEVICE))  # WARM-UP
        yield
    while True:
        loss(net).backward()
        sgd.step()
        sgd.zero_grad()
        kept.append(torch.ones(3000, device=DEVICE))  # MAIN
        yield


@kind
def given_back():
    """Leaks for 150 steps, gives all of it back, and steps no more."""
    net = model()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    kept = []
    for _ in range(150):
        loss(net).backward()
        sgd.step()
        sgd.zero_grad()
        kept.append(torch.ones(30000, device=DEVICE))  # KEPT
        yield
    kept.clear()
    while True:
        yield


@kind
def marked():
    """NVTX ranges and a profiler's names around an optimizer that steps twice."""
    net = model()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    while True:
        torch.cuda.nvtx.range_push("part")
        for _ in range(2):
            loss(net).backward()
            sgd.step()
            sgd.zero_grad()
        torch.cuda.nvtx.range_pop()
        with torch.profiler.record_function(f"iteration {count}"):
            pass
        yield


def trained(sgd, net):
    for _ in range(2):
        loss(net).backward()
        sgd.step()
        sgd.zero_grad()


@kind
def mstx():
    """msMemScope's way: ranges called “step start” around steps, something between them."""
    library = ctypes.CDLL(os.environ["MARKS"])
    library.mstxRangeStartA.restype = ctypes.c_uint64
    net = model()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    while True:
        step = library.mstxRangeStartA(b"step start", None)
        trained(sgd, net)
        library.mstxRangeEnd(ctypes.c_uint64(step))
        library.mstxMarkA(b"between", None)
        loss(net)
        yield


@kind
def library():
    """Steps told by memscope's own function."""
    tell = ctypes.CDLL(os.environ["MARKS"]).memscope_event
    tell.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
    net = model()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    while True:
        trained(sgd, net)
        name = "gemäß".encode()
        tell(0, 0, name, len(name))
        tell(3, 0, None, 0)
        yield


@kind
def kept_graph():
    """A line that keeps each loss with its graph, and one that keeps results of several sizes."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 64), nn.GELU()).to(DEVICE)
    adam = torch.optim.AdamW(net.parameters())
    losses, results = [], []
    while True:
        kept = net(torch.randn(32, 64, device=DEVICE)).square().mean()  # GRAPH
        losses.append(kept)
        kept.backward(retain_graph=True)
        adam.step()
        adam.zero_grad()
        for rows in (100, 200, 300):
            results.append(torch.empty(rows, 64, device=DEVICE))  # SIZES
        yield


torch.ones(1, device=DEVICE)
loop = KINDS[sys.argv[1]]()
print(json.dumps({"ready": True, "torch": torch.__version__}), flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        next(loop)
        count += 1
    said = {"count": count, "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
    print(json.dumps(said), flush=True)
