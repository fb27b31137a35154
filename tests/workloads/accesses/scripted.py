"""Runs operators in an order that a seed chooses, each as a statement of its own, and keeps what PyTorch itself says of each: a
TorchDispatchMode in the same run sees every operator, with its tensors and its schema.

Before each statement `bitwise_left_shift` of a tensor of the CPU is called, which no statement uses: in memscope's rows it tells where
the next statement begins. Compared is the memory of the tensors in `pool`; what an operator takes for itself only is not.
"""

import json
import os
import random
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

seed, count = int(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
device = os.environ["MEMSCOPE_TEST_DEVICE"]
pool = [torch.randn(8, 8, device=device) for _ in range(8)]
rows = torch.tensor([1, 2, 5], device=device)
linear = torch.nn.Linear(8, 8, device=device)
norm = torch.nn.LayerNorm(8, device=device)
wrong = torch.ones(3, 3, device=device)
failures = 0
fence = torch.ones(1, dtype=torch.int32)


def address(tensor):
    return tensor.untyped_storage().data_ptr() if tensor.device.type == device else 0


class Seen(TorchDispatchMode):
    """Notes what each operator reads and writes, by its schema."""

    def __init__(self):
        super().__init__()
        self.touched = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        schema = function._schema
        returns = [one.alias_info for one in schema.returns]
        is_view = any(info is not None and not info.is_write for info in returns)
        name = schema.name.removeprefix("aten::")
        given = set()
        for number, one in enumerate(schema.arguments):
            value = args[number] if number < len(args) else kwargs.get(one.name)
            writes = bool(one.alias_info and one.alias_info.is_write)
            may_be_view = one.alias_info is not None and not writes
            for tensor in tree_leaves(value):
                if isinstance(tensor, torch.Tensor) and address(tensor):
                    given.add(address(tensor))
                    if not may_be_view:
                        self.touched.add((address(tensor), "WRITE" if writes else "READ"))
        # An operator that fails is given its tensors, too.
        result = function(*args, **kwargs)
        if not is_view and not name.startswith(("empty", "new_empty")):
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor) and address(tensor) and address(tensor) not in given:
                    self.touched.add((address(tensor), "WRITE"))
        return result


def fails(a):
    """An exception leaves an operator that another one has called."""
    global failures
    try:
        torch.nn.functional.linear(a, wrong)
    except RuntimeError:
        failures += 1


def statements(a, b, c):
    """The statements, each a function that returns a new tensor for the pool, or None."""
    return [
        lambda: a + b,
        lambda: a.mul_(0.5),
        lambda: torch.add(a, b, out=c),
        lambda: torch.cat([a[:4], b[:4]]),
        lambda: torch.stack([a, b])[0].contiguous(),
        lambda: torch._foreach_add([a, b, c], 1.0)[1],
        lambda: torch._foreach_mul_([a, b], 0.5),
        lambda: linear(a).detach(),
        lambda: norm(b).detach(),
        lambda: a @ b,
        lambda: torch.addmm(a, b, c),
        lambda: torch.where(a > b, a, c),
        lambda: a.view(-1).view(8, 8),
        lambda: a.t().contiguous(),
        lambda: a.to(torch.float64).to(torch.float32),
        lambda: a.clone(),
        lambda: b.copy_(a),
        lambda: c.zero_(),
        lambda: a[rows],
        lambda: a.index_put_((rows,), b[rows]),
        lambda: torch.topk(a, 3),
        lambda: a.softmax(-1),
        lambda: torch.nn.functional.gelu(a),
        lambda: a.sum(0),
        lambda: torch.split(a, 4)[0].clone(),
        lambda: a.masked_fill(b > 0, 0.0),
        lambda: torch.empty_like(a),
        lambda: torch.zeros_like(a),
        lambda: torch.nn.functional.mse_loss(a, b),
        lambda: a.addcmul_(b, c),
        lambda: torch.lerp(a, b, 0.5),
        lambda: torch.einsum("ij,jk->ik", a, b),
        lambda: torch.gather(a, 1, torch.zeros(8, 8, dtype=torch.long, device=device)),
        lambda: a.unsqueeze(0).expand(3, 8, 8).sum(0),
        lambda: torch.max(a, 1),
        lambda: torch.clamp(a, -1.0, 1.0),
        lambda: fails(a),
    ]


print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
told = []
for _ in range(count):
    places = [chance.randrange(len(pool)) for _ in range(3)]
    a, b, c = (pool[place] for place in places)
    choice = chance.randrange(len(statements(a, b, c)))
    held = {address(one) for one in pool}
    torch.bitwise_left_shift(fence, 1)
    with Seen() as seen:
        new = statements(a, b, c)[choice]()
    if isinstance(new, torch.Tensor) and new.shape == (8, 8) and new.dtype == torch.float32:
        pool[places[0]] = new
        held.add(address(new))
    told.append({"statement": choice, "touched": sorted(one for one in seen.touched if one[0] in held), "held": sorted(held)})
    del new, a, b, c
torch.bitwise_left_shift(fence, 1)
print(json.dumps({"told": told, "failures": failures}), flush=True)
sys.stdin.readline()
