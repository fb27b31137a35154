"""What was generated is kept on the device, and each answer has another length."""
# verdicts: leak
# verdicts: held by workload.answers
# verdicts: steps pattern unknown

import random

import torch
from torch import nn

numbers = random.Random(3)
answers = []


def setup():
    global embedding, recurrent, output
    embedding = nn.Embedding(500, 64).cuda()
    recurrent = nn.GRUCell(64, 128).cuda()
    output = nn.Linear(128, 500).cuda()


@torch.no_grad()
def step(i):
    state = torch.zeros(8, 128, device="cuda")
    token = torch.zeros(8, dtype=torch.long, device="cuda")
    states = []
    for _ in range(numbers.randrange(4, 24)):
        state = recurrent(embedding(token), state)
        token = output(state).argmax(dim=-1)
        states.append(state)
    answers.append(torch.stack(states, dim=1))  # LEAK
