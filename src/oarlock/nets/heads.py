"""Classifier heads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.nets.initial import truncated_normal_


def new_head(features: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    head = nn.Linear(features, outputs)
    truncated_normal_(head.weight, generator)
    nn.init.zeros_(head.bias)
    return head


class GrowingHead(nn.Module):
    """One linear head for all classes, which gains outputs with every task and keeps those it has.

    >>> head = GrowingHead(4)
    >>> head.grow(2, torch.Generator().manual_seed(0))
    >>> first = head(torch.ones(1, 4))
    >>> head.grow(3, torch.Generator().manual_seed(1))
    >>> torch.allclose(head(torch.ones(1, 4))[:, :2], first)
    True
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(0, features))
        self.bias = nn.Parameter(torch.zeros(0))

    def grow(self, outputs: int, generator: torch.Generator) -> None:
        new = new_head(self.weight.shape[1], outputs, generator).to(self.weight.device)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), new.weight.detach()]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), new.bias.detach()]))

    def reset(self, generator: torch.Generator) -> None:
        truncated_normal_(self.weight, generator)
        nn.init.zeros_(self.bias)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)
