"""Wastes memory on purpose, in three functions, and uses it well in a fourth.

Answers list the lines by size times time. The functions wait so differently that a busy machine does not change that order.
"""

import json
import os
import sys
import time

import torch

device = os.environ["MEMSCOPE_TEST_DEVICE"]
MIB = 1 << 20


def new(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


def early():
    """Allocated, and used only after something else was freed."""
    buffer = new(64)
    other = new(8)
    other.fill_(1)
    del other
    time.sleep(0.05)
    buffer.fill_(1)


def late():
    """Kept after its last use, while something else is allocated."""
    buffer = new(32)
    buffer.fill_(1)
    other = new(64)
    other.fill_(1)
    del buffer
    del other


def idle(small):
    """Used, left alone for many operators, and used again."""
    buffer = new(16)
    buffer.fill_(1)
    for _ in range(50):
        small.add_(1)
    time.sleep(1)
    buffer.fill_(2)


def well():
    """Used at once, and freed at once."""
    buffer = new(24)
    buffer.fill_(1)


small = new(1)
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    for _ in range(5):
        for work in early, late, lambda: idle(small), well:
            work()
    print(json.dumps({"done": True}), flush=True)
