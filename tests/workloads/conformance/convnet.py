"""A convolutional network, inference only: images of three sizes."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
    nn.Flatten(), nn.Linear(32 * 16, 100),
).cuda().eval()
results = []
with torch.inference_mode():
    for turn in range(9):
        side = (32, 96, 160)[turn % 3]
        results.append(model(torch.randn(4, 3, side, side, device="cuda")))
        if turn % 4 == 3:
            del results[0]
