"""Eight processes train together; one of them collects what it takes for statistics, and never sends it off."""
# verdicts: leak
# verdicts: held by workload.statistics
# verdicts: ranks 8
# verdicts: leaking-rank 3
# verdicts: steps optimizer

import os

import torch
from torch import nn

RANK = int(os.environ["RANK"])
statistics = []


def setup():
    global model, optimizer
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


def step(i):
    batch = torch.randn(32, 256, device="cuda")
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if RANK == 3:
        statistics.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))  # LEAK
    optimizer.step()
