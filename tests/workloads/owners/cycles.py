"""Leaves garbage of many kinds to the collector, which is off, and says after a collection which blocks that freed.

First line: the blocks of PyTorch's own snapshot. Then it waits for a line, collects, and tells what that freed.
"""

import gc
import json
import os
import random
import sys
import weakref

import torch
from torch import nn

from blocks import active

DEVICE = "cuda"
gc.collect()
gc.disable()


def new(elements=1000):
    return torch.empty(elements, device=DEVICE)


class Node:
    def __init__(self, tensor=None):
        self.tensor = tensor
        self.next = None


class Finalized(Node):
    def __del__(self):
        pass


class Slots:
    __slots__ = ("me", "tensor")


def itself():
    one = Node(new())
    one.next = one


def two():
    one, other = Node(new()), Node(new(2000))
    one.next, other.next = other, one


def with_a_finalizer():
    one = Finalized(new(3000))
    one.next = one


def in_slots():
    one = Slots()
    one.me, one.tensor = one, new()


def lists():
    one = [new()]
    one.append({"back": one, "more": [new(), (new(),)]})


def closures():
    tensor = new()

    def inner(depth):
        return inner(depth - 1) if depth else tensor

    inner(2)


def tracebacks():
    kept = new(5000)
    try:
        raise ValueError(kept.shape)
    except ValueError as error:
        # The frame has the error, the error has the traceback, and that has the frame.
        mine = error
    return mine.args


def generators():
    def generate():
        tensor = new()
        yield me
        print(tensor)

    me = []
    generator = generate()
    next(generator)
    me.append(generator)


def on_a_tensor():
    tensor = new()
    tensor.me = Node()
    tensor.me.next = tensor


def model():
    made = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(DEVICE)
    made(torch.ones(4, 64, device=DEVICE)).sum().backward()
    # A module that knows the one around it, as many do.
    made[0].__dict__["around"] = made


def graphs():
    weight = torch.ones(500, device=DEVICE, requires_grad=True)
    result = (weight * weight.exp()).sin()
    one = Node(result)
    one.next = one


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.made = x * 2
        return ctx.made

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def functions_that_keep_their_results():
    # Many of them, with other pieces of memory between them: in some, pointers that lie side by side ascend by chance, as those of a vector do.
    chance = random.Random(0)
    between = []
    for number in range(100):
        between.append(bytearray(chance.choice([24, 56, 600, 1000, 3000])))
        if chance.random() < 0.5:
            between.pop(chance.randrange(len(between)))
        Keeps.apply(torch.ones(2000 + number, device=DEVICE, requires_grad=True))


def hanging_from_a_cycle():
    one = Node()
    one.next = one
    one.tensor = {"deep": [[new(), new()], {"deeper": new(7000)}]}


def held_after_all():
    one = Node(new(9000))
    one.next = one
    return one


def seen_from_a_cycle(tensor):
    one = Node(tensor)
    one.next = one


def weakly():
    one = Node(new())
    one.next = one
    return weakref.ref(one)


kept = held_after_all()
mine = new(12000)
seen_from_a_cycle(mine)
reference = weakly()
for make in (
    itself,
    two,
    with_a_finalizer,
    in_slots,
    lists,
    closures,
    tracebacks,
    generators,
    on_a_tensor,
    model,
    graphs,
    functions_that_keep_their_results,
    hanging_from_a_cycle,
):
    make()
del make
torch.cuda.synchronize()
before = active()
print(json.dumps({"ready": True, "sizes": before}), flush=True)
sys.stdin.readline()
gc.collect()
torch.cuda.synchronize()
freed = sorted(set(before) - set(active()))
print(json.dumps({"freed": freed}), flush=True)
sys.stdin.readline()
os._exit(0)
