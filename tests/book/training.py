"""A training loop that goes as far as it is told, and keeps a tensor of each step.

Each line on standard input is a command with its number; each is answered with one JSON object. Nothing here knows of
memscope.
"""

import json
import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
history = []


def steps(count, rows=32):
    for _ in range(count):
        batch = torch.randn(rows, 64, device="cuda")
        features = model[:2](batch)
        loss = (model[2](features) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        history.append(features.detach())


def large_steps(count):
    steps(count, rows=2048)


def hold(mebibytes):
    history.append(torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda"))


def fail(tebibytes):
    try:
        history.append(torch.empty(tebibytes << 40, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        return
    raise AssertionError("there is no such device")


COMMANDS = {function.__name__: function for function in (steps, large_steps, hold, fail)}
print(json.dumps({"ready": True, "torch": torch.__version__}), flush=True)
for line in sys.stdin:
    name, number = line.split()
    COMMANDS[name](int(number))
    print(json.dumps({"done": name}), flush=True)
