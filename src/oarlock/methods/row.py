"""ROW: replay, OOD heads, within-task heads (ICML 2023, "Learnability and Algorithm for Continual Learning").

A task k has features f_k (adapters under its gates, its norms), an OOD head h_k with one output more than it has
classes ("not mine"), a within-task head g_k, and the Gaussians of its classes. It is learned in three steps; its
features, g_k and the Gaussians then never change again, while all OOD heads are re-tuned after every task.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.methods import method
from oarlock.methods.base import Readings
from oarlock.methods.gated import GatedConfig, GatedMethod, TrainFeatures, accuracy
from oarlock.nets.heads import new_head
from oarlock.nets.modules import Modules
from oarlock.nets.trunk import Trunk
from oarlock.ood import ClassGaussians, PooledGaussians
from oarlock.training import Batch, Loss, Phase, Step, TaskData, cycled, shuffled

MIN_DISTANCE = 1e-6  # an image on its class mean would have an infinite coefficient


@dataclass(frozen=True)
class RowConfig(GatedConfig):
    """The paper's names and our defaults."""

    wp_epochs: int = 5  # step 2
    ood_epochs: int = 10  # step 3
    head_batch: int = 32  # steps 2 and 3
    head_lr: float = 0.03
    tau: float = 5.0  # temperature of both heads' softmax
    gamma: float = 1.0  # exponent of the distance coefficient; 1 in the paper
    shrinkage: float = 0.2  # of a task's covariance towards the identity
    beta: float = 0.8  # weight of distances under the bare trunk; 0, as in the paper, leaves them out
    trunk_shrinkage: float = 0.02  # of their covariance towards its mean variance


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
        return [Step1(self, task, self.ood_heads[task.index]), Step2(self, task), Step3(self, task)]

    def views(self, tasks: int) -> range:
        return range(-self.trunk.view_count if self.config.beta else 0, tasks)

    # -- prediction ----------------------------------------------------------------------------------------

    def scores(self, encoded: Tensor) -> Tensor:
        """log P(y, k | x) = log WP_k(y | x) + log TP_k(x), up to the normalisation over tasks."""
        tp = self.task_scores(encoded)
        return torch.cat([self.within_task(encoded, k) + tp[:, k, None] for k in range(tp.shape[1])], 1)

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        """log WP: the softmax of g_k."""
        return self._over_temperature(self.wp_heads[task](self._by_task(encoded)[task]))

    def task_scores(self, encoded: Tensor) -> Tensor:
        """log TP before normalisation: b_k(x) · c_k(x)^γ · max over k's classes of softmax(h_k)."""
        own = [
            self._over_temperature(h(f))[:, :-1] for h, f in zip(self.ood_heads, self._by_task(encoded), strict=True)
        ]
        best = torch.stack([p.amax(1) for p in own], 1)
        return best + self.log_coefficients(encoded) + self.log_trunk_factors(encoded)

    def log_coefficients(self, encoded: Tensor) -> Tensor:
        """γ · log c_k, with c_k(x) = max over k's classes of 1 / Mahalanobis distance under the task's features."""
        distances = [g.distances(f) for g, f in zip(self.gaussians, self._by_task(encoded), strict=True)]
        nearest = torch.stack([d.amin(1) for d in distances], 1)
        return -self.config.gamma * nearest.clamp_min(MIN_DISTANCE).log()

    def log_trunk_factors(self, encoded: Tensor) -> Tensor:
        """log b_k, with b_k(x) = max over k's classes of exp(−β/2 · squared Mahalanobis distance) under the bare trunk:
        one metric for all tasks, where the c_k each have their own."""
        tasks = range(self.tasks_in(encoded))
        if not self.config.beta:
            return encoded.new_zeros(len(encoded), len(tasks))
        squared = self.trunk_gaussians.distances(self._bare(encoded)).square()
        nearest = torch.stack([squared[:, self.columns(k)].amin(1) for k in tasks], 1)
        return -self.config.beta / 2 * nearest

    def in_distribution(self, encoded: Tensor) -> Tensor:
        """Unknown is what every task disclaims: the best task's score."""
        return self.task_scores(encoded).amax(1)

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
        return [h(f) for h, f in zip(self.step1_heads, self._by_task(encoded), strict=True)]

    def _by_task(self, encoded: Tensor) -> list[Tensor]:
        return list(encoded[:, len(self.views(0)) :].unbind(1))

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


class Step2(Phase):
    """The WP head, on the task's own images; then the Gaussians of its classes."""

    name = "within-task head"

    def __init__(self, row: Row, task: TaskData) -> None:
        self.row, self.task = row, task
        self.head: nn.Linear = row.wp_heads[task.index]
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
        return self.row.config.new_optimiser(self.head.parameters(), self.row.config.head_lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [(rows,) for rows in shuffled(len(self.labels), self.row.config.head_batch, random)]

    def loss(self, step: Step) -> Loss:
        rows = step.batch[0].to(self.labels.device)
        logits, labels = self.head(self.features[rows]), self.labels[rows]
        return Loss(F.cross_entropy(logits, labels), accuracy(logits, labels))

    def finish(self) -> None:
        row, task, config = self.row, self.task, self.row.config
        views, labels = row.own_views(task), task.labels.to(row.device)
        row.gaussians[task.index].fit(views[:, -1], labels, config.shrinkage)
        if config.beta:
            row.trunk_gaussians.add(views[:, :-1].flatten(1), labels, task.classes, config.trunk_shrinkage)
        self.head.requires_grad_(False)


class OwnAndForeign(NamedTuple):
    """The memory's features under one task: of its own images, with labels, and of all others."""

    own: Tensor
    labels: Tensor
    foreign: Tensor


class Step3(Phase):
    """The OOD heads of all tasks, each on the memory: its own images against all the others, half and half."""

    name = "OOD heads"

    def __init__(self, row: Row, task: TaskData) -> None:
        self.row, self.task = row, task
        self.epochs = row.config.ood_epochs if task.index else 0  # nothing is foreign to a single task

    def start(self) -> None:
        self.row.remember(self.task)

    def prepare(self) -> None:
        memory, row = self.row.memory, self.row
        labels = memory.labels.to(row.device)
        by_task = row._by_task(memory.encoded)
        self.data = []
        for j, size in enumerate(row.sizes):
            local, features = labels - row.columns(j).start, by_task[j]
            own = (local >= 0) & (local < size)
            self.data.append(OwnAndForeign(features[own], local[own], features[~own]))

    def optimiser(self) -> Optimizer:
        return self.row.config.new_optimiser(self.row.ood_heads.parameters(), self.row.config.head_lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        size = self.row.config.head_batch
        steps = -(-len(self.row.memory) // size)
        columns = []
        for own, _, foreign in self.data:
            columns += [
                cycled(len(own), [size] * steps, random),
                cycled(len(foreign), [size] * steps, random),
            ]
        return list(zip(*columns, strict=True))

    def loss(self, step: Step) -> Loss:
        """The heads share nothing, so the sum of their losses trains each as if alone (Eq. obj_back_update)."""
        losses, right = [], []
        for j, (own, labels, foreign) in enumerate(self.data):
            mine, others = step.batch[2 * j].to(own.device), step.batch[2 * j + 1].to(own.device)
            logits = self.row.ood_heads[j](torch.cat([own[mine], foreign[others]]))
            target = torch.cat([labels[mine], labels.new_full((len(others),), self.row.sizes[j])])
            losses.append(F.cross_entropy(logits, target))
            right.append(accuracy(logits, target))
        return Loss(torch.stack(losses).sum(), sum(right) / len(right))
