"""What makes a reading of objects long: a graph that was never detached, a linked list, an optimizer that keeps all its parameters for each
of them, and lists that lie in themselves a million times over. The argument says which: deep (the first two) or much."""

import json
import sys

import torch

NAME = "p" * 400


class Node:
    def __init__(self, next):
        self.next = next
        self.value = torch.zeros(4, device="cuda")


# A gradient and some graphs, by which it is known where tensors keep theirs.
weight = torch.ones(4, device="cuda", requires_grad=True)
(weight * weight).sum().backward()
losses = [(weight * number).sum() for number in range(20)]

if sys.argv[1] == "deep":
    head = None
    for _ in range(2_000):
        head = Node(head)

    hidden = torch.ones(4, device="cuda", requires_grad=True)
    for _ in range(3_000):
        hidden = hidden.tanh()
else:
    model = torch.nn.Module()
    for number in range(10_000):
        parameter = torch.nn.Parameter(torch.empty(1, device="cuda"))
        model.register_parameter(f"{NAME}{number}", parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            optimizer.state[parameter][name] = torch.empty(1, device="cuda")

    small = torch.nn.Module()
    for number in range(600):
        small.register_parameter(f"q{number}", torch.nn.Parameter(torch.empty(1, device="cuda")))
    greedy = torch.optim.SGD(small.parameters(), lr=0.1)
    nested = [torch.empty(1, device="cuda")]
    for _ in range(4):
        nested = [nested] * 1000
    for parameter in small.parameters():
        greedy.state[parameter]["group"] = greedy.param_groups[0]
        greedy.state[parameter]["nested"] = nested

print(json.dumps({"graph": 3_000, "list": 2_000}), flush=True)
sys.stdin.read()
