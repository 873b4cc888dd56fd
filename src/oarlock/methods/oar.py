"""OAR, our own: ROW's structure and training, and what the frozen trunk knows already.

ROW chooses the task by c_k(x) · max softmax(h_k), where every c_k is measured in the features of its own task. OAR
trusts distances more, c_k(x)^γ, and adds b_k(x): how near the task's classes are under the bare trunk, in one metric
for all tasks. Its class means and its covariance are the same in whatever order the classes came. What is trained is
ROW's bit for bit, so a run of OAR holds ROW's scores and those of its ablations as well. If the trunk is tuned to the
first task before, which is an option, all of this stands on the tuned trunk, ROW's part too.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from oarlock.caches import joined
from oarlock.data.augmentation import look_again
from oarlock.detectors import EvidenceOf
from oarlock.detectors.gaussians import PooledGaussians
from oarlock.methods import method
from oarlock.methods._base import Variants
from oarlock.methods._protected import AS_IN_PAPER
from oarlock.methods.row import Row, RowConfig, TrainWpHead
from oarlock.nets.adapters import CHUNK
from oarlock.nets.trunks import Trunk
from oarlock.nets.tuning import Tuning
from oarlock.options import option
from oarlock.training import Batch, Loss, Optimisation, Phase, Step, TaskData, accuracy, shuffled

# What counts of both in `familiarity`, as a share of one dimension's part: chosen on groceries, see docs/oar.md.
SOFTNESS = 20.0
NEARNESS = 5.0


@dataclass(frozen=True)
class OarConfig(RowConfig):
    """Hold ROW's options and the weight of what was added."""

    gamma: float = option(8.0, least=0)  # exponent of the distance coefficient
    beta: float = option(0.8, least=0)  # weight of distances under the bare trunk
    delta: float = option(0.0, least=0, most=1)  # of that weight, what counts within a task as well
    looks: int = option(1, least=1)  # at every image of a task that has few, augmented after the first
    few: int = option(100, least=0)  # images of a class, up to which a task has few
    tune_steps: int = option(0, least=0)  # in which the trunk is tuned to the first task
    tune_last: int = option(3, least=1)  # stages above whose first layers it is tuned
    tune_rank: int = option(32, least=1)
    tune_lr: float = option(0.003, least=0)
    tune_classes: int = option(5, least=2)  # that the first task must have to be tuned to


