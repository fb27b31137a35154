"""After 60 steps the run begins to record embeddings for a picture, and keeps all of them."""
# verdicts: leak
# verdicts: held by workload.embeddings
# verdicts: begins 60
# verdicts: steps optimizer

import torch
from torch import nn

embeddings = []


def setup():
    global encoder, decoder, optimizer
    encoder = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
    decoder = nn.Linear(64, 256).cuda()
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()])


def step(i):
    batch = torch.randn(128, 256, device="cuda")
    code = encoder(batch)
    loss = (decoder(code) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i >= 60:
        embeddings.append(code.detach().clone())  # LEAK
