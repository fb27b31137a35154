"""What PyTorch itself says of the memory of a model and its optimizer, by name, for the scripts that tell it."""

import contextlib

import torch

DEVICE = "cuda"
rows = []
left_out = {}


def plain(tensor):
    """The tensors with memory of their own that a tensor consists of."""
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        return plain(local)
    return [tensor] if tensor.device.type == DEVICE else []


def row(case, category, owner, name, key, tensor):
    for part in plain(tensor):
        if part.untyped_storage().data_ptr() != 0:
            rows.append(
                {
                    "case": case,
                    "category": category,
                    "owner": owner,
                    "name": name,
                    "key": key,
                    "block": part.untyped_storage().data_ptr(),
                }
            )


def tensors_in(value, key):
    if isinstance(value, torch.Tensor):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from tensors_in(inner, f"{key}[{name!r}]" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from tensors_in(inner, f"{key}[{number}]")


def tell(case, model, optimizer=None, at="model"):
    owner = f"__main__.{case}.{at}"
    names = {}
    for name, parameter in model.named_parameters():
        names[parameter] = name
        row(case, "weights", owner, name, "", parameter)
        if parameter.grad is not None:
            row(case, "gradients", owner, name, "", parameter.grad)
    for name, buffer in model.named_buffers():
        row(case, "buffers", owner, name, "", buffer)
    if optimizer is not None:
        for parameter, state in optimizer.state.items():
            for key, tensor in tensors_in(state, ""):
                owner = f"__main__.{case}.optimizer"
                row(case, "optimizer_state", owner, names[parameter], key, tensor)


class Case:
    """What a program has: a model, an optimizer and what else it keeps."""


@contextlib.contextmanager
def optional(what):
    """What this PyTorch, or the simulated device, cannot do is said, and is no row."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        left_out[what] = f"{type(error).__name__}: {error}"[:300]
