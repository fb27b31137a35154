"""Stops between forward and backward, and says in which module's forward pass the graph has saved each block.

That is known from the numbers that PyTorch gives the nodes of its graph, one after the other, and from hooks that note these numbers where the
forward pass of a module begins and ends.
"""

import json
import sys

import torch
from torch import nn

from blocks import active, block
from nets import Model

DEVICE = "cuda"
WIDTH = 32


class Norm(nn.Module):
    """The norm as Llama has it: its operations come before its parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(x * 2, by)
        return x * by

    @staticmethod
    def backward(ctx, gradient):
        double, by = ctx.saved_tensors
        return gradient * by, (gradient * double).sum(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).view(8, 4, 8).transpose(0, 1) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(1, 2) / 3, -1)
        return self.out((weights @ v).transpose(0, 1).reshape(8, WIDTH))


class Adapted(nn.Module):
    """A layer that is not trained, and what is trained beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.behind = Norm(), Norm()
        self.attention, self.adapted = Attention(), Adapted()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, WIDTH))
        self.by = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        x = x + self.mlp(self.behind(x))
        return torch.tanh(self.adapted(Scale.apply(x, self.by)))


class Tied(nn.Module):
    """The first layer and the last one share their parameter."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(11)])
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return torch.log_softmax(self.head(x), -1)


model = Tied().to(DEVICE)
other = nn.ModuleDict({"plain": Model(WIDTH, [None] * 3), "norms": nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8))})
other = other.to(DEVICE)
# Modules that consist of one operation, with a parameter of their own.
EXACT = (nn.Linear, nn.LayerNorm, nn.BatchNorm1d)
names = {of: (way, name) for way, root in (("model", model), ("other", other)) for name, of in root.named_modules()}
running, times = [], []


def begins(of, inputs):
    running.append((of, torch._C._autograd._get_sequence_nr()))


def ends(of, inputs, output):
    started, begin = running.pop()
    assert started is of
    times.append((begin, torch._C._autograd._get_sequence_nr(), of))


handles = [nn.modules.module.register_module_forward_pre_hook(begins), nn.modules.module.register_module_forward_hook(ends)]


def losses():
    inputs = torch.randn(8, WIDTH, device=DEVICE)
    first = model(torch.arange(8, device=DEVICE)).square().mean()
    return first + other["plain"](inputs).square().mean() + other["norms"](inputs).square().mean()


def innermost(number):
    """The module in whose forward pass the node with this number was made; None outside of all."""
    inside = [time for time in times if time[0] <= number < time[1]]
    return min(inside, key=lambda time: time[1] - time[0])[2] if inside else None


def saved(node):
    tensors = list(getattr(node, "saved_tensors", ()))
    for name in dir(node):
        if name.startswith("_saved_") and torch.is_tensor(value := getattr(node, name)):
            tensors.append(value)
    return tensors


def all_saved(root):
    """For each block that the graph has saved, the modules of the nodes that have saved it."""
    found, waiting, seen = {}, [root], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [other for other, _ in node.next_functions]
        for tensor in saved(node) if node.name() != "torch::autograd::AccumulateGrad" else ():
            found.setdefault(block(tensor), []).append(innermost(node._sequence_nr()))
    return found


losses().backward()
times.clear()
loss = losses()
torch.cuda.synchronize()
for handle in handles:
    handle.remove()
found = all_saved(loss.grad_fn)
parameters = {block(parameter) for root in (model, other) for parameter in root.parameters()}
told = {
    "ready": True,
    "sizes": active(),
    # The models and the names of modules in them; of what is saved outside of all modules nothing.
    "saved": {
        address: [list(names[of]) if of is not None else None for of in modules]
        for address, modules in found.items()
        if address not in parameters
    },
    "exact": [address for address, modules in found.items() if all(isinstance(of, EXACT) for of in modules)],
}
print(json.dumps(told), flush=True)
sys.stdin.readline()
