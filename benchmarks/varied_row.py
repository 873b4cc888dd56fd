"""OAR with parts that can be built otherwise: what its own options cannot say, for `vary_row.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.detectors.gaussians import ClassGaussians
from oarlock.detectors.pooled import PooledGaussians
from oarlock.methods._ood_heads import TuneOodHeads
from oarlock.methods.oar import Oar, OarConfig, TrainWpHeadAndSeeBare
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Batch, Phase, TaskData, cycled


@dataclass(frozen=True)
class VariedConfig(OarConfig):
    """The defaults are OAR."""

    unit_features: bool = False  # c_k: features scaled to one length before the distance
    unit_trunk: bool = False  # b_k: the same under the bare trunk, each stage by itself
    trunk_views: int | None = option(None, least=1)  # b_k: how many of the trunk's feature sets, the last ones
    fresh_wp_heads: bool = False  # step 2 begins at random values, not at the OOD head's
    foreign: float = option(0.5, least=0.01, most=0.99)  # step 3: share of other tasks' images in a batch


class VariedRow(Oar):
    """OAR, one of whose parts is built in another way."""

    Config = VariedConfig
    config: VariedConfig

    def __init__(self, trunk: Trunk, memory: int, config: VariedConfig) -> None:
        super().__init__(trunk, memory, config)
        if config.unit_trunk:
            self.trunk_gaussians = UnitPooledGaussians(trunk.dim * len(self.feature_sets(0)))
            self.trunk_gaussians.dim = trunk.dim

    def add_heads(self, classes: int, random: torch.Generator) -> None:
        super().add_heads(classes, random)
        if self.config.unit_features:
            self.gaussians[len(self.gaussians) - 1] = UnitGaussians(
                classes, self.trunk.dim, self.config.shrinkage
            ).to(self.device)

    def phases(self, task: TaskData) -> list[Phase]:
        step1, step2, _ = super().phases(task)
        if self.config.fresh_wp_heads:
            step2 = FreshStep2(self, task)
        return [step1, step2, UnevenStep3(self, task, task.index + 1)]

    def feature_sets(self, tasks: int) -> Sequence[int]:
        views = self.config.trunk_views or self.trunk.bare_rows
        return [index for index in super().feature_sets(tasks) if index >= -views]


class UnitGaussians(ClassGaussians):
    """Distances between features of one length."""

    def fit(self, features: Tensor, labels: Tensor) -> None:
        super().fit(unit(features), labels)

    def distances(self, features: Tensor) -> Tensor:
        return super().distances(unit(features))


class UnitPooledGaussians(PooledGaussians):
    """Distances between features of which every stage's have one length."""

    dim: int  # of one stage

    def add(self, features: Tensor, labels: Tensor, classes: int, looks: int = 1) -> None:
        super().add(unit(features), labels, classes, looks)

    def distances(self, features: Tensor) -> Tensor:
        return super().distances(unit(features.unflatten(1, (-1, self.dim))).flatten(1))


class FreshStep2(TrainWpHeadAndSeeBare):
    def start(self) -> None:
        pass


class UnevenStep3(TuneOodHeads):
    """Batches of the same size, with another share of foreign images."""

    config: VariedConfig

    def batches(self, random: torch.Generator) -> list[Batch]:
        steps, both = -(-len(self.method.memory) // self.config.head_batch), 2 * self.config.head_batch
        foreign_images = min(both - 1, max(1, round(both * self.config.foreign)))
        columns = []
        for _, own, _, foreign in self.data:
            columns.append(cycled(len(own), [both - foreign_images] * steps, random))
            columns.append(cycled(len(foreign), [foreign_images] * steps, random))
        return list(zip(*columns, strict=True))


def unit(features: Tensor) -> Tensor:
    """Of the length that features of variance 1 have on average, so that the shrinkage keeps its meaning."""
    return F.normalize(features, dim=-1) * features.shape[-1] ** 0.5