@method("oar")
class Oar(Row):
    """Learn as ROW does, and choose the task by what the bare trunk sees as well."""

    Config = OarConfig
    paper = ""
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": AS_IN_PAPER,
        "c10-5t-lite": {"beta": 0.2},
    }
    size_note = ""
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **Row.evidence,
        "familiarity": lambda method, encoded: method.familiarity(encoded),
    }
    config: OarConfig

    def __init__(self, trunk: Trunk, memory: int, config: OarConfig) -> None:
        super().__init__(trunk, memory, config)
        self.trunk_gaussians = PooledGaussians(min(trunk.bare_dim, trunk.dim * len(self.feature_sets(0))))
        self.tuning = Tuning()
        self.register_load_state_dict_post_hook(lambda oar, _: oar.stand_on_tuned())

    def phases(self, task: TaskData) -> list[Phase]:
        features, _, ood_heads = super().phases(task)
        phases: list[Phase] = [features, TrainWpHeadAndSeeBare(self, task), ood_heads]
        return [TuneTrunk(self, task), *phases] if self.can_tune_to(task) else phases

    # -- what the trunk is tuned to, once ------------------------------------------------------------------

    def can_tune_to(self, task: TaskData) -> bool:
        """Tell whether the trunk is tuned to a task: to the first, if that shows enough of what there is."""
        able = self.config.tune_steps and len(self.trunk.stages)
        return bool(task.index == 0 and task.classes >= self.config.tune_classes and able)

    def looks_at(self, task: TaskData) -> int:
        """Return how often every image of a task is looked at: more than once where there are few."""
        return self.config.looks if len(task.images) <= self.config.few * task.classes else 1

    def stand_on_tuned(self) -> None:
        """Put everything that follows on the trunk as it was tuned."""
        if self.tuning.done:
            self.protector.stand_on(self.tuning.tuned(self.trunk_as_given))

    @property
    def trunk(self) -> Trunk:
        """Return the trunk: as it was tuned, as soon as it is."""
        return self.protector.trunk if "protector" in self._modules else self.trunk_as_given

    @property
    def trunk_as_given(self) -> Trunk:
        return self._trunk[0]

    def feature_sets(self, tasks: int) -> range:
        return range(-self.trunk.bare_rows if self.config.beta else 0, tasks)

    def scores(self, encoded: Tensor) -> Tensor:
        """Return ROW's scores by its own formula, and how near every class is under the bare trunk."""
        return self.joint(encoded, self.log_claims(encoded, self.config.gamma)) + self.class_nearness(encoded)

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        """Return log WP with nearness, up to a constant of the row."""
        own = self.class_nearness(encoded)[:, self.class_slice(task)]
        return super().within_task(encoded, task) + own

    def task_scores(self, encoded: Tensor) -> Tensor:
        """Return how much every task has of the scores of all classes."""
        return torch.stack([own.logsumexp(1) for own in self.scores(encoded).split(self.classes_per_task, 1)], 1)

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

    def class_nearness(self, encoded: Tensor) -> Tensor:
        """Return −β/2 · squared Mahalanobis distance to every class under the bare trunk: one metric for all tasks,
        where each c_k has its own."""
        if not self.config.beta:
            return encoded.new_zeros(len(encoded), sum(self.classes_per_task))
        near = -self.config.beta / 2 * self.trunk_gaussians.distances(self.bare(encoded)).square()
        parts = near.split(self.classes_per_task, 1)
        return torch.cat([torch.lerp(own.amax(1, keepdim=True), own, self.config.delta) for own in parts], 1)

    def task_nearness(self, encoded: Tensor) -> Tensor:
        """Return the same of every task's nearest class."""
        return torch.stack([own.amax(1) for own in self.class_nearness(encoded).split(self.classes_per_task, 1)], 1)

    def familiarity(self, encoded: Tensor) -> list[Tensor]:
        """Return how much inputs look like something learned with each task, under the bare trunk: how sure the
        nearest class is among all, softly, and how much nearer it is than all classes together."""
        bare = self.bare(encoded)
        if not bare.shape[1]:
            return list(self.log_claims(encoded, self.config.gamma).unbind(1))
        by_dimension = 1 / bare.shape[1]
        sure = (SOFTNESS * by_dimension * self.trunk_gaussians.discriminants(bare)).log_softmax(1)
        near = NEARNESS * by_dimension * self.trunk_gaussians.relative(bare)
        return [own.amax(1) for own in (sure + near).split(self.classes_per_task, 1)]

    def bare(self, encoded: Tensor) -> Tensor:
        """Return what the bare trunk sees."""
        return encoded[:, : len(self.feature_sets(0))].flatten(1)[:, : self.trunk.bare_dim]

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "trunk_classes": len(self.trunk_gaussians.means),
            "tuning": self.tuning.describe(),
        }

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.trunk_gaussians.rebuild(description["trunk_classes"])
        self.tuning.rebuild(description["tuning"])
        self.tuning.to(self.device)


class TrainWpHeadAndSeeBare(TrainWpHead):
    """Train the WP head, take the Gaussians of its classes, and those under the bare trunk."""

    row: Oar

    def finish(self) -> None:
        super().finish()
        if self.row.config.beta:
            oar, task = self.row, self.task
            looks, sets = oar.looks_at(task), oar.feature_sets(0)
            more = [oar.bare(oar.encode(seen, sets)) for seen in further_looks(task, looks)]
            bare = torch.cat([oar.bare(oar.own_features(task)), *more])
            oar.trunk_gaussians.add(bare, task.labels.to(oar.device).repeat(looks), task.classes, looks)


