"""A model of blocks as transformers have them, whose blocks may be checkpoints."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """`reentrant` says of each block whether it is a checkpoint of that kind; None for a block that is no checkpoint."""

    def __init__(self, width, reentrant):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in reentrant])
        self.reentrant = reentrant

    def forward(self, x):
        for one, reentrant in zip(self.blocks, self.reentrant):
            x = one(x) if reentrant is None else checkpoint(one, x, use_reentrant=reentrant)
        return x
