"""Adapters over the stages of a trunk that stays as it is, and the activations below them.

At every site the trunk offers stands a bottleneck beside the identity, `A(u) = u + fc2(relu(fc1(u)))`: in a
transformer after attention and after the MLP of every adapted stage, in a convolutional network at the end of every
adapted stage. How tasks share them without touching each other is a protector's business.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.caches import joined, joined_parts
from oarlock.nets.heads import Modules, truncated_normal_
from oarlock.nets.trunks import SiteFunction, Trunk
from oarlock.options import option

CHUNK = 256  # images per pass outside training: part of what makes a result reproducible bit for bit


@dataclass(frozen=True)
class AdapterConfig:
    """Say where the trunk is adapted, and by how much."""

    width: int = option(64, least=1, most=2**14)  # hidden units of an adapter
    adapt_last: int | None = option(2, least=1)  # stages with adapters, from the top; None: all (the paper)
    bf16: bool = False  # products in bfloat16: for processors that have it, slower elsewhere


class Bottleneck(nn.Module):
    """Compute fc2(relu(fc1(u)))."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, width)
        self.fc2 = nn.Linear(width, dim)

    @property
    def width(self) -> int:
        return self.fc1.out_features

    def reset(self, generator: torch.Generator) -> None:
        """Take initial values."""
        for linear in (self.fc1, self.fc2):
            truncated_normal_(linear.weight, generator)
            nn.init.zeros_(linear.bias)

    def forward(self, u: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(u)))


class AdaptedTrunk(nn.Module):
    """Walk a frozen trunk: what lies below the first adapter, the bare features, and features with something done at
    every site."""

    def __init__(self, trunk: Trunk, adapt_last: int | None, bf16: bool) -> None:
        super().__init__()
        self.bf16 = bf16
        stages = len(trunk.stages) if adapt_last is None else min(adapt_last, len(trunk.stages))
        self.frozen_stages = len(trunk.stages) - stages
        self._trunk = (trunk,)  # in a tuple, so that its tensors are not counted as ours

    @property
    def trunk(self) -> Trunk:
        return self._trunk[0]

    def stand_on(self, trunk: Trunk) -> None:
        """Take another trunk of the same shape."""
        self._trunk = (trunk,)

    def sites(self) -> list[int]:
        """Return how many values each adapter gets."""
        return self.trunk.sites(self.frozen_stages)

    def below(self, images: Tensor) -> Tensor:
        """Return activations where the first adapter begins; the same for all tasks, so they can be cached."""
        with self.arithmetic():
            return self.trunk.below(images, self.frozen_stages)

    def below_and_bare(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return these activations, and the trunk's own features, without adapters: [B, bare rows, D]."""
        with self.arithmetic():
            activations, bare = self.trunk.below_and_bare(images, self.frozen_stages)
        return activations, self.in_full(bare)

    def adapted(self, activations: Tensor, adapt: SiteFunction, norms: SiteFunction | None) -> Tensor:
        """Return features [B, D] from the activations `below` gave."""
        with self.arithmetic():
            return self.in_full(self.trunk.adapted(activations, self.frozen_stages, adapt, norms))

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Choose what numbers products of matrices are computed in; a model learns and answers in the same."""
        device = self.trunk.mean.device.type
        return torch.autocast(device, torch.bfloat16) if self.bf16 else nullcontext()

    def in_full(self, features: Tensor) -> Tensor:
        """Return features in full precision, in which heads and distances are computed."""
        return features.float() if self.bf16 else features


class Adapters(AdaptedTrunk):
    """Share one network among all tasks: nothing is protected, and norms are the trunk's own.

    >>> from oarlock.nets.trunks import load_trunk
    >>> adapters = Adapters(load_trunk("vit_pico"), AdapterConfig(width=8))
    >>> adapters(adapters.below(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))).shape
    torch.Size([2, 192])
    """

    def __init__(self, trunk: Trunk, config: AdapterConfig) -> None:
        super().__init__(trunk, config.adapt_last, config.bf16)
        self.layers: Modules[Bottleneck] = Modules(Bottleneck(dim, config.width) for dim in self.sites())

    def reset(self, generator: torch.Generator) -> None:
        """Take initial values."""
        for layer in self.layers:
            layer.reset(generator)

    def forward(self, activations: Tensor) -> Tensor:
        return self.adapted(activations, lambda site, u: u + self.layers[site](u), None)


class CachedActivations:
    """Hold what lies below the first adapter, by image: kept when whole stages lie there, else made again when asked.
    The bare trunk's features [images, bare rows, D] are seen on the way, and kept with them where they are wanted."""

    def __init__(self, network: AdaptedTrunk, images: Tensor, bare: bool = False) -> None:
        self.network, self.images = network, images
        self.kept: Tensor | None = None
        self.bare: Tensor | None = None
        if network.trunk.worth_keeping(network.frozen_stages) and len(images):
            chunks = images.split(CHUNK)
            if bare:
                self.kept, self.bare = joined_parts(map(self._make_with_bare, chunks), len(images))
            else:
                self.kept = joined(map(self._make, chunks), len(images))

    def __getitem__(self, rows: Tensor) -> Tensor:
        if self.kept is None:
            return self._make(self.images[rows.to(self.images.device)])
        return self.kept[rows.to(self.kept.device)].to(self.device)  # from a file, where they are too many for RAM

    @property
    def device(self) -> torch.device:
        return self.network.trunk.mean.device

    @torch.no_grad()
    def through(self, network: Callable[[Tensor], Tensor], rows: Tensor | None = None) -> Tensor:
        """Return what a network says to every image, or to some. Images are not augmented, so a teacher is asked
        once, not per epoch."""
        rows = torch.arange(len(self.images)) if rows is None else rows
        return torch.cat([network(self[some]) for some in rows.split(CHUNK)])

    @torch.no_grad()
    def _make(self, images: Tensor) -> Tensor:
        return self.network.below(images.to(self.device))

    @torch.no_grad()
    def _make_with_bare(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.network.below_and_bare(images.to(self.device))
