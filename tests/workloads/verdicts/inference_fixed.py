"""A server that answers batches of one shape."""
# verdicts: clean
# verdicts: steps pattern

import torch
from torch import nn


def setup():
    global model, answer
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().eval()


@torch.inference_mode()
def step(i):
    global answer
    batch = torch.randn(8, 32, 64, device="cuda")
    answer = model(batch).mean(dim=1).cpu()
