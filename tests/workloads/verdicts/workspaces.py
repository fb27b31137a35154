"""Matrix products want a workspace for each stream that they run on, and the streams come into use one after the other."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn

STREAMS = 4


def setup():
    global model, optimizer, streams, tables
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    tables = {}


def step(i):
    batch = torch.randn(64, 256, device="cuda")
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    number = min(i // 15, STREAMS) - 1
    if number >= 0:
        if number not in tables:
            tables[number] = torch.randn(256, 64, device="cuda")
        streams[number].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[number]), torch.no_grad():
            scores = torch.mm(batch, tables[number])
        torch.cuda.current_stream().wait_stream(streams[number])
        scores.record_stream(torch.cuda.current_stream())
