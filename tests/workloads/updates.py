"""Trains with optimizers of several kinds, and tells PyTorch's own numbers at the end of each step.

`updates.py KIND`. First line: that it is ready; memscope is attached then. It waits for a line with a number of iterations, trains, and
tells for each step what was allocated, the peak since the step before, and what was reserved.
"""

import json
import os
import sys

import torch
from torch import nn

DEVICE = os.environ["MEMSCOPE_TEST_DEVICE"]
GPU = getattr(torch, DEVICE)
KIND = sys.argv[1]
SIZE = 1 << 18
steps = []


def told():
    """A step ends here."""
    steps.append([GPU.memory_allocated(), GPU.max_memory_allocated(), GPU.memory_reserved()])
    GPU.reset_peak_memory_stats()


def parameters(count):
    return [nn.Parameter(torch.empty(SIZE, device=DEVICE)) for _ in range(count)]


class Wrapper(torch.optim.Optimizer):
    """An optimizer whose step calls those of others, as wrappers of large frameworks do."""

    def __init__(self, inner):
        super().__init__([one for each in inner for one in each.param_groups[0]["params"]], {})
        self.inner = inner

    def step(self, closure=None):
        kept = torch.empty(7 * SIZE, device=DEVICE)
        for each in self.inner:
            with torch.profiler.record_function("part"):
                each.step()
        del kept


def loss(parameters):
    sums = [(one * 2).sum() for one in parameters]
    result = sums[0]
    for one in sums[1:]:
        result = result + one
    return result


def plain(iterations):
    """The first step allocates the optimizer's state, and so does a parameter that comes later. Hooks allocate, too."""
    own = parameters(4)
    optimizer = torch.optim.AdamW(own, foreach=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    optimizer.register_step_post_hook(lambda *_: torch.empty(20 * SIZE, device=DEVICE))
    for iteration in range(iterations):
        if iteration == 4:
            own += parameters(3)
            optimizer.add_param_group({"params": own[-3:]})
        loss(own).backward()
        optimizer.step()
        schedule.step()
        told()
        optimizer.zero_grad()


def accumulated(iterations):
    """Three passes for a step, and some of the steps are skipped, as a scaler of gradients does."""
    own = parameters(4)
    optimizer = torch.optim.Adam(own)
    for iteration in range(iterations):
        for _ in range(3):
            loss(own).backward()
        if iteration % 4 != 2:
            optimizer.step()
            told()
        optimizer.zero_grad()


def gan(iterations):
    """Two optimizers for a step."""
    one, other = parameters(2), parameters(5)
    first, second = torch.optim.Adam(one), torch.optim.Adam(other, foreach=True)
    for _ in range(iterations):
        loss(one).backward()
        first.step()
        loss(other).backward()
        second.step()
        told()
        first.zero_grad()
        second.zero_grad()


def one_line(iterations):
    """Several optimizers that are stepped at one line."""
    parts = [parameters(2), parameters(1), parameters(3)]
    optimizers = [torch.optim.Adam(part) for part in parts]
    for _ in range(iterations):
        loss(sum(parts, [])).backward()
        for optimizer in optimizers:
            optimizer.step()
        told()
        for optimizer in optimizers:
            optimizer.zero_grad()


def hooked(iterations):
    """An optimizer for each parameter, which is stepped as soon as its gradient is there."""
    own = parameters(6)
    optimizers = {one: torch.optim.Adam([one]) for one in own}
    stepped = []

    def step(parameter):
        optimizers[parameter].step()
        stepped.append(parameter)
        if len(stepped) % len(own) == 0:
            told()
        optimizers[parameter].zero_grad()

    for one in own:
        one.register_post_accumulate_grad_hook(step)
    for _ in range(iterations):
        loss(own).backward()


def nested(iterations):
    one, other = parameters(2), parameters(3)
    optimizer = Wrapper([torch.optim.Adam(one), torch.optim.Adam(other), torch.optim.SGD(one, momentum=0.5)])
    for _ in range(iterations):
        loss(one + other).backward()
        optimizer.step()
        told()
        optimizer.zero_grad()


def raising(iterations):
    """What is called inside of a step raises now and then; the step ends all the same."""
    own = parameters(3)
    optimizer = torch.optim.Adam(own)

    def closure():
        optimizer.zero_grad()
        torch.empty(9 * SIZE, device=DEVICE)
        with torch.profiler.record_function("inside"):
            loss(own).backward()
            if len(steps) % 3 == 1:
                raise ValueError("as is done with a loss that is no number")

    for _ in range(iterations):
        try:
            optimizer.step(closure)
        except ValueError:
            pass
        told()


torch.empty(1, device=DEVICE)
print(json.dumps({}), flush=True)
iterations = int(sys.stdin.readline())
GPU.reset_peak_memory_stats()
KINDS = [plain, accumulated, gan, one_line, hooked, nested, raising]
{kind.__name__: kind for kind in KINDS}[KIND](iterations)
print(json.dumps({"steps": steps}), flush=True)
sys.stdin.readline()
