"""A small training loop that leaks: each step keeps a tensor that nobody reads again.

Nothing here knows of memscope. It trains on whatever device PyTorch finds.
"""

import sys
import time

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
history = []

for step in range(100_000):
    batch = torch.randn(256, 512, device="cuda")
    features = model[:2](batch)
    loss = (model[2](features) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    history.append(features.detach())  # the leak: 256 x 2048 x 4 bytes = 2 MiB a step
    print(f"step {step}", flush=True)
    time.sleep(0.05)
    if step > 400:
        sys.exit(0)
