"""ROW: replay, OOD heads, within-task heads (ICML 2023, "Learnability and Algorithm for Continual Learning").

A task k has features f_k (adapters under its gates, its norms), an OOD head h_k with one output more than it has
classes ("not mine"), a within-task head g_k, and the Gaussians of its classes. It is learned in three steps; its
features, g_k and the Gaussians then never change again, while all OOD heads are re-tuned after every task.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oarlock.methods import method
from oarlock.methods.base import Readings
from oarlock.methods.config import option
from oarlock.methods.gated import GatedMethod, TrainFeatures
from oarlock.methods.head_phases import HeadConfig, TrainHead, TuneOodHeads
from oarlock.nets.heads import new_head
from oarlock.nets.modules import Modules
from oarlock.nets.trunk import Trunk
from oarlock.ood import ClassGaussians, PooledGaussians
from oarlock.training import Phase, TaskData

MIN_DISTANCE = 1e-6  # an image on its class mean would have an infinite coefficient


@dataclass(frozen=True)
class RowConfig(HeadConfig):
    """The paper's names and our defaults."""

    wp_epochs: int = option(5, least=0)  # step 2
    ood_epochs: int = option(5, least=0)  # step 3
    tau: float = option(5.0, least=1e-3)  # temperature of both heads' softmax
    gamma: float = option(8.0, least=0)  # exponent of the distance coefficient; 1 in the paper
    shrinkage: float = option(0.2, least=1e-6, most=1)  # of a task's covariance towards the identity
    beta: float = option(0.8, least=0)  # weight of distances under the bare trunk; 0 in the paper
    trunk_shrinkage: float = option(0.02, least=1e-6, most=1)  # of their covariance towards its mean variance


