"""Nothing between the trunk and the heads: every task's features are the frozen trunk's, the same for all tasks.

The yardstick for all other protectors: what they add, in accuracy and in cost, they add to this.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oarlock.nets.adapters import AdaptedTrunk
from oarlock.nets.protectors import Protector, protector
from oarlock.nets.protectors._compact import CompactAdapters, SiteWeights


@protector("none")
class Bare(Protector):
    """Leave the trunk as it is: no adapters, and no norms of a task's own."""

    def begin_task(self, random: torch.Generator) -> None:
        """Add nothing."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": []}]

    def finish_task(self, seen: Iterable[Tensor] = ()) -> None:
        """Do nothing: there are no features that could change."""

    def forget_task(self, task: int, random: torch.Generator) -> None:
        """Do nothing: a task has nothing of its own."""

    def forward(self, activations: Tensor, task: int, fraction: float = 1.0) -> Tensor:
        return self.adapted(activations, lambda site, u: u, None)

    def task_weights(self, task: int) -> list[SiteWeights]:
        return self.no_weights()

    def compact(self) -> CompactAdapters:
        return OnePass(self)

    def describe(self) -> dict[str, Any]:
        return {}

    def rebuild(self, description: dict[str, Any]) -> None:
        """Take nothing: there are no shapes."""


class OnePass(CompactAdapters):
    """Compute the features once, however many tasks are asked."""

    def __init__(self, network: AdaptedTrunk) -> None:
        nn.Module.__init__(self)
        self._network = (network,)

    @torch.no_grad()
    def forward(self, activations: Tensor, tasks: Sequence[int], folded: bool | None = None) -> Tensor:
        return self._features(activations)[:, None].expand(-1, len(tasks), -1)

    @torch.no_grad()
    def pairs(self, activations: Tensor, tasks: Tensor) -> Tensor:
        return self._features(activations)

    def _features(self, activations: Tensor) -> Tensor:
        return self._network[0].adapted(activations, lambda site, u: u, None)
