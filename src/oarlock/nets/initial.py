"""Initial values, drawn on the CPU wherever the weights are: a generator belongs to one device, and so every device
begins with the same values."""

import torch
from torch import Tensor, nn

STD = 0.02


@torch.no_grad()
def truncated_normal_(weight: Tensor, random: torch.Generator) -> None:
    weight.copy_(nn.init.trunc_normal_(torch.empty(weight.shape), std=STD, generator=random))


@torch.no_grad()
def uniform_(weight: Tensor, most: float, random: torch.Generator) -> None:
    """Between 0 and `most`."""
    weight.copy_(nn.init.uniform_(torch.empty(weight.shape), 0, most, random))
