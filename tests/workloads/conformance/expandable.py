"""Segments that grow and shrink by mapped chunks, on two streams, with holes from an emptied cache."""
# conformance: env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

import torch

side = torch.cuda.Stream()
kept = {}
for turn in range(10):
    for number, size in enumerate((300, 900_000, 5_000_000, 30_000_000)):
        kept[turn, number] = torch.empty(size + 1_001 * turn, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(side):
        kept[turn, "side"] = torch.empty(2_500_000 * (1 + turn % 3), dtype=torch.uint8, device="cuda")
    if turn % 3 == 2:
        for number in (1, 2, 3, "side"):
            kept.pop((turn - 1, number), None)
        torch.cuda.empty_cache()
    if turn % 4 == 3:
        del kept[turn, 3], kept[turn - 2, 0]
