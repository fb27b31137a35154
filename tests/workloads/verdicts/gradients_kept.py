"""Gradients are kept as they are, and the optimizer forgets them: what stays was allocated by the backward pass's own thread,
in which there is no line of Python."""
# verdicts: leak
# verdicts: held by workload.seen
# verdicts: line none
# verdicts: steps optimizer

import torch
from torch import nn

seen = []


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(96, 192), nn.Tanh(), nn.Linear(192, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(i):
    batch = torch.randn(32, 96, device="cuda")
    loss = model(batch).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    seen.append([parameter.grad for parameter in model.parameters()])
    optimizer.step()
