"""Workloads with pauses. At each pause the state according to PyTorch goes out as one line of JSON, and a line
of input is awaited. Run by compare.py."""

import gc
import json
import random
import sys
import threading
import time

import torch


def pause(name):
    gc.collect()
    segments = torch.cuda.memory._snapshot()["segments"]
    again = torch.cuda.memory._snapshot()["segments"]
    keep = (
        "device address total_size stream segment_type segment_pool_id is_expandable blocks"
    ).split()
    out = [{key: segment[key] for key in keep if key in segment} for segment in segments]
    for segment in out:
        at = segment["address"]
        blocks = []
        for block in segment["blocks"]:
            blocks.append([at, block["size"], block["requested_size"], block["state"]])
            at += block["size"]
        segment["blocks"] = blocks
    # Stands still: blocks pending when the event delay is short may be freed between, never by themselves.
    assert len(again) == len(segments)
    print(json.dumps({"pause": name, "segments": out}), flush=True)
    sys.stdin.readline()


def training():
    model = torch.nn.Sequential(
        *[
            torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
            for _ in range(4)
        ]
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    pause("model")
    for step in range(4):
        data = torch.empty(8, 64 + 8 * step, 256, device="cuda")
        loss = model(data).sum()
        if step in (1, 3):
            pause(f"forward {step}")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    pause("steps")
    del loss, data
    torch.cuda.empty_cache()
    pause("empty_cache")
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
    pause("statistics reset")


def streams():
    kept = []
    side = [torch.cuda.Stream() for _ in range(3)]
    for i in range(20):
        one = torch.empty(1000 * (i + 1), device="cuda")
        big = torch.empty(600_000 + 10_000 * i, device="cuda")
        for stream in side[: i % 4]:
            one.record_stream(stream)
            big.record_stream(stream)
        with torch.cuda.stream(side[i % 3]):
            kept.append(torch.empty(3000 + 700 * i, device="cuda"))
        if i % 3 == 0:
            kept.append(one)
        del one, big
    pause("pending frees")
    torch.cuda.synchronize()
    time.sleep(0.01)
    kept.append(torch.empty(10, device="cuda"))
    pause("settled")
    kept.clear()
    torch.cuda.empty_cache()
    pause("empty_cache")


def mixture(kept, steps, seed=1):
    pick = random.Random(seed)
    for _ in range(steps):
        if kept and pick.random() < 0.45:
            kept.pop(pick.randrange(len(kept)))
        else:
            kept.append(torch.empty(int(10 ** pick.uniform(0, 6.8)), device="cuda"))


def mixed():
    kept = []
    mixture(kept, 300)
    pause("mixed")
    mixture(kept, 300, 2)
    torch.cuda.empty_cache()
    pause("emptied")
    with torch.cuda.stream(torch.cuda.Stream()):
        mixture(kept, 100, 3)
    pause("side stream")
    try:
        torch.empty(1 << 42, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
    pause("out of memory")
    kept.clear()
    torch.cuda.empty_cache()
    pause("nothing")


def private():
    kept = [torch.empty(5000, device="cuda")]
    pause("before")
    pools = []
    if hasattr(torch.cuda, "MemPool"):
        pools = [torch.cuda.MemPool() for _ in range(2)]
        for i, pool in enumerate(pools):
            with torch.cuda.use_mem_pool(pool):
                kept.append(torch.empty(1000 + i, device="cuda"))
                kept.append(torch.empty(3_000_000 + i, device="cuda"))
                gone = torch.empty(7_000_000 + i, device="cuda")
            del gone
        pause("pools")
    else:
        # Before MemPool: a graph's pool.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept.append(torch.empty(1000, device="cuda"))
            kept.append(torch.empty(3_000_000, device="cuda"))
            gone = torch.empty(7_000_000, device="cuda")
            del gone
        pause("pools")
        pools.append(graph)
    mixture(kept, 100)
    pause("mixed")
    del kept[1:3]
    pause("freed in a pool")
    pools.clear()
    kept.clear()
    torch.cuda.empty_cache()
    pause("pools gone")


def devices():
    kept = []
    for device in (1, 0):
        kept.append(torch.empty(5000, device=f"cuda:{device}"))
        pause(f"device {device}")
    for i in range(100):
        kept.append(torch.empty(1000 * i + 1, device=f"cuda:{i % 2}"))
        if i % 3 == 0:
            kept.pop(len(kept) // 2)
    pause("both")


def nothing():
    pause("nothing yet")
    kept = [torch.empty(10, device="cuda")]
    pause("one block")
    kept.clear()
    pause("freed")


def hammer():
    # Without a pause: the reader comes when it likes, and the process is ended from outside.
    def work(seed):
        kept = []
        pick = random.Random(seed)
        while True:
            if len(kept) > 40 or (kept and pick.random() < 0.5):
                kept.pop(pick.randrange(len(kept)))
            else:
                kept.append(torch.empty(int(10 ** pick.uniform(0, 6)), device="cuda"))

    first = [torch.empty(1000, device="cuda") for _ in range(3)]
    for seed in range(8):
        threading.Thread(target=work, args=(seed,), daemon=True).start()
    print(json.dumps({"pause": "hammer", "segments": None}), flush=True)
    sys.stdin.readline()
    first.clear()


def many():
    for count in (1_000, 10_000, 100_000):
        kept = [torch.empty(100 + i % 500, device="cuda") for i in range(count)]
        del kept[::7]
        pause(f"{count} blocks")


globals()[sys.argv[1]]()
