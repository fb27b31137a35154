"""A library that is called through ctypes takes memory of the driver in each step and gives none back."""
# verdicts: leak
# verdicts: memory driver
# verdicts: steps optimizer

import ctypes

import torch
from torch import nn

scratch = []


def setup():
    global model, optimizer, runtime
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])


def step(i):
    pointer = ctypes.c_void_p()
    if runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(300_000)) != 0:  # LEAK
        raise MemoryError("no memory for the library's own tables")
    scratch.append(pointer)
    batch = torch.randn(32, 128, device="cuda")
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
