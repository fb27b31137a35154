"""Allocates and frees without end, and says what it has when it is asked: the other side of `cargo xtask chaos`.

Commands come line by line: `hold` stops it and tells PyTorch's own numbers, `compare FILE` compares an exported snapshot with
PyTorch's own, `go` lets it go on.
"""

import json
import pickle
import random
import sys
import threading
import time

import torch
from torch import nn

SEED, PACE = int(sys.argv[1]), float(sys.argv[2])
MOST = 300
GATE = threading.Lock()


def say(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def work():
    noise = random.Random(SEED)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    live = []
    while True:
        with GATE:
            turn = noise.random()
            if turn < 0.01:
                model(torch.randn(8, 64, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            elif turn < 0.012:
                torch.cuda.empty_cache()
            elif turn < 0.03:
                # Another stream uses it: its end is pending for a while.
                used = torch.empty(noise.randrange(1, 1 << 20), dtype=torch.uint8, device="cuda")
                used.record_stream(side)
            elif live and (len(live) >= MOST or turn < 0.5):
                live[noise.randrange(len(live))] = live[-1]
                live.pop()
            else:
                size = noise.randrange(1, 1 << noise.randrange(8, 23))
                live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        time.sleep(PACE)


def comparable(snapshot):
    segments = []
    for segment in snapshot["segments"]:
        blocks = []
        for block in segment["blocks"]:
            # What the last owner of a free piece asked for says nothing.
            requested = None if block["state"] == "inactive" else block["requested_size"]
            blocks.append([block["address"], block["size"], block["state"], requested])
        segments.append([segment["address"], segment["total_size"], segment["stream"], blocks])
    return sorted(segments)


def numbers():
    stats = torch.cuda.memory_stats()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "allocs": stats["allocation.all.allocated"],
        "frees": stats["allocation.all.freed"],
    }


def compare(file):
    with open(file, "rb") as opened:
        theirs = comparable(pickle.load(opened))
    own = comparable(torch.cuda.memory._snapshot())
    blocks = sum(len(segment[3]) for segment in own)
    differ = [[a, b] for a, b in zip(theirs, own) if a != b][:1]
    return {"equal": theirs == own, "blocks": blocks, "segments": [len(theirs), len(own)], "differ": differ}


torch.cuda.init()
say(ready=torch.__version__)
threading.Thread(target=work, daemon=True).start()
for line in sys.stdin:
    words = line.split()
    if words[0] == "hold":
        GATE.acquire()
        say(**numbers())
    elif words[0] == "compare":
        say(**compare(words[1]))
    elif words[0] == "go":
        GATE.release()
        say()
