"""Trains and leaks for as long as it is left alone, and keeps its own record of what it holds.

    trainer.py train PACE_MS | stacks COUNT PACE_MS

`train` is a training loop of four transformer layers with a batch of changing size. Each step it keeps a tensor for good, and one that
is given back a thousand steps later. `stacks` allocates and frees as fast as it can, from so many different stacks, and keeps some
blocks of each for a while. PACE_MS is slept after each step, or each time that all stacks had their turn.

Each line on standard input is a file name: between two steps, PyTorch's own snapshot of segments and blocks is written there, with
what the program itself knows to hold, and the answer is one line of JSON with the moment. The program ends with its input.
"""

import collections
import json
import pickle
import select
import sys
import time

import torch
from torch import nn

# What a moment lies apart from the events before and after it: more than clocks differ by.
APART_S = 0.01
DEVICE = torch.device("cuda")
# Tensors that were kept on purpose, by a number that is never used again.
held = collections.OrderedDict()
made = 0


def keep(tensor):
    global made
    made += 1
    held[made] = tensor


def moment(file, step):
    torch.cuda.synchronize()
    time.sleep(APART_S)
    taken = time.time_ns()
    time.sleep(APART_S)
    record = {
        "segments": torch.cuda.memory_snapshot(),
        "held": {number: tensor.untyped_storage().nbytes() for number, tensor in held.items()},
    }
    with open(file, "wb") as opened:
        pickle.dump(record, opened)
    print(json.dumps({"unix_ns": taken, "step": step, "held": len(held)}), flush=True)


def obey(step):
    """Answers what was asked since the last step. False: nobody will ask any more."""
    while select.select([sys.stdin], [], [], 0)[0]:
        line = sys.stdin.readline()
        if not line:
            return False
        moment(line.strip(), step)
    return True


def train(pace_ms):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    passing = collections.deque()
    step = 0
    # What the optimizer keeps for itself comes with the first step, and is no part of the record.
    while step < 3 or obey(step):
        batch = torch.randn(4 + step % 5, 32, 128, device=DEVICE)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        keep(torch.empty(8192 + 512 * (step % 7), dtype=torch.uint8, device=DEVICE))
        keep(torch.empty(20480, dtype=torch.uint8, device=DEVICE))
        passing.append(made)
        if len(passing) > 1000:
            del held[passing.popleft()]
        # What a step leaves behind by accident is no part of the record.
        del batch, loss
        step += 1
        time.sleep(pace_ms / 1000)


def stacks(count, pace_ms):
    # A line each, as a program of some size has them.
    functions = [eval("\n" * line + "lambda size: torch.empty(size, dtype=torch.uint8, device=DEVICE)") for line in range(count)]
    step = 0
    waiting = collections.deque()
    while obey(step):
        for function in functions:
            for size in (512, 3000, 70_000):
                function(size)
        keep(functions[step % count](4096))
        waiting.append(made)
        if len(waiting) > 2000:
            del held[waiting.popleft()]
        step += 1
        time.sleep(pace_ms / 1000)


def main():
    torch.empty(1, device=DEVICE)
    print(json.dumps({"ready": torch.__version__}), flush=True)
    {"train": train, "stacks": stacks}[sys.argv[1]](*map(int, sys.argv[2:]))


main()
