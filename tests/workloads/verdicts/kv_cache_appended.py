"""A server decodes one token at a time, and appends keys and values to a cache that nobody trims."""
# verdicts: leak
# verdicts: held by workload.cache[0]
# verdicts: steps pattern

import torch
from torch import nn

LAYERS = 4
cache = [[] for _ in range(LAYERS)]


def setup():
    global embedding, keys, values, norms
    embedding = nn.Embedding(1000, 128).cuda()
    keys = nn.ModuleList(nn.Linear(128, 128) for _ in range(LAYERS)).cuda()
    values = nn.ModuleList(nn.Linear(128, 128) for _ in range(LAYERS)).cuda()
    norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(LAYERS)).cuda()


@torch.inference_mode()
def step(i):
    token = torch.randint(0, 1000, (16, 1), device="cuda")
    hidden = embedding(token)
    for layer in range(LAYERS):
        normal = norms[layer](hidden)
        key = keys[layer](normal)  # LEAK
        value = values[layer](normal)  # LEAK
        cache[layer].append((key, value))
        recent = torch.cat([value for _, value in cache[layer][-8:]], dim=1)
        hidden = hidden + torch.softmax(recent, dim=1).mean(dim=1, keepdim=True)