@method("row")
class Row(GatedMethod):
    """Class-incremental learning by OOD detection within every task."""

    Config = RowConfig
    config: RowConfig

    def __init__(self, trunk: Trunk, memory: int, config: RowConfig) -> None:
        super().__init__(trunk, memory, config)
        self.ood_heads: Modules[nn.Linear] = Modules()
        self.step1_heads: Modules[nn.Linear] = Modules()  # the OOD heads as step 1 left them, for the ablations
        self.wp_heads: Modules[nn.Linear] = Modules()
        self.gaussians: Modules[ClassGaussians] = Modules()
        self.trunk_gaussians = PooledGaussians(trunk.dim * len(self.views(0)))

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self._add_heads(task.classes, task.generator("heads"))

    def phases(self, task: TaskData) -> list[Phase]:
        c, k = self.config, task.index
        return [
            Step1(self, task, self.ood_heads[k]),
            Step2(self, task, c, self.wp_heads[k], c.wp_epochs),
            TuneOodHeads(self, task, c, self.ood_heads, c.ood_epochs),
        ]

    def views(self, tasks: int) -> range:
        return range(-self.trunk.view_count if self.config.beta else 0, tasks)

    # -- prediction ----------------------------------------------------------------------------------------

    def scores(self, encoded: Tensor) -> Tensor:
        """log P(y, k | x) = log WP_k(y | x) + log TP_k(x), up to the normalisation over tasks."""
        tp = self.task_scores(encoded)
        return torch.cat([self.within_task(encoded, k) + tp[:, k, None] for k in range(tp.shape[1])], 1)

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        """log WP: the softmax of g_k."""
        return self._over_temperature(self.wp_heads[task](self.by_task(encoded)[task]))

    def task_scores(self, encoded: Tensor) -> Tensor:
        """log TP before normalisation: c_k(x)^γ · max over k's classes of softmax(h_k), times b_k(x)."""
        return self.log_claims(encoded) + self.log_trunk_factors(encoded)

    def log_claims(self, encoded: Tensor) -> Tensor:
        """How strongly every task claims the input: log of c_k(x)^γ · max over k's classes of softmax(h_k)."""
        own = [
            self._over_temperature(h(f))[:, :-1] for h, f in zip(self.ood_heads, self.by_task(encoded), strict=True)
        ]
        return self.log_coefficients(encoded) + torch.stack([p.amax(1) for p in own], 1)

    def log_coefficients(self, encoded: Tensor) -> Tensor:
        """γ · log c_k, with c_k(x) = max over k's classes of 1 / Mahalanobis distance under the task's features."""
        distances = [g.distances(f) for g, f in zip(self.gaussians, self.by_task(encoded), strict=True)]
        nearest = torch.stack([d.amin(1) for d in distances], 1)
        return -self.config.gamma * nearest.clamp_min(MIN_DISTANCE).log()

    def log_trunk_factors(self, encoded: Tensor) -> Tensor:
        """log b_k, with b_k(x) = max over k's classes of exp(−β/2 · squared Mahalanobis distance) under the bare
        trunk: one metric for all tasks, where each c_k has its own."""
        tasks = range(len(self.sizes))
        if not self.config.beta:
            return encoded.new_zeros(len(encoded), len(tasks))
        squared = self.trunk_gaussians.distances(self._bare(encoded)).square()
        nearest = torch.stack([squared[:, self.columns(k)].amin(1) for k in tasks], 1)
        return -self.config.beta / 2 * nearest

    def in_distribution(self, encoded: Tensor) -> Tensor:
        """Unknown is what every task disclaims: the strongest claim. (b_k tells tasks apart better than it tells the
        known from the unknown.)"""
        return self.log_claims(encoded).amax(1)

    def scores_without_wp(self, encoded: Tensor) -> Tensor:
        """Ablation −WP: step 1's OOD heads in place of WP heads, times the coefficient."""
        c = self.log_coefficients(encoded)
        logits = self._step1_logits(encoded)
        return torch.cat([self._over_temperature(z)[:, :-1] + c[:, k, None] for k, z in enumerate(logits)], 1)

    def scores_without_wp_md(self, encoded: Tensor) -> Tensor:
        """Ablation −WP−MD: step 1's logits side by side, without the OOD outputs."""
        return torch.cat([z[:, :-1] for z in self._step1_logits(encoded)], 1)

    readings: ClassVar[Readings] = {
        "row-wp": scores_without_wp,
        "row-wp-md": scores_without_wp_md,
    }

    def _step1_logits(self, encoded: Tensor) -> list[Tensor]:
        return [h(f) for h, f in zip(self.step1_heads, self.by_task(encoded), strict=True)]

    def _bare(self, encoded: Tensor) -> Tensor:
        return encoded[:, : len(self.views(0))].flatten(1)

    def _over_temperature(self, logits: Tensor) -> Tensor:
        return (logits / self.config.tau).log_softmax(1)

    # -- promise and shape ---------------------------------------------------------------------------------

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        features, gaussians = self.encode(images, [task])[:, 0], self.gaussians[task]
        return {
            "features": features,
            "wp_logits": self.wp_heads[task](features),
            "distances": gaussians.distances(features),
            "means": gaussians.means,
            "whitening": gaussians.whitening,
        }

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        for classes in self.sizes:
            self._add_heads(classes, torch.Generator())
        self.trunk_gaussians.rebuild(description["trunk_classes"])

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "trunk_classes": len(self.trunk_gaussians.means)}

    def _add_heads(self, classes: int, random: torch.Generator) -> None:
        dim, device = self.trunk.dim, self.device
        self.ood_heads.append(new_head(dim, classes + 1, random).to(device))
        self.step1_heads.append(new_head(dim, classes + 1, random).to(device).requires_grad_(False))
        self.wp_heads.append(new_head(dim, classes, random).to(device))
        self.gaussians.append(ClassGaussians(classes, dim).to(device))


class Step1(TrainFeatures):
    """Features and OOD head of the task; the memory's images are the extra class."""

    method: Row

    def finish(self) -> None:
        super().finish()
        k = self.task.index
        self.method.step1_heads[k].load_state_dict(self.method.ood_heads[k].state_dict())


class Step2(TrainHead):
    """The WP head, on the task's images only; then the Gaussians of its classes."""

    method: Row

    def start(self) -> None:
        ood_head = self.method.ood_heads[self.task.index]
        with torch.no_grad():
            self.head.weight.copy_(ood_head.weight[:-1])
            self.head.bias.copy_(ood_head.bias[:-1])

    def finish(self) -> None:
        row, task = self.method, self.task
        views, labels = row.own_views(task), task.labels.to(row.device)
        row.gaussians[task.index].fit(views[:, -1], labels, row.config.shrinkage)
        if row.config.beta:
            bare = views[:, :-1].flatten(1)
            row.trunk_gaussians.add(bare, labels, task.classes, row.config.trunk_shrinkage)
