"""AdamW makes its state when a parameter has its first gradient: for most in the first step, for layers that thaw one
after the other later."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn

LAYERS = 6


def setup():
    global model, optimizer
    model = nn.Sequential(*(nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(LAYERS)), nn.Linear(192, 1)).cuda()
    for layer in model[:LAYERS]:
        layer.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())


def step(i):
    # From the output downwards, one layer more each ten steps.
    if i % 10 == 0 and i // 10 < LAYERS:
        model[LAYERS - 1 - i // 10].requires_grad_(True)
    batch = torch.randn(32, 192, device="cuda")
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
