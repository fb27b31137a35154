"""Each 25 steps model and optimizer are copied to the host; the last three copies are kept."""
# verdicts: clean
# verdicts: steps optimizer

import collections
import io

import torch
from torch import nn

saved = collections.deque(maxlen=3)


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


def on_host(value):
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu")
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, list):
        return [on_host(item) for item in value]
    return value


def step(i):
    batch = torch.randn(32, 128, device="cuda")
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 25 == 24:
        file = io.BytesIO()
        torch.save({"model": on_host(model.state_dict()), "optimizer": on_host(optimizer.state_dict())}, file)
        saved.append(file.getvalue())
