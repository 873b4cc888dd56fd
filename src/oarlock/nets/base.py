"""What a trunk is, of whatever kind: a pre-trained network, untouched, seen as embed → stages → pool.

Adapters stand at *sites* above the frozen stages. The trunk walks past them and asks from outside what is to be done
there, so a pass of the bare trunk needs no switch and the trunk's tensors belong to no method.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from oarlock.files import fingerprint
from oarlock.nets.card import Card

At = Callable[[int, Tensor], Tensor]  # what is done at the n-th of several places


class TaskNorms(nn.Module, ABC):
    """One task's scale and shift of values at every place that has them: an `At`."""

    weight: Any  # by place
    bias: Any

    @abstractmethod
    def normalise(self, x: Tensor) -> Tensor:
        """What is done before, the same for all tasks."""

    @abstractmethod
    def forward(self, index: int, x: Tensor) -> Tensor: ...


class Trunk(nn.Module, ABC):
    """A frozen network and its card. *Tokens* are its values between stages, [B, …, D]: places, and last what stands
    at each."""

    dim: int  # of its features
    stages: Sequence[Any]
    view_dim: int  # how many values of a bare pass tell images apart

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        self.card = card
        self.model = model.eval().requires_grad_(False)
        rule = card.preprocessing
        self.register_buffer("mean", torch.tensor(rule.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(rule.std).view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def train(self, mode: bool = True) -> "Trunk":
        """Frozen means frozen: batch norms and dropout never enter training mode."""
        return super().train(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Trunk":
        return self  # never written to, so copies of a method share it

    def normalised(self, images: Tensor) -> Tensor:
        return (images.to(self.mean.dtype) / 255 - self.mean) / self.std

    @property
    def view_count(self) -> int:
        """In how many rows of D these values fit."""
        return math.ceil(self.view_dim / self.dim)

    # -- passes of the bare trunk ----------------------------------------------------------------------------

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """uint8 images [B, 3, S, S] → tokens before the first stage."""

    @abstractmethod
    def below(self, images: Tensor, stages: int) -> Tensor:
        """Tokens where adapters begin that leave out the first `stages` stages."""

    @abstractmethod
    def below_and_views(self, images: Tensor, stages: int) -> tuple[Tensor, Tensor]:
        """In one pass: the tokens that `below` gives, and `view_dim` values by which the bare trunk sees the images,
        in rows like features [B, view_count, D]; what is left of the last row is zero."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """The bare trunk's features [B, D]."""

    # -- what adapters need ----------------------------------------------------------------------------------

    @abstractmethod
    def sites(self, stages: int) -> list[int]:
        """The places for adapters above the first `stages` stages: how many values each gets."""

    @abstractmethod
    def new_norms(self, stages: int) -> TaskNorms:
        """A task's own scales and shifts above these stages, which begin by changing nothing."""

    @abstractmethod
    def adapted(self, tokens: Tensor, stages: int, adapt: At, norms: At | None) -> Tensor:
        """Features [B, D] from the tokens `below` gave, with something done at every site and a task's norms; with
        None for these the trunk's own."""

    # -- files -----------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    @cached_property
    def sha256(self) -> str:
        return fingerprint(self.tensors())

    @property
    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())
