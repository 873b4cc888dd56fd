"""Adapters tuned on the first task only, then a closed form: first-session adaptation (Panos et al., ICCV 2023; the
first session of RanPAC, SLCA and APER).

The first task trains adapters and a head. From then on nothing is trained: a linear discriminant takes class means
and one covariance of what the adapted trunk sees, beside what the bare trunk sees in its stages if `bare` is set. So
after the first task it is the discriminant of all images at once, in whatever order classes came and however they
were cut into tasks. The head of the first task is not asked again.

Ours: the discriminant's shrinkage is what suits the number of images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oarlock.detectors import EvidenceOf
from oarlock.detectors.pooled import PooledGaussians
from oarlock.methods import method
from oarlock.methods._base import Method
from oarlock.methods._options import SharedConfig
from oarlock.methods._shared import SharedMethod, TrainShared
from oarlock.nets.adapters import CachedActivations
from oarlock.nets.trunks import Trunk
from oarlock.schema import Check, integer
from oarlock.training import Phase, TaskData


@dataclass(frozen=True)
class FirstConfig(SharedConfig):
    bare: bool = False  # whether the discriminant looks at the bare trunk's stages as well


@method("first")
class First(SharedMethod):
    """Tune adapters on the first task only, then fit a linear discriminant on what they see."""

    Config = FirstConfig
    paper = "Panos et al., ICCV 2023"
    verified = "after the first task scikit-learn's discriminant on the same features; any order and cut of the rest"
    needs_memory = False
    suggested = True
    features_frozen = True
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **Method.evidence,
        "features": lambda method, encoded: [method.seen(encoded)],
        "gaussians": lambda method, encoded: [method.gaussians],
        "bare": lambda method, encoded: [method.seen(encoded)],
        "statistics": lambda method, encoded: [method.gaussians],
    }
    described: ClassVar[Mapping[str, Check]] = {**SharedMethod.described, "classes": integer(0)}
    config: FirstConfig

    def __init__(self, trunk: Trunk, memory: int, config: FirstConfig) -> None:
        super().__init__(trunk, memory, config)
        self.gaussians = PooledGaussians(trunk.dim + (trunk.bare_dim if config.bare else 0))

    def begin(self, task: TaskData) -> None:
        Method.begin(self, task)
        if task.index == 0:
            self.network.adapters.reset(task.generator("adapters"))
            self.network.head.grow(task.classes, task.generator("head"))

    def phases(self, task: TaskData) -> list[Phase]:
        return [*([] if task.index else [TrainShared(self, task)]), TakeStatistics(self, task)]

    def feature_sets(self, tasks: int) -> range:
        return range(-self.trunk.bare_rows if self.config.bare else 0, 1)

    def encode_chunk(self, images: Tensor, sets: Sequence[int]) -> Tensor:
        adapters = self.network.adapters
        if min(sets) >= 0:
            return adapters(adapters.below(images))[:, None]
        activations, bare = adapters.below_and_bare(images)
        return torch.stack([bare[:, row] if row < 0 else adapters(activations) for row in sets], 1)

    def encode_cached(self, activations: CachedActivations, sets: Sequence[int]) -> Tensor:
        return (Method if self.config.bare else SharedMethod).encode_cached(self, activations, sets)

    def seen(self, encoded: Tensor) -> Tensor:
        """Return what the discriminant looks at."""
        bare = encoded[:, :-1].flatten(1)[:, : self.trunk.bare_dim]
        return torch.cat([encoded[:, -1], bare], 1)

    def scores(self, encoded: Tensor) -> Tensor:
        """Return the linear discriminant, up to a constant of the row."""
        return self.gaussians.discriminants(self.seen(encoded))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "classes": len(self.gaussians.means)}

    def rebuild(self, description: dict[str, Any]) -> None:
        Method.rebuild(self, description)
        if self.classes_per_task:
            self.network.head.grow(self.classes_per_task[0], torch.Generator())
        self.gaussians.rebuild(description["classes"])


class TakeStatistics(Phase):
    """Take means and covariance in one pass over the task's images; nothing is optimised."""

    name = "statistics"

    def __init__(self, first: First, task: TaskData) -> None:
        self.first, self.task = first, task

    def start(self) -> None:
        first = self.first
        features = first.seen(first.encode(self.task.images, first.feature_sets(1)))
        first.gaussians.add(features, self.task.labels.to(first.device), self.task.classes)
