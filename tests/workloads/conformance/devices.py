"""Two devices of three, side by side and copies between them; the third is never used."""
# conformance: devices 3

import torch

kept = []
for turn in range(10):
    device = turn % 2
    kept.append(torch.empty(250_000 * (turn + 1), device=f"cuda:{device}"))
    kept.append(kept[-1].to(f"cuda:{1 - device}"))
    if turn % 3 == 2:
        del kept[turn // 2]
with torch.cuda.device(1):
    kept.append(torch.zeros(77, device="cuda"))
    del kept[:3]
    torch.cuda.empty_cache()
