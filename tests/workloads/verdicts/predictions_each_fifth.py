"""Each fifth step validates, and keeps its predictions on the device."""
# verdicts: leak
# verdicts: held by workload.predictions
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional

predictions = []


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 100)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


def validate():
    model.eval()
    with torch.no_grad():
        batch = torch.randn(256, 64, device="cuda")
        logits = model(batch)
        predictions.append(logits.softmax(dim=-1))  # LEAK
    model.train()


def step(i):
    batch = torch.randn(64, 64, device="cuda")
    labels = torch.randint(0, 100, (64,), device="cuda")
    loss = functional.cross_entropy(model(batch), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 5 == 4:
        validate()
