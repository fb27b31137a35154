"""Stops between forward and backward, and says afterwards which blocks the backward pass freed.

First line: what it holds on purpose, and the blocks of each. Then it waits for a line, runs backward, and tells what that freed.
"""

import ctypes
import json
import os
import sys

import torch
from torch import nn

from blocks import active, block
from nets import Model

DEVICE = "cuda"


class DynamicCache:
    """Named as in transformers, with the lists that it has there."""

    def __init__(self):
        self.key_cache = []
        self.value_cache = []


kept = []


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        ctx.kept = x + 1
        kept.append(block(ctx.kept))
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (double,) = ctx.saved_tensors
        return gradient * double


plain, checkpointed = Model(32, [None] * 4).to(DEVICE), Model(32, [False] * 4).to(DEVICE)
own = nn.Linear(32, 32).to(DEVICE)
inputs = torch.randn(8, 32, device=DEVICE)
cache = DynamicCache()
for _ in range(3):
    cache.key_cache.append(torch.randn(2, 16, device=DEVICE))
    cache.value_cache.append(torch.randn(2, 16, device=DEVICE))
paged = {"kv_caches": [torch.randn(64, device=DEVICE) for _ in range(2)]}
history = [torch.randn(100, device=DEVICE) for _ in range(5)]
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    static = torch.zeros(300, device=DEVICE)
# A matrix product makes workspaces that stay.
(torch.ones(32, 32, device=DEVICE) @ torch.ones(32, 32, device=DEVICE)).sum().item()
for model in (plain, checkpointed, own):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def losses():
    return plain(inputs).square().mean() + checkpointed(inputs).square().mean() + Squared.apply(own(inputs)).mean()


losses().backward()
kept.clear()
loss = losses()
torch.cuda.synchronize()
before = active()
told = {
    "ready": True,
    "kv_cache": [block(t) for t in cache.key_cache + cache.value_cache + paged["kv_caches"]],
    "private_pools": [block(static)],
    "kept_by_function": kept,
    "program": [block(t) for t in history + [inputs, loss]],
    "sizes": before,
}
print(json.dumps(told), flush=True)
sys.stdin.readline()
loss.backward()
torch.cuda.synchronize()
freed = sorted(set(before) - set(active()))


def beside_the_pool():
    at = ctypes.c_void_p()
    assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(at), ctypes.c_size_t(3 << 20)) == 0


beside_the_pool()
# A stream of its own has a workspace of its own.
with torch.cuda.stream(torch.cuda.Stream()):
    product = torch.ones(32, 32, device=DEVICE) @ torch.ones(32, 32, device=DEVICE)
torch.cuda.synchronize()
print(json.dumps({"freed": freed}), flush=True)
sys.stdin.readline()
os._exit(0)
