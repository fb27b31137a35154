"""What PyTorch's own snapshot says of blocks."""

import torch


def block(tensor):
    """The address of the memory of a tensor."""
    return tensor.untyped_storage().data_ptr()


def active():
    """The sizes of all blocks that are handed out, by their addresses."""
    return {
        block["address"]: block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
