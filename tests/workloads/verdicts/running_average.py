"""A running average of the validation loss is taken where gradients are recorded, so it holds the graphs of all steps."""
# verdicts: leak
# verdicts: held by workload.average
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional

average = 0.0


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(i):
    global average
    batch = torch.randn(32, 64, device="cuda")
    labels = torch.randint(0, 10, (32,), device="cuda")
    loss = functional.cross_entropy(model(batch), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    unseen = torch.randn(32, 64, device="cuda")  # LEAK
    known = torch.randint(0, 10, (32,), device="cuda")  # LEAK
    loss = functional.cross_entropy(model(unseen), known)  # LEAK
    average = average * 0.9 + loss
