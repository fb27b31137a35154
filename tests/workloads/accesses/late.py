"""Loads PyTorch, and torch_npu after it, only when it is told to, and then writes to a tensor of the device each time that it is told to."""

import json
import sys

print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()

import torch  # noqa: E402
import torch_npu  # noqa: E402, F401

tensor = torch.ones(8, 8, device="npu")
while True:
    for _ in range(10):
        tensor.mul_(0.5)
    print(json.dumps({"address": tensor.untyped_storage().data_ptr()}), flush=True)
    if not sys.stdin.readline():
        break
