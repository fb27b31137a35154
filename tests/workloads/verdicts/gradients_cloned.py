"""Gradients of each step are put aside to be averaged, and the list is never cleared."""
# verdicts: leak
# verdicts: held by workload.aside
# verdicts: steps optimizer

import torch
from torch import nn

aside = []


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(96, 192), nn.Tanh(), nn.Linear(192, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(i):
    batch = torch.randn(32, 96, device="cuda")
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    aside.append([parameter.grad.clone() for parameter in model.parameters()])  # LEAK
    for index, parameter in enumerate(model.parameters()):
        parameter.grad.copy_(aside[-1][index])
    optimizer.step()
