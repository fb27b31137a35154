"""A loader that pins each batch in memory and keeps it: the device's memory is steady, the host's is not."""
# verdicts: leak
# verdicts: memory host
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional

loaded = []


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


def step(i):
    pinned = torch.randn(32, 512).pin_memory()  # LEAK
    loaded.append(pinned)
    batch = pinned.to("cuda", non_blocking=True)
    labels = torch.randint(0, 10, (32,), device="cuda")
    loss = functional.cross_entropy(model(batch), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
