"""Trains and keeps tensors until it is told to hold. It knows what PyTorch counts.

It makes some 5,000 allocations and frees in a second, as training does; so the buffer has room for what comes while no daemon reads.

Lines on standard input: `hold` stops between two steps and prints the totals as JSON; `go` goes on.
"""

import json
import os
import sys
import threading
import time

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
turn = threading.Lock()


def step():
    batch = torch.randn(64, 256, device="cuda")
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    # Tensors of many sizes come and go, and some of them stay for long.
    kept.append(torch.empty(1 + len(kept) * 4096 % 1_000_000, dtype=torch.uint8, device="cuda"))
    if len(kept) > 200:
        del kept[:150]


def train():
    while True:
        with turn:
            step()
        time.sleep(0.01)


def totals():
    stats = torch.cuda.memory_stats()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "blocks": stats["allocation.all.current"],
        "allocations": stats["allocation.all.allocated"],
        "frees": stats["allocation.all.freed"],
    }


step()
print(os.getpid(), flush=True)
turn.acquire()
threading.Thread(target=train, daemon=True).start()
is_held = True
for line in sys.stdin:
    if line.strip() == "go" and is_held:
        turn.release()
        is_held = False
    elif line.strip() == "hold":
        if not is_held:
            turn.acquire()
            is_held = True
        torch.cuda.synchronize()
        print(json.dumps(totals()), flush=True)
