"""Two losses share a forward pass; the first one is kept for a plot, and with it all that its backward pass would need."""
# verdicts: leak
# verdicts: held by workload.history
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional

history = []


def setup():
    global body, classifier, regressor, optimizer
    body = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU()).cuda()
    classifier, regressor = nn.Linear(256, 10).cuda(), nn.Linear(256, 1).cuda()
    parameters = [*body.parameters(), *classifier.parameters(), *regressor.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)


def step(i):
    batch = torch.randn(64, 256, device="cuda")
    labels = torch.randint(0, 10, (64,), device="cuda")  # LEAK
    targets = torch.randn(64, 1, device="cuda")
    hidden = body(batch)  # LEAK
    first = functional.cross_entropy(classifier(hidden), labels)  # LEAK
    second = functional.mse_loss(regressor(hidden), targets)
    optimizer.zero_grad()
    first.backward(retain_graph=True)
    second.backward()
    optimizer.step()
    history.append(first)
