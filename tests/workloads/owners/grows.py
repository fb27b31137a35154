"""Has lists and a dictionary that hold device memory, and changes them when it is told.

For each line it reads: appends three tensors to `history`, takes two from `shrinking`, puts one into `cache` and takes one out, and says so.
"""

import json
import sys

import torch


def new(elements=1000):
    return torch.empty(elements, device="cuda")


class Trainer:
    def __init__(self):
        self.history = [new() for _ in range(4)]
        self.weights = {"first": new(5000), "second": new(6000)}


trainer = Trainer()
shrinking = [new(2000) for _ in range(9)]
cache = {number: new(3000) for number in range(5)}
once = None
torch.cuda.synchronize()
print(json.dumps({"ready": True}), flush=True)
for turn, line in enumerate(sys.stdin):
    trainer.history += [new() for _ in range(3)]
    del shrinking[-2:]
    del cache[turn]
    cache[turn + 5] = new(3000)
    once = new(7000) if turn == 0 else None
    torch.cuda.synchronize()
    print(json.dumps({"turn": turn}), flush=True)
