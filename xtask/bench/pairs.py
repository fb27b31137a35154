"""Times allocations with their frees, on request.

Reads lines from standard input: `pairs N [DEPTH]` answers with the microseconds per allocation and free (the
best of seven runs of N, and the median), so many Python frames deep; `record KIND [fresh]` switches PyTorch's own recorder (`off`,
`python`, `all`; `fresh`: with a list that grows); `hold N` keeps N blocks; `fill N` switches it on and makes N entries of its trace; `dump FILE`
has PyTorch write its snapshot, and answers with seconds and with what the process's memory grew by at most; `step N` makes N training
steps and answers with the median of their milliseconds; `end` ends. Answers are lines of JSON.
"""

import json
import pickle
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


def fill(entries):
    """A third of so many blocks from a few hundred stacks, most of them given back at once: three entries each."""
    torch.cuda.memory._record_memory_history(max_entries=2 * entries, stacks="python")
    device, kept = torch.device("cuda"), []

    def allocate(number):
        return torch.empty(512 * (1 + number % 50), dtype=torch.uint8, device=device)

    # A line each, as a program of some size has them.
    functions = [eval("\n" * line + "lambda allocate, number: allocate(number)") for line in range(20)]
    for number in range(entries // 3 + entries // 300):
        block = depth(number % 15, lambda: functions[number % 20](allocate, number))
        if number % 100 == 0:
            kept.append(block)
    return kept


def memory(what):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))


def dump(file):
    with open("/proc/self/clear_refs", "w", encoding="ascii") as forget:
        forget.write("5")
    before, started = memory("VmRSS"), time.perf_counter()
    snapshot = torch.cuda.memory._snapshot()
    taken = time.perf_counter()
    with open(file, "wb") as opened:
        pickle.dump(snapshot, opened)
    ended = time.perf_counter()
    return {"seconds": ended - started, "of_it_pickle": ended - taken, "growth_bytes": memory("VmHWM") - before}


class Training:
    """A small transformer, made when it is asked for first."""

    def __init__(self):
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, device="cuda")
        self.model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.zeros(8, 64, 128, device="cuda")
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.batch).sum().backward()
        self.optimizer.step()

    def steps(self, count):
        """Milliseconds of the middle one of so many steps, and how many allocations a step makes."""
        times, before = [], torch.cuda.memory_stats()["allocation.all.allocated"]
        for _ in range(count):
            started = time.perf_counter()
            self.step()
            times.append((time.perf_counter() - started) * 1e3)
        allocations = (torch.cuda.memory_stats()["allocation.all.allocated"] - before) // count
        return {"median": statistics.median(times), "allocations": allocations, "parameters": self.parameters}


training = None
torch.empty(1, device="cuda")
print(json.dumps({"ready": torch.__version__}), flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "pairs":
        # Around the loop are this module, a lambda, the list and the loop's own function.
        levels = int(rest[1]) - 5 if len(rest) > 1 else 20
        times = depth(levels, lambda: [run(int(rest[0])) for _ in range(7)])
        print(json.dumps({"best": min(times), "median": statistics.median(times)}), flush=True)
    elif word == "hold":
        kept = [torch.empty(1024 + 512 * (n % 7), dtype=torch.uint8, device=torch.device("cuda")) for n in range(int(rest[0]))]
        print(json.dumps({"hold": len(kept)}), flush=True)
    elif word == "fill":
        kept = fill(int(rest[0]))
        count = sum(len(trace) for trace in torch.cuda.memory._snapshot()["device_traces"])
        print(json.dumps({"fill": count}), flush=True)
    elif word == "dump":
        print(json.dumps(dump(rest[0])), flush=True)
    elif word == "record":
        if rest[0] == "off":
            torch.cuda.memory._record_memory_history(enabled=None)
        else:
            bounds = {} if "fresh" in rest else {"max_entries": 100_000}
            torch.cuda.memory._record_memory_history(stacks=rest[0], **bounds)
        print(json.dumps({"record": rest[0]}), flush=True)
    elif word == "step":
        training = training or Training()
        print(json.dumps(training.steps(int(rest[0]))), flush=True)
    elif word == "end":
        break
