"""A generator and a discriminator, each with an optimizer of its own."""
# verdicts: clean
# verdicts: steps optimizer

import torch
from torch import nn
from torch.nn import functional


def setup():
    global generator, discriminator, of_generator, of_discriminator
    generator = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 256)).cuda()
    discriminator = nn.Sequential(nn.Linear(256, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)).cuda()
    of_generator = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), betas=(0.5, 0.999))


def step(i):
    real = torch.randn(32, 256, device="cuda")
    ones, zeros = torch.ones(32, 1, device="cuda"), torch.zeros(32, 1, device="cuda")
    made = generator(torch.randn(32, 32, device="cuda"))
    of_discriminator.zero_grad()
    loss = functional.binary_cross_entropy_with_logits(discriminator(real), ones)
    loss = loss + functional.binary_cross_entropy_with_logits(discriminator(made.detach()), zeros)
    loss.backward()
    of_discriminator.step()
    of_generator.zero_grad()
    functional.binary_cross_entropy_with_logits(discriminator(made), ones).backward()
    of_generator.step()
