"""Networks that are stem → stages → tail, with maps between the stages and an adapter at the end of every stage.

Norms are frozen whole: statistics, scales and shifts. What a task has of its own instead is a scale and a shift of
every channel where an adapter stands.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.nets.trunks._base import Card, SiteFunction, TaskNorms, Trunk

PART = 16  # images in one pass of the lower stages, whose maps are large: faster, and less memory


class Parts(NamedTuple):
    """Hold a network cut into what lies before its stages, the stages, and what makes features of the last map."""

    stem: Callable[[Tensor], Tensor]
    stages: list[nn.Module]
    tail: Callable[[Tensor], Tensor]
    channels_last: bool = False  # how the network itself has its maps: [B, H, W, C], or else [B, C, H, W]


class Scales(TaskNorms):
    """Hold one task's scale and shift of the channels that every adapter gets."""

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.weight = nn.ParameterList(nn.Parameter(torch.ones(count)) for count in channels)
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(count)) for count in channels)

    def normalise(self, x: Tensor) -> Tensor:
        return x

    def forward(self, index: int, x: Tensor) -> Tensor:
        return x * self.weight[index] + self.bias[index]


class StagedTrunk(Trunk):
    """Walk such a network. Activations are maps with the channels last, [B, H, W, C], which is both how a linear
    layer wants them and how convolutions are fast on CPUs."""

    adapters = "at the end of a stage"
    stages: list[nn.Module]
    channels: list[int]  # at the end of every stage

    def __init__(self, model: Any, card: Card, parts: Parts, channels: list[int], dim: int) -> None:
        super().__init__(model, card)
        self.parts, self.stages, self.channels, self.dim = parts, parts.stages, channels, dim
        self.bare_dim = dim + sum(channels)

    # -- passes ----------------------------------------------------------------------------------------------

    def embed(self, images: Tensor) -> Tensor:
        x = self.normalised(images).contiguous(memory_format=torch.channels_last)
        return self._ours(self.parts.stem(x))

    def below(self, images: Tensor, stages: int) -> Tensor:
        """Return the maps after the first `stages` stages and one more, at whose end its adapter stands."""
        return torch.cat([self.walk(self.embed(part), self.stages[: stages + 1]) for part in _parts(images)])

    def below_and_bare(self, images: Tensor, stages: int) -> tuple[Tensor, Tensor]:
        """Return as bare values the features, and the mean of the map after every stage: lower ones hold what the
        last has dropped as of no use for the classes of pre-training."""
        lower = [self._walk_and_means(self.embed(part), self.stages[: stages + 1]) for part in _parts(images)]
        activations = torch.cat([x for x, _ in lower])
        means = torch.cat([torch.cat(of_part, 1) for _, of_part in lower])
        last, more = self._walk_and_means(activations, self.stages[stages + 1 :])
        seen = torch.cat([self.pool(last), means, *more], 1)
        return activations, F.pad(seen, (0, self.bare_rows * self.dim - self.bare_dim)).unflatten(1, (-1, self.dim))

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.below(images, len(self.stages) - 1))

    def walk(self, x: Tensor, stages: list[nn.Module]) -> Tensor:
        """Return maps passed through some of the stages, as pre-trained."""
        for stage in stages:
            x = self._ours(stage(self._theirs(x)))
        return x

    def _walk_and_means(self, x: Tensor, stages: list[nn.Module]) -> tuple[Tensor, list[Tensor]]:
        """The same, with the mean of every map on the way."""
        means = []
        for stage in stages:
            x = self.walk(x, [stage])
            means.append(x.mean((1, 2)))
        return x, means

    def pool(self, x: Tensor) -> Tensor:
        """Return features [B, D] from the last stage's maps."""
        return self.parts.tail(self._theirs(x))

    def sites(self, stages: int) -> list[int]:
        return self.channels[stages:]

    def new_norms(self, stages: int) -> Scales:
        return Scales(self.sites(stages))

    def adapted(self, activations: Tensor, stages: int, adapt: SiteFunction, norms: SiteFunction | None) -> Tensor:
        x = activations
        for site, stage in enumerate(self.stages[stages:]):
            if site:  # `below` went through the first
                x = self.walk(x, [stage])
            x = adapt(site, x if norms is None else norms(site, x))
        return self.pool(x)

    def _ours(self, x: Tensor) -> Tensor:
        return x if self.parts.channels_last else x.permute(0, 2, 3, 1)

    def _theirs(self, x: Tensor) -> Tensor:
        return x if self.parts.channels_last else x.permute(0, 3, 1, 2)


def _parts(images: Tensor) -> tuple[Tensor, ...]:
    return (images,) if torch.compiler.is_compiling() else images.split(PART)  # a graph is for any number
