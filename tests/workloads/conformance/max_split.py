"""Blocks above a size are not split; when memory is short the allocator collects and gives them back one by one."""
# conformance: env PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:30,garbage_collection_threshold:0.6
# conformance: device-size 1GiB

import torch

torch.cuda.set_per_process_memory_fraction(0.9)
kept = []
for turn in range(8):
    for mib in (1, 12, 45, 64):
        kept.append(torch.empty(mib << 20, dtype=torch.uint8, device="cuda"))
    del kept[turn % 3 :: 2]
for mib in (33, 70, 90):
    kept.append(torch.empty((mib << 20) + 5, dtype=torch.uint8, device="cuda"))
    del kept[0]
