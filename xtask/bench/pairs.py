"""Times allocations with their frees, on request.

Reads lines from standard input: `pairs N` answers with the microseconds per allocation and free (the
best of seven runs of N, and the median); `record KIND` switches PyTorch's own recorder (`off`,
`python`, `all`); `hold N` keeps N blocks; `end` ends. Answers are lines of JSON.
"""

import json
import statistics
import sys
import time

import torch


def depth(levels, work):
    return work() if levels == 0 else depth(levels - 1, work)


def run(pairs):
    empty, size = torch.empty, (1024,)
    device = torch.device("cuda")
    started = time.perf_counter()
    for _ in range(pairs):
        empty(size, device=device)
    return (time.perf_counter() - started) / pairs * 1e6


torch.empty(1, device="cuda")
print(json.dumps({"ready": torch.__version__}), flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "pairs":
        times = depth(20, lambda: [run(int(rest[0])) for _ in range(7)])
        print(json.dumps({"best": min(times), "median": statistics.median(times)}), flush=True)
    elif word == "hold":
        kept = [torch.empty(1024 + 512 * (n % 7), dtype=torch.uint8, device=torch.device("cuda")) for n in range(int(rest[0]))]
        print(json.dumps({"hold": len(kept)}), flush=True)
    elif word == "record":
        if rest[0] == "off":
            torch.cuda.memory._record_memory_history(enabled=None)
        else:
            torch.cuda.memory._record_memory_history(max_entries=100_000, stacks=rest[0])
        print(json.dumps({"record": rest[0]}), flush=True)
    elif word == "end":
        break
