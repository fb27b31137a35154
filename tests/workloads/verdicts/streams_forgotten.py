"""Batches are made ahead on a stream of their own; the list of those in flight is only ever added to."""
# verdicts: leak
# verdicts: held by workload.in_flight
# verdicts: steps optimizer

import torch
from torch import nn

in_flight = []


def setup():
    global model, optimizer, ahead
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ahead = torch.cuda.Stream()


def step(i):
    with torch.cuda.stream(ahead):
        batch = torch.randn(128, 256, device="cuda")  # LEAK
        ready = ahead.record_event()
    in_flight.append((ready, batch))
    torch.cuda.current_stream().wait_event(ready)
    batch.record_stream(torch.cuda.current_stream())
    loss = model(batch).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
