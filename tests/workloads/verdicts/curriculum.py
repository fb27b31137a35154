"""Batches and their pictures grow until step 90; what is kept of them is one batch."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional


def setup():
    global model, optimizer, last
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


def step(i):
    global last
    level = min(i // 10, 9)
    images = torch.randn(8 + 4 * level, 3, 16 + 2 * level, 16 + 2 * level, device="cuda")
    labels = torch.randint(0, 10, (len(images),), device="cuda")
    loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    last = images
