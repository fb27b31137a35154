"""Labels memory in all ways that memscope.describe has, and knows itself which blocks have which labels.

First line: that it is ready; memscope is attached then. It waits for a line, allocates, and tells the blocks of each
combination of labels by their addresses, and PyTorch's own sizes.
"""

import asyncio
import json
import sys
import threading

import torch
from torch import nn

from blocks import active
from memscope import describe, mark

DEVICE = "cuda"
kept, labels = [], {}

# So that the library is there when memscope is attached.
mark("ready")


def new(count, *words):
    tensor = torch.empty(count * 1000, dtype=torch.uint8, device=DEVICE)
    kept.append(tensor)
    note(tensor, *words)
    return tensor


def note(tensor, *words):
    labels[tensor.untyped_storage().data_ptr()] = words


@describe.describer(owner="decorated")
def decorated():
    new(4, "decorated")
    with describe.describer(owner="inside"):
        new(5, "decorated", "inside")


@describe.describer(owner="generated")
def generated():
    for count in (6, 7):
        new(count, "generated")
        yield


@describe.describer(owner="awaited")
async def awaited():
    new(8, "awaited")


def in_a_thread():
    new(9)
    with describe.describer(owner="of a thread"):
        new(10, "of a thread")


def failing():
    with describe.describer(owner="failing"):
        new(11, "failing")
        raise ValueError


def allocate():
    before = new(1)
    with describe.describer(owner="a"):
        new(2, "a")
        with describe.describer(owner="b"), describe.describer(owner="c"):
            deepest = new(3, "a", "b", "c")
            with describe.describer(owner="d"):
                new(3, "a", "b", "c")
        worker = threading.Thread(target=in_a_thread)
        worker.start()
        worker.join()
        new(2, "a")
        model = nn.Linear(1000, 100, device=DEVICE)
        kept.append(model)
        for parameter in model.parameters():
            note(parameter, "a")
    decorated()
    for _ in generated():
        pass
    asyncio.run(awaited())
    try:
        failing()
    except ValueError:
        pass
    new(12)
    # Afterwards, of a tensor, of a view of it, and of an address.
    describe.describer(before, owner="early")
    note(before, "early")
    describe.describer(deepest, owner="more")
    viewed = new(20)[5000:]
    describe.describer(viewed, owner="viewed")
    note(viewed, "viewed")
    at = new(21).data_ptr()
    describe.describer(at, owner="by address")
    labels[at] = ("by address",)
    # What is freed is in no sum, and its room is nobody's any more.
    with describe.describer(owner="gone"):
        torch.empty(30_000_000, dtype=torch.uint8, device=DEVICE)
    new(30_000)


print(json.dumps({}), flush=True)
sys.stdin.readline()
allocate()
told = [{"address": address, "labels": words} for address, words in labels.items()]
print(json.dumps({"told": told, "sizes": active()}), flush=True)
sys.stdin.readline()
