"""ROW: replay, OOD heads, within-task heads (ICML 2023, "Learnability and Algorithm for Continual Learning").

A task k has features f_k (adapters under its gates, its norms), an OOD head h_k with one output more than it has
classes ("not mine"), a within-task head g_k, and the Gaussians of its classes. It is learned in three steps; its
features, g_k and the Gaussians then never change again, while all OOD heads are re-tuned after every task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.detectors import EvidenceOf
from oarlock.methods import method
from oarlock.methods._base import Method, Variants
from oarlock.methods._ood_heads import OodConfig, OodHeadMethod, TuneOodHeads
from oarlock.methods._protected import AS_IN_PAPER, ProtectedMethod, TrainFeatures
from oarlock.nets.heads import Modules, new_head
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Batch, Loss, Optimisation, Phase, Step, TaskData, accuracy, shuffled


@dataclass(frozen=True)
class RowConfig(OodConfig):
    """Hold ROW's options: the paper's names and our defaults."""

    wp_epochs: int = option(5, least=0)  # step 2
    gamma: float = option(1.0, least=0)  # exponent of the distance coefficient; the paper has none


@method("row")
class Row(OodHeadMethod):
    """Learn classes incrementally by OOD detection within every task."""

    Config = RowConfig
    paper = "Kim et al., ICML 2023"
    suggested = True
    verified = (
        "prediction and losses by hand; distances by scipy; gate gradient in closed form; old tasks bit for bit"
    )
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": AS_IN_PAPER | {"tau": 5.0, "shrinkage": 0.2, "gamma": 1.0},
    }
    size_note = "ours keeps the OOD heads as step 1 left them too, for the ablations"
    config: RowConfig

    def __init__(self, trunk: Trunk, memory: int, config: RowConfig) -> None:
        super().__init__(trunk, memory, config)
        self.step1_heads: Modules[nn.Linear] = Modules()  # the OOD heads as step 1 left them, for the ablations
        self.wp_heads: Modules[nn.Linear] = Modules()

    def add_heads(self, classes: int, random: torch.Generator) -> None:
        super().add_heads(classes, random)
        self.step1_heads.append(new_head(self.trunk.dim, classes + 1, random).to(self.device).requires_grad_(False))
        self.wp_heads.append(new_head(self.trunk.dim, classes, random).to(self.device))

    def parts_of_tasks(self) -> list[Modules[Any]]:
        return [*super().parts_of_tasks(), self.step1_heads, self.wp_heads]

    def phases(self, task: TaskData) -> list[Phase]:
        k = task.index
        return [
            TrainRowFeatures(self, task, self.ood_heads[k]),
            TrainWpHead(self, task),
            TuneOodHeads(self, task, k + 1),
        ]

    # -- prediction ----------------------------------------------------------------------------------------

    def scores(self, encoded: Tensor) -> Tensor:
        """Return log P(y, k | x) = log WP_k(y | x) + log TP_k(x), up to the normalisation over tasks."""
        return self.joint(encoded, self.task_scores(encoded))

    def joint(self, encoded: Tensor, tp: Tensor) -> Tensor:
        """Return the scores that WP heads give with this log TP."""
        wp = [self.log_softmax(head(f)) for head, f in zip(self.wp_heads, self.by_task(encoded), strict=True)]
        return torch.cat([p + tp[:, k, None] for k, p in enumerate(wp)], 1)

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        """Return log WP: the softmax of g_k."""
        return self.log_softmax(self.wp_heads[task](self.by_task(encoded)[task]))

    def task_scores(self, encoded: Tensor) -> Tensor:
        """Return log TP before normalisation: c_k(x)^γ · max over k's classes of softmax(h_k)."""
        return self.log_claims(encoded, self.config.gamma)

    def scores_without_wp(self, encoded: Tensor) -> Tensor:
        """Return scores of the ablation −WP: step 1's OOD heads in place of WP heads, times the coefficient."""
        return self.without_wp(encoded, self.config.gamma)

    def without_wp(self, encoded: Tensor, gamma: float) -> Tensor:
        """Return these scores with an exponent of the coefficient."""
        c, own = gamma * self.log_coefficients(encoded), self.log_own(self.step1_heads, encoded)
        return torch.cat([p + c[:, k, None] for k, p in enumerate(own)], 1)

    def scores_without_wp_md(self, encoded: Tensor) -> Tensor:
        """Return scores of the ablation −WP−MD: step 1's logits side by side, without the OOD outputs."""
        return torch.cat([h(f)[:, :-1] for h, f in zip(self.step1_heads, self.by_task(encoded), strict=True)], 1)

    variants: ClassVar[Variants] = {"row-wp": scores_without_wp, "row-wp-md": scores_without_wp_md}

    # -- promise and shape ---------------------------------------------------------------------------------

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        promised = super().promised(images, task)
        return {**promised, "wp_logits": self.wp_heads[task](promised["features"])}


class TrainRowFeatures(TrainFeatures):
    """Train the features and the OOD head of the task (step 1); the memory's images are the extra class."""

    method: Row

    def finish(self) -> None:
        super().finish()
        k = self.task.index
        self.method.step1_heads[k].load_state_dict(self.method.ood_heads[k].state_dict())


class TrainWpHead(Optimisation):
    """Train the WP head on the task's images only (step 2); then take the Gaussians of its classes."""

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
        self.features = self.row.own_features(self.task)[:, -1]
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


class RowVariant(Row):
    """Score as ROW's variant of the same name does; everything else follows from the scores.

    A run of `row` holds them already, from its one training. As methods they are trained as ROW is, down to the last
    bit, and can be taught, saved and asked.
    """

    verified = "the same training as row, tensor for tensor; row's variants, bit for bit"
    suggested = False
    variants: ClassVar[Variants] = {}
    evidence: ClassVar[dict[str, EvidenceOf]] = {**Row.evidence, "own": ProtectedMethod.evidence["own"]}
    within_task = Method.within_task
    task_scores = Method.task_scores

    def scores(self, encoded: Tensor) -> Tensor:
        return Row.variants[self.name](self, encoded)


@method("row-wp")
class RowWithoutWp(RowVariant):
    """Score as ROW without WP heads: by step 1's OOD heads times the distance coefficient."""


@method("row-wp-md")
class RowWithoutWpMd(RowVariant):
    """Score as ROW without WP heads and distances: by step 1's logits side by side."""
