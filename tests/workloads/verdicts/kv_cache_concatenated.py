"""A server decodes one token at a time; keys and values are concatenated to those before, for a request that never ends.

At each moment there is one tensor for each layer's keys and one for its values. There are never more of them: they grow.
"""
# verdicts: leak
# verdicts: held by workload.cache
# verdicts: steps pattern unknown

import torch
from torch import nn

LAYERS = 4


def setup():
    global embedding, projections, norms, cache
    embedding = nn.Embedding(1000, 128).cuda()
    projections = nn.ModuleList(nn.Linear(128, 256) for _ in range(LAYERS)).cuda()
    norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(LAYERS)).cuda()
    cache = [torch.empty(16, 0, 256, device="cuda") for _ in range(LAYERS)]


@torch.inference_mode()
def step(i):
    token = torch.randint(0, 1000, (16, 1), device="cuda")
    hidden = embedding(token)
    for layer in range(LAYERS):
        projected = projections[layer](norms[layer](hidden))
        cache[layer] = torch.cat([cache[layer], projected], dim=1)  # LEAK
        value = cache[layer][:, :, 128:]
        hidden = hidden + value.mean(dim=1, keepdim=True)
