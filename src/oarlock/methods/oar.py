"""OAR, our own: ROW's structure and training, and what the frozen trunk knows already.

ROW chooses the task by c_k(x) · max softmax(h_k), where every c_k is measured in the features of its own task. OAR
trusts distances more, c_k(x)^γ, and adds b_k(x): how near the task's classes are under the bare trunk, in one metric
for all tasks. Its class means and its covariance are the same in whatever order the classes came. What is trained is
ROW's bit for bit, so a run of OAR holds ROW's scores and those of its ablations as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oarlock.detectors.gaussians import PooledGaussians
from oarlock.methods import method
from oarlock.methods._base import Variants
from oarlock.methods._protected import AS_IN_PAPER
from oarlock.methods.row import Row, RowConfig, TrainWpHead
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Phase, TaskData


@dataclass(frozen=True)
class OarConfig(RowConfig):
    """Hold ROW's options and the weight of what was added."""

    gamma: float = option(8.0, least=0)  # exponent of the distance coefficient
    beta: float = option(0.8, least=0)  # weight of distances under the bare trunk


@method("oar")
class Oar(Row):
    """Learn as ROW does, and choose the task by what the bare trunk sees as well."""

    Config = OarConfig
    paper = ""
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": AS_IN_PAPER, "c10-5t-lite": {"beta": 0.2}}
    size_note = ""
    config: OarConfig

    def __init__(self, trunk: Trunk, memory: int, config: OarConfig) -> None:
        super().__init__(trunk, memory, config)
        self.trunk_gaussians = PooledGaussians(min(trunk.bare_dim, trunk.dim * len(self.feature_sets(0))))

    def phases(self, task: TaskData) -> list[Phase]:
        features, _, ood_heads = super().phases(task)
        return [features, TrainWpHeadAndSeeBare(self, task), ood_heads]

    def feature_sets(self, tasks: int) -> range:
        return range(-self.trunk.bare_rows if self.config.beta else 0, tasks)

    def task_scores(self, encoded: Tensor) -> Tensor:
        """Return log TP before normalisation: ROW's, times b_k(x)."""
        return super().task_scores(encoded) + self.task_nearness(encoded)

    def scores_of_row(self, encoded: Tensor) -> Tensor:
        """Return scores by the paper's formula: γ = 1 and no b_k. (τ and the shrinkage are the configuration's.)"""
        return self.joint(encoded, self.log_claims(encoded, gamma=1))

    variants: ClassVar[Variants] = {
        "row": scores_of_row,
        "row-wp": lambda oar, encoded: oar.without_wp(encoded, gamma=1),
        "row-wp-md": Row.scores_without_wp_md,
    }

    @property
    def can_shortlist(self) -> bool:
        return self.config.beta > 0

    def task_nearness(self, encoded: Tensor) -> Tensor:
        """Return log b_k, with b_k(x) = max over k's classes of exp(−β/2 · squared Mahalanobis distance) under the
        bare trunk: one metric for all tasks, where each c_k has its own."""
        tasks = range(len(self.classes_per_task))
        if not self.config.beta:
            return encoded.new_zeros(len(encoded), len(tasks))
        squared = self.trunk_gaussians.distances(self.bare(encoded)).square()
        nearest = torch.stack([squared[:, self.class_slice(k)].amin(1) for k in tasks], 1)
        return -self.config.beta / 2 * nearest

    def bare(self, encoded: Tensor) -> Tensor:
        """Return what the bare trunk sees."""
        return encoded[:, : len(self.feature_sets(0))].flatten(1)[:, : self.trunk.bare_dim]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "trunk_classes": len(self.trunk_gaussians.means)}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.trunk_gaussians.rebuild(description["trunk_classes"])


class TrainWpHeadAndSeeBare(TrainWpHead):
    """Train the WP head, take the Gaussians of its classes, and those under the bare trunk."""

    row: Oar

    def finish(self) -> None:
        super().finish()
        if self.row.config.beta:
            bare, labels = self.row.bare(self.row.own_features(self.task)), self.task.labels.to(self.row.device)
            self.row.trunk_gaussians.add(bare, labels, self.task.classes)
