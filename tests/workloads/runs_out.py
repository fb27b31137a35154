"""A training loop that keeps a tensor of each step until the device is full, and ends by that error.

After five steps it says `begun` and waits for a line. Before it ends it says how many tensors it has kept.
"""
import sys

import torch


def train(model, kept):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad()
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        kept.append(torch.empty(1 << 20, device="cuda"))
        if len(kept) == 5:
            print("begun", flush=True)
            sys.stdin.readline()


def main():
    kept = []
    try:
        train(torch.nn.Linear(64, 64).cuda(), kept)
    finally:
        print("kept", len(kept), flush=True)


main()
