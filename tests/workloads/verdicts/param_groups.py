"""A new adapter for each task is given to the optimizer, which forgets none of the old ones, nor what it knows of them."""
# verdicts: leak
# verdicts: held by workload.optimizer.param_groups or workload.optimizer.state
# verdicts: steps optimizer

import torch
from torch import nn


def setup():
    global body, optimizer
    body = nn.Sequential(nn.Linear(128, 128), nn.ReLU()).cuda()
    optimizer = torch.optim.AdamW(body.parameters())


def step(i):
    if i % 2 == 0:
        global adapter
        adapter = nn.Linear(128, 64).cuda()  # LEAK
        optimizer.add_param_group({"params": list(adapter.parameters())})
    batch = torch.randn(32, 128, device="cuda")
    loss = adapter(body(batch)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # LEAK
