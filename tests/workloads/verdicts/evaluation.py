"""Each 20 steps the model is tried on larger batches, and what comes of it is summed up on the host."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional

scores = []


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


@torch.no_grad()
def evaluate():
    model.eval()
    losses = []
    for _ in range(5):
        batch = torch.randn(512, 64, device="cuda")
        labels = torch.randint(0, 10, (512,), device="cuda")
        losses.append(functional.cross_entropy(model(batch), labels))
    scores.append(torch.stack(losses).mean().cpu())
    model.train()


def step(i):
    batch = torch.randn(64, 64, device="cuda")
    labels = torch.randint(0, 10, (64,), device="cuda")
    loss = functional.cross_entropy(model(batch), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 20 == 19:
        evaluate()
