"""Sizes rounded up to divisions of powers of two, which differ by size."""
# conformance: env PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2,1024:4,>:8]

import torch

kept = []
for turn in range(40):
    kept.append(torch.empty(511 + 37 * turn * turn * turn, dtype=torch.uint8, device="cuda"))
for mib in (3, 11, 130, 300, 700, 1030):
    kept.append(torch.empty((mib << 20) + 12_345, dtype=torch.uint8, device="cuda"))
del kept[1::3]
kept.append(torch.empty(100_000, dtype=torch.uint8, device="cuda"))
