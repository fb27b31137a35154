"""From step 30 on an average of the weights is kept beside them."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn

average = None


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


def step(i):
    global average
    batch = torch.randn(32, 128, device="cuda")
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i == 30:
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
        )
    if average is not None:
        average.update_parameters(model)
