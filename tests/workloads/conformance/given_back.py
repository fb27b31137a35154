"""Leaves nothing alive: only the cache remains, of which no tensor tells."""

import torch

side = torch.cuda.Stream()
tensors = [torch.empty(90_000 * (n + 1), dtype=torch.uint8, device="cuda") for n in range(30)]
with torch.cuda.stream(side):
    tensors.append(torch.empty(4_000_000, dtype=torch.uint8, device="cuda"))
del tensors[::2]
tensors.append(torch.empty(70_000, dtype=torch.uint8, device="cuda"))
tensors.clear()
