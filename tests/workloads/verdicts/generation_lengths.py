"""A server that generates: each answer has another length, and its keys and values go with it."""
# verdicts: clean
# verdicts: steps pattern unknown

import random

import torch
from torch import nn

numbers = random.Random(13)


def setup():
    global embedding, projection, output
    embedding = nn.Embedding(500, 64).cuda()
    projection = nn.Linear(64, 128).cuda()
    output = nn.Linear(64, 500).cuda()


@torch.inference_mode()
def step(i):
    token = torch.zeros(numbers.randrange(1, 9), 1, dtype=torch.long, device="cuda")
    cache = torch.empty(len(token), 0, 128, device="cuda")
    for _ in range(numbers.randrange(5, 40)):
        hidden = embedding(token)
        cache = torch.cat([cache, projection(hidden)], dim=1)
        hidden = hidden + cache[:, :, 64:].mean(dim=1, keepdim=True)
        token = output(hidden).argmax(dim=-1)
