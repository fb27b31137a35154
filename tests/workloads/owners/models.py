"""Models of many kinds, each with what PyTorch itself says of its memory: `named_parameters()`, `named_buffers()`, `.grad` and `optimizer.state`.

One line of JSON, with a row for each tensor on the device: its category, where its owner is, its name there, and its block.
"""

import copy
import json
import os
import sys
import tempfile

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from blocks import active
from named import DEVICE, Case, left_out, optional, row, rows, tell


def train(case, model, make_optimizer, steps=2, shape=(4, 16)):
    it = Case()
    globals()[case] = it
    it.model = model.to(DEVICE)
    it.optimizer = make_optimizer(it.model.parameters())
    for _ in range(steps):

        def closure():
            it.optimizer.zero_grad()
            loss = it.model(torch.randn(*shape, device=DEVICE)).float().pow(2).mean()
            loss.backward()
            return loss

        it.optimizer.step(closure)
    tell(case, it.model, it.optimizer)
    return it


def layers():
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 16))


train("adamw", layers(), torch.optim.AdamW)
train("adam_amsgrad", layers(), lambda p: torch.optim.Adam(p, amsgrad=True))
train("sgd", layers(), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
train("rmsprop", layers(), lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5))
train("lbfgs", layers(), lambda p: torch.optim.LBFGS(p, max_iter=3))
train("adagrad", layers(), torch.optim.Adagrad)
with optional("capturable"):
    train("capturable", layers(), lambda p: torch.optim.Adam(p, capturable=True))
with optional("adafactor"):
    train("adafactor", layers(), torch.optim.Adafactor)


class Tied(nn.Module):
    """The same parameter under two names, which named_parameters() tells once."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(16, 16, bias=False)
        self.body = nn.ModuleDict({"first": nn.Linear(16, 16)})
        self.head = nn.Linear(16, 16, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(16, 16))
        self.register_buffer("passing", torch.ones(16), persistent=False)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(16)) for _ in range(3)])

    def forward(self, x):
        x = self.body["first"](self.embedding(x)) @ self.mask
        for scale in self.scales:
            x = x * scale
        return self.head(x) + self.passing


train("tied", Tied(), torch.optim.AdamW)


class Lora(nn.Module):
    """A frozen layer with two small ones that learn."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


train(
    "lora",
    nn.Sequential(*[Lora(nn.Linear(16, 16), 2) for _ in range(3)]),
    lambda p: torch.optim.AdamW([one for one in p if one.requires_grad]),
)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([layers() for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


train("checkpointed", Checkpointed(), torch.optim.AdamW)

ema = Case()
ema.model = layers().to(DEVICE)
ema.average = torch.optim.swa_utils.AveragedModel(
    ema.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
)
ema.average.update_parameters(ema.model)
tell("ema", ema.model)
tell("ema", ema.average, at="average")

teacher = Case()
teacher.model = layers().to(DEVICE).eval().requires_grad_(False)
teacher.copy = copy.deepcopy(teacher.model)
tell("teacher", teacher.model)
tell("teacher", teacher.copy, at="copy")

train("flattened", nn.Sequential(nn.Linear(16, 16), nn.Flatten()), torch.optim.AdamW)
with optional("weight_norm"):
    train(
        "weight_norm",
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))),
        torch.optim.AdamW,
    )
with optional("transformer"):
    train(
        "transformer",
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0),
        torch.optim.AdamW,
        shape=(2, 4, 16),
    )
train("again", layers(), torch.optim.AdamW)

with optional("compile"):
    compiled = Case()
    compiled.model = torch.compile(layers().to(DEVICE), backend="eager")
    compiled.optimizer = torch.optim.AdamW(compiled.model.parameters())
    compiled.model(torch.randn(4, 16, device=DEVICE)).mean().backward()
    compiled.optimizer.step()
    tell("compiled", compiled.model, compiled.optimizer)

held = vars(adamw.model)  # noqa: F821
local_store = tempfile.mkdtemp()
with optional("distributed"):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{local_store}/store", rank=0, world_size=1
    )
with optional("ddp"):
    ddp = Case()
    ddp.model = nn.parallel.DistributedDataParallel(layers().to(DEVICE))
    ddp.optimizer = torch.optim.AdamW(ddp.model.parameters())
    ddp.model(torch.randn(4, 16, device=DEVICE)).mean().backward()
    ddp.optimizer.step()
    tell("ddp", ddp.model, ddp.optimizer)
with optional("fsdp2"):
    from torch.distributed.fsdp import fully_shard

    fsdp2 = Case()
    fsdp2.model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(DEVICE)
    mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (1,))
    fully_shard(fsdp2.model[0], mesh=mesh)
    fully_shard(fsdp2.model, mesh=mesh)
    fsdp2.optimizer = torch.optim.AdamW(fsdp2.model.parameters())
    fsdp2.model(torch.randn(4, 16, device=DEVICE)).mean().backward()
    fsdp2.optimizer.step()
    tell("fsdp2", fsdp2.model, fsdp2.optimizer)


def in_a_function():
    model = nn.Linear(16, 16).to(DEVICE)
    for name, parameter in model.named_parameters():
        row("function", "weights", "in_a_function.<locals>.model", name, "", parameter)
    torch.cuda.synchronize()
    told = {
        "torch": torch.__version__,
        "rows": rows,
        "left_out": left_out,
        "sizes": active(),
    }
    print(json.dumps(told), flush=True)
    sys.stdin.readline()
    print(model)


in_a_function()
os._exit(0)
