"""Blocks used by other streams than their own: freed while a stream is still at work, returned later.

Events complete late here, so that some frees are pending when the script ends.
"""
# conformance: env SIMCUDA_EVENT_DELAY_US=30000000

import torch

streams = [torch.cuda.Stream() for _ in range(3)]
kept = []
for turn in range(12):
    with torch.cuda.stream(streams[turn % 3]):
        mine = torch.empty(100_000 + 70_001 * turn, dtype=torch.uint8, device="cuda")
    for other in streams[: turn % 3]:
        mine.record_stream(other)
    mine.record_stream(torch.cuda.current_stream())
    if turn % 2:
        kept.append(mine)
    del mine
    # On the default stream, between the others' blocks.
    kept.append(torch.empty(3_000_000 + turn, dtype=torch.uint8, device="cuda"))
    if turn == 5:
        # Waits for the streams: what was pending comes back.
        torch.cuda.empty_cache()
    if turn % 4 == 3:
        del kept[0]
