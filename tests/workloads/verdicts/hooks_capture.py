"""A hook for looking at activations stays on the model after the look, and captures those of every step."""
# verdicts: leak
# verdicts: held by workload.activations
# verdicts: steps optimizer

import torch
from torch import nn

activations = []


def setup():
    global model, optimizer
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def capture(module, inputs, output):
        activations.append(output.detach())

    model[2].register_forward_hook(capture)


def step(i):
    batch = torch.randn(64, 256, device="cuda")
    loss = model(batch).square().mean()  # LEAK
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
