"""A step of training that stops after its forward pass, twice in its backward pass, after that, and when all is cleared.

At each stop it says which blocks PyTorch has in use, and which of them are what; after a line of input it goes on.
"""

import json
import sys

import torch
from torch import nn

from blocks import active, block
from nets import Model

DEVICE = "cuda"


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


plain, checkpointed = Model(64, [None] * 3).to(DEVICE), Model(64, [True, False, False]).to(DEVICE)
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
