"""A library that is called through ctypes takes memory of the driver in each step and gives none back."""
# verdicts: leak
# verdicts: memory driver
# verdicts: steps optimizer

import ctypes
import os

import torch
from torch import nn

scratch = []


def setup():
    global model, optimizer, allocate
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if "MEMSCOPE_ON_NPU" in os.environ:
        allocate = ctypes.CDLL("libascendcl.so").aclrtMalloc
    else:
        allocate = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0]).cudaMalloc


def step(i):
    pointer = ctypes.c_void_p()
    # The last argument is aclrtMalloc's policy; cudaMalloc has two.
    if allocate(ctypes.byref(pointer), ctypes.c_size_t(300_000), ctypes.c_int(0)) != 0:  # LEAK
        raise MemoryError("no memory for the library's own tables")
    scratch.append(pointer)
    batch = torch.randn(32, 128, device="cuda")
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
