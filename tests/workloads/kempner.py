"""Trains with a memory monitor of KempnerForge's kind in the program, and tells its lines at the end.

First line: that it is ready; memscope is attached then. It waits for a line, trains, and tells the monitor's lines.
"""

import json
import os
import sys

import torch
from torch import nn

import memscope

DEVICE = os.environ["MEMSCOPE_TEST_DEVICE"]
GPU = getattr(torch, DEVICE)
GB = 1024**3
STEPS = 30
lines = {1: [], 5: []}


def report(step, every):
    """What the monitor logs, and the beginning of a new peak."""
    allocated = GPU.memory_allocated() / GB
    peak = GPU.max_memory_allocated() / GB
    reserved = GPU.memory_reserved() / GB
    total = GPU.get_device_properties(0).total_memory / GB
    utilization = peak / total if total else 0
    lines[every].append(
        f"[step {step}] GPU mem: {allocated:.1f}GB allocated, {peak:.1f}GB peak, "
        f"{reserved:.1f}GB reserved / {total:.1f}GB total ({utilization:.0%})"
    )
    GPU.reset_peak_memory_stats()


def train(every):
    model = nn.Linear(64, 64).to(DEVICE)
    kept = []
    for step in range(1, STEPS + 1):
        # Levels that go up and down by much more than a tenth of a GB, also in steps that only free.
        big = [torch.empty((step * 37 % 11 + 1) << 28, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
        if step % 3 == 0:
            kept.append(torch.empty(300 << 20, dtype=torch.uint8, device=DEVICE))
        if step % 7 == 0:
            kept.clear()
        model(torch.randn(8, 64, device=DEVICE)).sum().backward()
        if step % 4:
            del big
        if step % 10 == 0:
            GPU.empty_cache()
        if step % every == 0:
            report(step, every)
        memscope.step()


memscope.mark("ready")
torch.empty(1, device=DEVICE)
print(json.dumps({}), flush=True)
every = int(sys.stdin.readline())
# So that memscope knows what the device has, too, where no NVML tells it.
GPU.mem_get_info()
GPU.reset_peak_memory_stats()
train(every)
print(json.dumps({"lines": lines[every]}), flush=True)
sys.stdin.readline()
