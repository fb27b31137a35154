"""Momentum written by hand: no class of PyTorch's knows when a step is over."""
# verdicts: clean
# verdicts: steps backward

import torch
from torch import nn


def setup():
    global model, momenta
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    momenta = [torch.zeros_like(parameter) for parameter in model.parameters()]


def step(i):
    batch = torch.randn(64, 128, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter, momentum in zip(model.parameters(), momenta):
            momentum.mul_(0.9).add_(parameter.grad)
            parameter.sub_(0.01 * momentum)
            parameter.grad = None
