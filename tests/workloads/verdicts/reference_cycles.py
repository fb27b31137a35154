"""Results refer to themselves, so only the collector frees them; it runs each 25 steps, as in loops that do not want it between."""
# verdicts: clean
# verdicts: steps optimizer

import gc

import torch
from torch import nn


class Result:
    def __init__(self, output):
        self.output = output
        self.origin = self


def setup():
    global model, optimizer
    gc.disable()
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(i):
    batch = torch.randn(64, 128, device="cuda")
    result = Result(model(batch))
    loss = result.output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 25 == 24:
        gc.collect()
