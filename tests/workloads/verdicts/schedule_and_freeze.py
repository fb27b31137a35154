"""The learning rate falls and the lower layers are frozen after 50 steps."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional


def setup():
    global body, head, optimizer, schedule
    body = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()).cuda()
    head = nn.Linear(128, 10).cuda()
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.1)


def step(i):
    if i == 50:
        body.requires_grad_(False)
    batch = torch.randn(64, 128, device="cuda")
    labels = torch.randint(0, 10, (64,), device="cuda")
    loss = functional.cross_entropy(head(body(batch)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
