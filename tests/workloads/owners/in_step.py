"""Trains without an end, and says the names of its weights and of what its optimizer keeps for each, as PyTorch has them between two steps.

What is divided among processes is there for the first of two, which are none: the communication does nothing. The argument says how the model
is divided: plain, fsdp2, fsdp1 (flat parameters) or fsdp1_orig.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from named import DEVICE

HOW = sys.argv[1]
BLOCKS = 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.norm = nn.LayerNorm(64)
        self.down = nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.norm(self.up(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def divided(model):
    if HOW == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh(DEVICE, (2,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if HOW.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({Block})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=0, use_orig_params=HOW == "fsdp1_orig")
    return model


def has_memory(tensor):
    tensor = getattr(tensor, "_local_tensor", tensor)
    return tensor.device.type == DEVICE and tensor.untyped_storage().data_ptr() != 0


def names(model, optimizer):
    of = {parameter: name.replace("_fsdp_wrapped_module.", "") for name, parameter in model.named_parameters()}
    weights = [name for parameter, name in of.items() if has_memory(parameter)]
    state = [
        [of[parameter], key]
        for parameter, kept in optimizer.state.items()
        for key, tensor in kept.items()
        if has_memory(tensor)
    ]
    return {"weights": weights, "state": state}


def main():
    if HOW != "plain":
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model = divided(Net().to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters())
    steps = 0
    while True:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 32, device=DEVICE)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps == 3:
            print(json.dumps(names(model, optimizer)), flush=True)


main()