class TuneTrunk(Optimisation):
    """Tune the trunk to the first task, and a head beside it that begins as the discriminant: after that, training
    has only to improve on what the trunk knows."""

    name = "trunk"
    batch = 32

    def __init__(self, oar: Oar, task: TaskData) -> None:
        self.oar, self.task, self.config = oar, task, oar.config
        self.head = oar.wp_heads[0]  # which begins anew afterwards
        self.looks = oar.looks_at(task)
        self.epochs = math.ceil(self.config.tune_steps * self.batch / len(task.images))
        self.stages = max(len(oar.trunk_as_given.stages) - self.config.tune_last, 0)
        self.activations: Tensor | None = None

    def start(self) -> None:
        self.oar.tuning.begin(
            self.oar.trunk_as_given, self.stages, self.config.tune_rank, self.task.generator("tuning")
        )
        self.prepare()
        labels = self.task.labels.to(self.oar.device).repeat(self.looks)
        with torch.no_grad():
            features = torch.cat([self.features(rows) for rows in torch.arange(len(labels)).split(CHUNK)])
            start_as_discriminant(self.head, features, labels, self.looks)

    def prepare(self) -> None:
        if self.activations is None:
            trunk = self.oar.trunk_as_given
            seen = (chunk for look in all_looks(self.task, self.looks) for chunk in look.split(CHUNK))
            with torch.no_grad():
                below = (trunk.below(chunk.to(self.oar.device), self.stages) for chunk in seen)
                self.activations = joined(below, self.looks * len(self.task.images))
            self.trunk = self.oar.tuning.trainable(trunk)

    def features(self, rows: Tensor) -> Tensor:
        """Return features of some of all looks, as the trunk is at the moment."""
        assert self.activations is not None
        activations = self.activations[rows.to(self.activations.device)].to(self.oar.device)
        return self.trunk.adapted(activations, self.stages, lambda _, x: x, None)

    def optimiser(self) -> Optimizer:
        return AdamW([*self.oar.tuning.parameters(), *self.head.parameters()], self.config.tune_lr)

    def rate(self, done: float) -> float:
        """Return a rate that rises for three tenths of the steps and falls for the rest (Smith and Topin, 2019)."""
        return _half_wave(done / 0.3) if done < 0.3 else _half_wave((1 - done) / 0.7)

    def batches(self, random: torch.Generator) -> list[Batch]:
        rows = torch.cat(shuffled(len(self.task.images), self.batch, random))
        look = torch.randint(self.looks, rows.shape, generator=random)
        return [(part,) for part in (look * len(rows) + rows).split(self.batch)]

    def loss(self, step: Step) -> Loss:
        (rows,) = step.batch
        labels = self.task.labels[rows % len(self.task.images)].to(self.oar.device)
        logits = self.head(self.features(rows))
        return Loss(F.cross_entropy(logits, labels, label_smoothing=0.1), accuracy(logits, labels))

    def gradients(self, step: Step) -> Loss:
        loss = super().gradients(step)
        nn.utils.clip_grad_norm_([*self.oar.tuning.parameters(), *self.head.parameters()], 1.0)
        return loss

    def finish(self) -> None:
        self.oar.tuning.finish()
        self.oar.stand_on_tuned()


def all_looks(task: TaskData, looks: int) -> Iterator[Tensor]:
    """Return the task's images, and as often as is wanted another look at them all."""
    yield task.images
    yield from further_looks(task, looks)


def further_looks(task: TaskData, looks: int) -> Iterator[Tensor]:
    for number in range(1, looks):
        yield look_again(task.images, task.generator("look", number))


def start_as_discriminant(head: nn.Linear, features: Tensor, labels: Tensor, looks: int) -> None:
    """Make a head the linear discriminant of some features, as sure of itself as fits their labels best."""
    classes = head.out_features
    gaussians = PooledGaussians(features.shape[1]).to(features.device)
    gaussians.add(features, labels, classes, looks)
    weight = gaussians.directions
    bias = -(weight * (gaussians.means + gaussians.means.mean(0))).sum(1) / 2
    logits = features @ weight.T + bias
    scales = [2.0**power for power in range(-10, 1)]
    scale = min(scales, key=lambda scale: float(F.cross_entropy(scale * logits, labels, label_smoothing=0.1)))
    head.weight.copy_(scale * weight)
    head.bias.copy_(scale * bias)


def _half_wave(share: float) -> float:
    """From 0 to 1 and level at both ends."""
    return (1 - math.cos(math.pi * share)) / 2
