"""A step of training that stops after its forward pass, twice in its backward pass, after that, and when all is cleared.

At each stop it says which blocks PyTorch has in use, and which of them are what; after a line of input it goes on.
"""

import json
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from blocks import active

DEVICE = "cuda"


def block(tensor):
    return tensor.untyped_storage().data_ptr()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, is_checkpointed):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        for one in self.blocks:
            # Both ways of checkpoints, which compute again in different ways.
            is_first = one is self.blocks[0]
            x = checkpoint(one, x, use_reentrant=is_first) if self.is_checkpointed else one(x)
        return x


class Scaled(torch.autograd.Function):
    """Its gradient for `by` is allocated by Python code in the backward pass."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(x, by)
        return x * by

    @staticmethod
    def backward(ctx, gradient):
        x, by = ctx.saved_tensors
        return gradient * by, gradient * x


plain, checkpointed = Model(False).to(DEVICE), Model(True).to(DEVICE)
by = nn.Parameter(torch.ones(16, 64, device=DEVICE))
parameters = [*plain.parameters(), *checkpointed.parameters(), by]
optimizer = torch.optim.AdamW(parameters)
inputs = torch.randn(16, 64, device=DEVICE)
norms = []
stops = False


def stop(loss=None):
    torch.cuda.synchronize()
    told = {
        "ready": True,
        "weights": [block(p) for p in parameters],
        "gradients": [block(p.grad) for p in parameters if p.grad is not None],
        "norms": [block(norm) for norm in norms],
        "loss": [] if loss is None else [block(loss)],
        "sizes": active(),
    }
    print(json.dumps(told), flush=True)
    sys.stdin.readline()


def forward():
    return plain(inputs).square().mean() + checkpointed(Scaled.apply(inputs, by)).square().mean()


def hook(gradient):
    # What a hook keeps is no gradient, although a thread of the backward pass allocated it.
    norms.append(gradient.abs())
    if stops:
        stop()


for number in 0, 2:
    checkpointed.blocks[number].down.bias.register_hook(hook)


def step():
    loss = forward()
    if stops:
        stop(loss)
    loss.backward()
    if stops:
        stop(loss)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    norms.clear()


step()
step()
stop()
stops = True
step()
stop()
