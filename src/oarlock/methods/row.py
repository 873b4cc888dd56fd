"""ROW: replay, OOD heads, within-task heads (ICML 2023, "Learnability and Algorithm for Continual Learning").

A task k has features f_k (adapters under its gates, its norms), an OOD head h_k with one output more than it has
classes ("not mine"), a within-task head g_k, and the Gaussians of its classes. It is learned in three steps; its
features, g_k and the Gaussians then never change again, while all OOD heads are re-tuned after every task.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.methods import method
from oarlock.methods.base import Readings
from oarlock.methods.config import option
from oarlock.methods.gated import TrainFeatures
from oarlock.methods.ood_heads import OodConfig, OodHeadMethod, TuneOodHeads
from oarlock.nets.heads import new_head
from oarlock.nets.modules import Modules
from oarlock.nets.trunk import Trunk
from oarlock.ood import PooledGaussians
from oarlock.training import Batch, Loss, Optimisation, Phase, Step, TaskData, accuracy, shuffled


@dataclass(frozen=True)
class RowConfig(OodConfig):
    """The paper's names and our defaults."""

    wp_epochs: int = option(5, least=0)  # step 2
    beta: float = option(0.8, least=0)  # weight of distances under the bare trunk; 0 in the paper


@method("row")
class Row(OodHeadMethod):
    """Class-incremental learning by OOD detection within every task."""

    Config = RowConfig
    paper = "Kim et al., ICML 2023"
    verified = (
        "prediction and losses by hand; distances by scipy; gate gradient in closed form; old tasks bit for bit"
    )
    config: RowConfig

    def __init__(self, trunk: Trunk, memory: int, config: RowConfig) -> None:
        super().__init__(trunk, memory, config)
        self.step1_heads: Modules[nn.Linear] = Modules()  # the OOD heads as step 1 left them, for the ablations
        self.wp_heads: Modules[nn.Linear] = Modules()
        self.trunk_gaussians = PooledGaussians(min(trunk.view_dim, trunk.dim * len(self.views(0))))

    def add_heads(self, classes: int, random: torch.Generator) -> None:
        super().add_heads(classes, random)
        self.step1_heads.append(new_head(self.trunk.dim, classes + 1, random).to(self.device).requires_grad_(False))
        self.wp_heads.append(new_head(self.trunk.dim, classes, random).to(self.device))

    def phases(self, task: TaskData) -> list[Phase]:
        k = task.index
        return [Step1(self, task, self.ood_heads[k]), Step2(self, task), TuneOodHeads(self, task, k + 1)]

    def views(self, tasks: int) -> range:
        return range(-self.trunk.view_count if self.config.beta else 0, tasks)

    # -- prediction ----------------------------------------------------------------------------------------

    def scores(self, encoded: Tensor) -> Tensor:
        """log P(y, k | x) = log WP_k(y | x) + log TP_k(x), up to the normalisation over tasks."""
        return self._joint(encoded, self.task_scores(encoded))

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        """log WP: the softmax of g_k."""
        return self.log_softmax(self.wp_heads[task](self.by_task(encoded)[task]))

    def task_scores(self, encoded: Tensor) -> Tensor:
        """log TP before normalisation: c_k(x)^γ · max over k's classes of softmax(h_k), times b_k(x)."""
        return self.log_claims(encoded, self.config.gamma) + self.log_trunk_factors(encoded)

    def log_trunk_factors(self, encoded: Tensor) -> Tensor:
        """log b_k, with b_k(x) = max over k's classes of exp(−β/2 · squared Mahalanobis distance) under the bare
        trunk: one metric for all tasks, where each c_k has its own."""
        tasks = range(len(self.sizes))
        if not self.config.beta:
            return encoded.new_zeros(len(encoded), len(tasks))
        squared = self.trunk_gaussians.distances(self.bare(encoded)).square()
        nearest = torch.stack([squared[:, self.columns(k)].amin(1) for k in tasks], 1)
        return -self.config.beta / 2 * nearest

    def scores_of_the_paper(self, encoded: Tensor) -> Tensor:
        """The paper's formula: γ = 1 and no b_k. (τ and the shrinkage are the configuration's.)"""
        return self._joint(encoded, self.log_claims(encoded, gamma=1))

    def scores_without_wp(self, encoded: Tensor) -> Tensor:
        """Ablation −WP: step 1's OOD heads in place of WP heads, times the coefficient."""
        c, own = self.config.gamma * self.log_coefficients(encoded), self.log_own(self.step1_heads, encoded)
        return torch.cat([p + c[:, k, None] for k, p in enumerate(own)], 1)

    def scores_without_wp_md(self, encoded: Tensor) -> Tensor:
        """Ablation −WP−MD: step 1's logits side by side, without the OOD outputs."""
        return torch.cat([h(f)[:, :-1] for h, f in zip(self.step1_heads, self.by_task(encoded), strict=True)], 1)

    readings: ClassVar[Readings] = {
        "row-paper": scores_of_the_paper,
        "row-wp": scores_without_wp,
        "row-wp-md": scores_without_wp_md,
    }

    def _joint(self, encoded: Tensor, tp: Tensor) -> Tensor:
        wp = [Row.within_task(self, encoded, k) for k in range(tp.shape[1])]
        return torch.cat([p + tp[:, k, None] for k, p in enumerate(wp)], 1)

    def bare(self, encoded: Tensor) -> Tensor:
        """What the bare trunk sees."""
        return encoded[:, : len(self.views(0))].flatten(1)[:, : self.trunk.view_dim]

    # -- promise and shape ---------------------------------------------------------------------------------

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        promised = super().promised(images, task)
        return {**promised, "wp_logits": self.wp_heads[task](promised["features"])}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "trunk_classes": len(self.trunk_gaussians.means)}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.trunk_gaussians.rebuild(description["trunk_classes"])


class Step1(TrainFeatures):
    """Features and OOD head of the task; the memory's images are the extra class."""

    method: Row

    def finish(self) -> None:
        super().finish()
        k = self.task.index
        self.method.step1_heads[k].load_state_dict(self.method.ood_heads[k].state_dict())


class Step2(Optimisation):
    """The WP head, on the task's images only; then the Gaussians of its classes."""

    name = "within-task head"

    def __init__(self, row: Row, task: TaskData) -> None:
        self.row, self.task, self.config = row, task, row.config
        self.head = row.wp_heads[task.index]
        self.epochs = row.config.wp_epochs

    def start(self) -> None:
        ood_head = self.row.ood_heads[self.task.index]
        with torch.no_grad():
            self.head.weight.copy_(ood_head.weight[:-1])
            self.head.bias.copy_(ood_head.bias[:-1])

    def prepare(self) -> None:
        self.features = self.row.own_views(self.task)[:, -1]
        self.labels = self.task.labels.to(self.row.device)

    def optimiser(self) -> Optimizer:
        return self.config.new_optimiser(self.head.parameters(), self.config.head_lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [(rows,) for rows in shuffled(len(self.labels), self.config.head_batch, random)]

    def loss(self, step: Step) -> Loss:
        rows = step.batch[0].to(self.labels.device)
        logits, labels = self.head(self.features[rows]), self.labels[rows]
        return Loss(F.cross_entropy(logits, labels), accuracy(logits, labels))

    def finish(self) -> None:
        self.row.fit_gaussians(self.task)
        if self.config.beta:
            bare, labels = self.row.bare(self.row.own_views(self.task)), self.task.labels.to(self.row.device)
            self.row.trunk_gaussians.add(bare, labels, self.task.classes)
