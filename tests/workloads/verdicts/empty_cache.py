"""Each ten steps what the allocator keeps for later is given back to the driver."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


def step(i):
    batch = torch.randn(256 + 64 * (i % 3), 512, device="cuda")
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 10 == 9:
        torch.cuda.empty_cache()
