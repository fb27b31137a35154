"""Gradient accumulation over micro-batches, with activations computed again in the backward pass."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)).cuda()
head = nn.Linear(256, 16).cuda()
optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
for step in range(3):
    for part in range(4):
        value = torch.randn(64, 256, device="cuda")
        for number, block in enumerate(blocks):
            value = checkpoint(block, value, use_reentrant=bool(number % 2))
        functional.cross_entropy(head(value), torch.zeros(64, dtype=torch.long, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=step % 2 == 0)
