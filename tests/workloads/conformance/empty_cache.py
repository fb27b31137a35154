"""The cache emptied again and again, between allocations that come back at other places."""

import torch

kept = []
for turn in range(15):
    batch = [torch.empty(50_000 * (1 + (turn * 7 + n) % 11), dtype=torch.uint8, device="cuda") for n in range(20)]
    kept.append(batch[turn % 20])
    large = torch.empty((turn % 4 + 1) * 6_000_000, dtype=torch.uint8, device="cuda")
    del batch, large
    torch.cuda.empty_cache()
    if turn % 5 == 4:
        del kept[: turn % 3]
for turn in range(15):
    # From an allocator that holds nothing at all to one that does.
    if turn == 7:
        kept.clear()
    torch.cuda.empty_cache()
    kept.append(torch.empty(10_000 * (turn + 1), dtype=torch.uint8, device="cuda"))
