"""A cache of attention masks whose key has the step in it, so that nothing in it is ever found again."""
# verdicts: leak
# verdicts: held by workload.masks
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional

masks = {}


def mask(step, length):
    key = (step, length)
    if key not in masks:
        masks[key] = torch.zeros(length, length, device="cuda")  # LEAK
    return masks[key]


def setup():
    global embedding, attention, output, optimizer
    embedding = nn.Embedding(1000, 64).cuda()
    attention = nn.MultiheadAttention(64, 4, batch_first=True).cuda()
    output = nn.Linear(64, 1000).cuda()
    parameters = [*embedding.parameters(), *attention.parameters(), *output.parameters()]
    optimizer = torch.optim.AdamW(parameters)


def step(i):
    tokens = torch.randint(0, 1000, (8, 48), device="cuda")
    hidden = embedding(tokens)
    hidden, _ = attention(hidden, hidden, hidden, attn_mask=mask(i, 48), need_weights=False)
    loss = functional.cross_entropy(output(hidden).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
