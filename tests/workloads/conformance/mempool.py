"""Allocations in private pools, beside the default one, with a pool that is given up."""
# conformance: needs torch.cuda.MemPool

import torch

pools = [torch.cuda.MemPool() for _ in range(3)]
kept = []
for turn in range(6):
    with torch.cuda.use_mem_pool(pools[turn % 3]):
        kept.append(torch.empty(400_000 * (turn + 1), dtype=torch.uint8, device="cuda"))
        kept.append(torch.empty(5_000, dtype=torch.uint8, device="cuda"))
    kept.append(torch.empty(2_000_000, dtype=torch.uint8, device="cuda"))
# All that the second pool holds, and the pool.
del kept[3], kept[3], kept[10], kept[10]
del pools[1]
torch.cuda.empty_cache()
kept.append(torch.empty(9_000_000, dtype=torch.uint8, device="cuda"))
