"""A language model whose batches have as many tokens as their longest text."""
# verdicts: clean
# verdicts: steps optimizer

import random

import torch
from torch import nn
from torch.nn import functional

numbers = random.Random(11)


def setup():
    global embedding, encoder, output, optimizer
    embedding = nn.Embedding(500, 64).cuda()
    encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
    output = nn.Linear(64, 500).cuda()
    optimizer = torch.optim.AdamW([*embedding.parameters(), *encoder.parameters(), *output.parameters()])


def step(i):
    length = numbers.randrange(8, 128)
    tokens = torch.randint(0, 500, (numbers.choice([4, 8, 8, 8]), length), device="cuda")
    hidden = encoder(embedding(tokens))
    loss = functional.cross_entropy(output(hidden).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
