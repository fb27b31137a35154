"""A transformer trained with AdamW: what most processes do most of the time."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
model = nn.Sequential(
    nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(32 * 128, 10)
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
history = []
for step in range(6):
    # Batches of different sizes, as a loader gives them at the end of an epoch.
    batch = torch.randn(8 if step % 3 else 5, 32, 128).pin_memory().to("cuda", non_blocking=True)
    labels = torch.randint(0, 10, (len(batch),), device="cuda")
    loss = functional.cross_entropy(model(batch), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    history.append(loss.detach())
