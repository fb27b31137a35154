"""A cache of embeddings by text that has room for 60: full after as many steps, and from then on the oldest goes."""
# verdicts: clean
# verdicts: steps optimizer

import collections

import torch
from torch import nn

ROOM = 60
cache = collections.OrderedDict()


def setup():
    global encoder, head, optimizer
    encoder = nn.Sequential(nn.Linear(128, 256), nn.Tanh()).cuda()
    head = nn.Linear(256, 1).cuda()
    optimizer = torch.optim.AdamW(head.parameters())


def embedded(key):
    if key in cache:
        cache.move_to_end(key)
        return cache[key]
    with torch.no_grad():
        cache[key] = encoder(torch.randn(32, 128, device="cuda"))
    if len(cache) > ROOM:
        cache.popitem(last=False)
    return cache[key]


def step(i):
    # Each text comes three times: now, after 10 steps, and after 25.
    loss = sum(head(embedded(key)).square().mean() for key in {i, max(0, i - 10), max(0, i - 25)})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
