"""A learner with a replay buffer for 80 transitions: it fills, and then the oldest one makes place for the newest."""
# verdicts: clean
# verdicts: steps optimizer

import collections
import random

import torch
from torch import nn

numbers = random.Random(5)
buffer = collections.deque(maxlen=80)


def setup():
    global policy, optimizer
    policy = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)).cuda()
    optimizer = torch.optim.Adam(policy.parameters())


def step(i):
    with torch.no_grad():
        state = torch.randn(64, 64, device="cuda")
        values = policy(state)
    buffer.append((state, values))
    chosen = numbers.choices(buffer, k=4)
    states = torch.cat([state for state, _ in chosen])
    targets = torch.cat([values for _, values in chosen])
    loss = (policy(states) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
