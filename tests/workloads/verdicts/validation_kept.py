"""A validation keeps its result with the graph of its forward pass, beside a replay buffer that is full and takes one batch for another.

The buffer's blocks are of the same size as some that the graph keeps, and are replaced for as long as the process is watched: a late
attach sees those from before go, one by one, while others come."""
# verdicts: leak
# verdicts: held by workload.history
# verdicts: steps optimizer

from collections import deque

import torch
from torch import nn

replay = deque(maxlen=60)
history = []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.up = nn.Linear(128, 256)
        self.down = nn.Linear(256, 128)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))  # LEAK


def setup():
    global model, head, optimizer, criterion, held_out
    model = nn.Sequential(nn.Linear(128, 128), Block(), Block()).cuda()
    head = nn.Linear(128, 1).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
    criterion = nn.BCEWithLogitsLoss()
    held_out = torch.randn(128, 128, device="cuda")
    for _ in range(60):
        replay.append(torch.randn(128, 128, device="cuda"))


def calibration(inputs):
    logits = head(model(inputs)).squeeze(-1)  # LEAK
    return logits.sigmoid().mean()  # LEAK


def step(i):
    inputs = torch.randn(128, 128, device="cuda")
    target = torch.rand(128, device="cuda")
    features = model(inputs)
    loss = criterion(head(features).squeeze(-1), target)
    loss = loss + 0.3 * criterion(head(model(replay[i % 60])).squeeze(-1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    replay.append(inputs)
    if i % 4 == 0:
        history.append(calibration(held_out))
