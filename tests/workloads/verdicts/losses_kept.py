"""Losses are kept for a plot: detached, so without their graph, but on the device."""
# verdicts: leak
# verdicts: held by workload.losses
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional

losses = []


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())


def step(i):
    batch = torch.randn(32, 128, device="cuda")
    labels = torch.randint(0, 10, (32,), device="cuda")
    output = model(batch)
    loss = functional.cross_entropy(output, labels)  # LEAK
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
