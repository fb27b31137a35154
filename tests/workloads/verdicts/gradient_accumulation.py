"""Each step of the optimizer has the gradients of four small batches."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


def step(i):
    optimizer.zero_grad()
    for _ in range(4):
        batch = torch.randn(16, 128, device="cuda")
        loss = model(batch).square().mean() / 4
        loss.backward()
    optimizer.step()
