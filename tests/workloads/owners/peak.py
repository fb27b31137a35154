"""Has most memory before a step of its training, and says what it had then.

First line: ready. After a line of input it goes on: when it has most it takes PyTorch's own snapshot, frees a part, makes a step, and tells
what it had and what it has.
"""

import json
import sys

import torch
from torch import nn

from blocks import active

DEVICE = "cuda"
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters())


def temporary():
    return [torch.empty(100_000 + number, device=DEVICE) for number in range(5)]


def step():
    loss = model(torch.ones(32, 256, device=DEVICE)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


# What libraries keep, and what optimizers keep, is there from now on.
step()
torch.cuda.synchronize()
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()

large = temporary()
kept = torch.empty(3_000_000, device=DEVICE)
torch.cuda.synchronize()
at_peak = active()
del large
again = [torch.empty(50_000, device=DEVICE) for _ in range(3)]
step()
torch.cuda.synchronize()
now = active()
print(
    json.dumps(
        {
            "sizes": at_peak,
            "now": now,
            "parameters": sorted({p.untyped_storage().data_ptr() for p in model.parameters()}),
            "kept": kept.untyped_storage().data_ptr(),
        }
    ),
    flush=True,
)
sys.stdin.readline()
