"""Classifier heads, initial values, and lists of modules that type checkers can see into."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class Modules(nn.ModuleList, Generic[M]):
    """Hold modules as `nn.ModuleList` does, with a type for what it holds."""

    if TYPE_CHECKING:

        def __getitem__(self, index: int) -> M: ...  # type: ignore[override]

        def __iter__(self) -> Iterator[M]: ...


class NamedModules(nn.ModuleDict, Generic[M]):
    """Hold modules as `nn.ModuleDict` does, with a type for what it holds."""

    if TYPE_CHECKING:

        def __getitem__(self, name: str) -> M: ...


STD = 0.02


@torch.no_grad()
def truncated_normal_(weight: Tensor, random: torch.Generator) -> None:
    if not weight.is_meta:  # on which nothing is drawn
        weight.copy_(nn.init.trunc_normal_(torch.empty(weight.shape), std=STD, generator=random))


@torch.no_grad()
def uniform_(weight: Tensor, most: float, random: torch.Generator) -> None:
    """Draw new values between 0 and `most`."""
    weight.copy_(nn.init.uniform_(torch.empty(weight.shape), 0, most, random))


def new_head(features: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    head = nn.Linear(features, outputs)
    truncated_normal_(head.weight, generator)
    nn.init.zeros_(head.bias)
    return head


@torch.no_grad()
def without_output(head: nn.Linear, output: int) -> nn.Linear:
    """Return a head that lacks one output of another.

    >>> head = nn.Linear(2, 3)
    >>> torch.equal(without_output(head, 1).weight, head.weight[[0, 2]])
    True
    """
    kept = [row for row in range(head.out_features) if row != output]
    less = nn.Linear(head.in_features, len(kept), device=head.weight.device)
    less.weight.copy_(head.weight[kept])
    less.bias.copy_(head.bias[kept])
    return less.requires_grad_(head.weight.requires_grad)


class GrowingHead(nn.Module):
    """Hold one linear head for all classes, which gains outputs with every task and keeps those it has.

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
