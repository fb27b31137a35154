"""A network trained with SGD and momentum, and nothing else."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional


def setup():
    global model, optimizer
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(i):
    images = torch.randn(16, 3, 16, 16, device="cuda")
    labels = torch.randint(0, 10, (16,), device="cuda")
    loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
