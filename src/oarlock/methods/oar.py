"""OAR, our own: ROW's structure and training, and what the frozen trunk knows already.

ROW chooses the task by c_k(x) · max softmax(h_k), where every c_k is measured in the features of its own task. OAR
trusts distances more, c_k(x)^γ, and adds b_k(x): how near the task's classes are under the bare trunk, in one metric
for all tasks. Its class means and its covariance are the same in whatever order the classes came. What is trained is
ROW's bit for bit, so a run of OAR holds ROW's scores and those of its ablations as well.

A task with few images cannot train features that are better than the trunk's: its adapters stay closed, its
statistics come from several looks at every image, its heads begin as the discriminant of these, and the trunk itself
is tuned once, to the first such task, before anything stands on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.detectors import EvidenceOf
from oarlock.detectors.gaussians import log_nearness
from oarlock.detectors.pooled import PartOfPooled, PooledGaussians
from oarlock.methods import method
from oarlock.methods._base import Variants, without
from oarlock.methods._few_images import TuneTrunk, further_looks, start_as_discriminant
from oarlock.methods._protected import AS_IN_PAPER, ProtectedMethod
from oarlock.methods.row import Row, RowConfig, TrainWpHead
from oarlock.nets.trunks import Trunk
from oarlock.nets.tuning import TUNING, Tuning
from oarlock.options import option
from oarlock.schema import Check, boolean, integer, list_of
from oarlock.training import Phase, TaskData

# Distances in hundreds of dimensions are surer than they are right: what their scores count where they alone answer,
# so that probabilities fit calibration images.
SURENESS = 0.075
# What nearness counts against direction, for the best class and for all together, and how soft the maximum is over
# these: chosen on CIFAR-100 and on photographs, see docs/oar.md.
NEARNESS = 0.2
NEARNESS_OF_ALL = 0.4
SOFTNESS = 1 / 15


@dataclass(frozen=True)
class OarConfig(RowConfig):
    """Hold ROW's options, the weights of what was added, and what is done where images are few."""

    gamma: float = option(8.0, least=0)  # exponent of the distance coefficient
    beta: float = option(0.8, least=0)  # weight of distances under the bare trunk
    delta: float = option(0.0, least=0, most=1)  # of that weight, what counts within a task with adapters as well
    few: int = option(60, least=0)  # images of a class, up to which a task has few and leaves the adapters closed
    looks: int = option(4, least=1, most=100)  # at every image of such a task, augmented after the first
    tune_steps: int = option(100, least=0)  # in which the trunk is tuned to the first task, if that is one
    tune_last: int = option(3, least=1)  # stages that are tuned, from the top
    tune_lr: float = option(0.0015, least=0)
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
        "own": lambda method, encoded: method.own_evidence(encoded),
        "familiarity": lambda method, encoded: method.familiarity(encoded),
        "kinship": lambda method, encoded: method.kinship(encoded),
        "bare": lambda method, encoded: [method.bare(encoded)],
        "statistics": lambda method, encoded: [method.trunk_gaussians],
    }
    described: ClassVar[Mapping[str, Check]] = {
        **Row.described,
        "closed": list_of(boolean),
        "trunk_classes": integer(0),
        "tuning": TUNING,
    }
    config: OarConfig

    def __init__(self, trunk: Trunk, memory: int, config: OarConfig) -> None:
        super().__init__(trunk, memory, config)
        self.closed: list[bool] = []  # which tasks begun leave the adapters closed
        self.trunk_gaussians = PooledGaussians(min(trunk.bare_dim, trunk.dim * len(self.feature_sets(0))))
        self.tuning = Tuning()
        self.register_load_state_dict_post_hook(lambda oar, _: oar.stand_on_tuned())

    def begin(self, task: TaskData) -> None:
        able = self.config.few and self.config.beta
        self.closed.append(bool(able) and len(task.images) <= self.config.few * task.classes)
        super().begin(task)

    def phases(self, task: TaskData) -> list[Phase]:
        features, _, ood_heads = super().phases(task)
        if not self.closed[task.index]:
            return [features, TrainWpHeadAndSeeBare(self, task), ood_heads]
        tuning = [TuneTrunk(self, task)] if self.can_tune_to(task) else []
        return [*tuning, LearnByStatistics(self, task), ood_heads]

    def new_gaussians(self, classes: int) -> nn.Module:
        task = len(self.gaussians)
        if self.closed[task]:
            return PartOfPooled(self.trunk_gaussians, self.class_slice(task))
        return super().new_gaussians(classes)

    def forget(self, column: int, random: torch.Generator) -> int | None:
        task = int(self.tasks_of(torch.tensor(column)))
        alone = self.classes_per_task[task] == 1
        row = super().forget(column, random)
        if alone:
            del self.closed[task]
        if self.config.beta:
            self.trunk_gaussians.forget(column)
        for k, gaussians in enumerate(self.gaussians):
            if self.closed[k]:
                gaussians.classes = self.class_slice(k)
        return row

    # -- what the trunk is tuned to, once ------------------------------------------------------------------

    def can_tune_to(self, task: TaskData) -> bool:
        """Tell whether the trunk is tuned to a task: to the first, if that shows enough of what there is."""
        able = self.config.tune_steps and len(self.trunk.stages)
        return bool(task.index == 0 and task.classes >= self.config.tune_classes and able)

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

    # -- features of tasks, which are the trunk's where adapters stay closed ---------------------------------

    def feature_sets(self, tasks: int) -> Sequence[int]:
        bare = range(-self.trunk.bare_rows if self.config.beta else 0, 0)
        return [*bare, *(task for task in range(tasks) if not self.closed[task])]

    def by_task(self, encoded: Tensor) -> list[Tensor]:
        bare = encoded[:, : len(self.feature_sets(0))]
        return self._by_task(encoded, bare[:, self.trunk.features_row] if any(self.closed) else bare)

    def measured(self, encoded: Tensor) -> list[Tensor]:
        return self._by_task(encoded, self.bare(encoded))

    def _by_task(self, encoded: Tensor, of_closed: Tensor) -> list[Tensor]:
        adapted = iter(super().by_task(encoded))
        return [of_closed if closed else next(adapted) for closed in self.closed]

    # -- prediction ----------------------------------------------------------------------------------------

    def scores(self, encoded: Tensor) -> Tensor:
        """Return ROW's scores by its own formula, and how near every class is under the bare trunk."""
        scores = self.joint(encoded, self.log_claims(encoded, self.config.gamma)) + self.class_nearness(encoded)
        return SURENESS * scores if any(self.closed) else scores

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
        parts = zip(near.split(self.classes_per_task, 1), self.closed, strict=True)
        delta = self.config.delta
        return torch.cat(
            [own if closed else torch.lerp(own.amax(1, keepdim=True), own, delta) for own, closed in parts], 1
        )

    def log_coefficients(self, encoded: Tensor) -> Tensor:
        """Return log c_k; of tasks without adapters from one pass through the metric that they share."""
        if not any(self.closed):
            return super().log_coefficients(encoded)
        shared = self.trunk_gaussians.distances(self.bare(encoded)).split(self.classes_per_task, 1)
        tasks = zip(self.closed, shared, self.gaussians, self.by_task(encoded), strict=True)
        distances = [near if closed else gaussians.distances(f) for closed, near, gaussians, f in tasks]
        return torch.stack([log_nearness(own) for own in distances], 1)

    def task_nearness(self, encoded: Tensor) -> Tensor:
        """Return the same of every task's nearest class."""
        return torch.stack(self.best_of_tasks(self.class_nearness(encoded)), 1)

    def at_hand(self) -> Mapping[str, EvidenceOf]:
        if self.config.beta:
            return super().at_hand()
        return without(super().at_hand(), "familiarity", "kinship", "bare", "statistics")

    def own_evidence(self, encoded: Tensor) -> Sequence[Tensor]:
        """Return what unknown inputs are told by, if no detector is chosen: kinship where a task has nothing else to
        go by than statistics."""
        return self.kinship(encoded) if any(self.closed) else Row.evidence["own"](self, encoded)

    def familiarity(self, encoded: Tensor) -> list[Tensor]:
        """Return how familiar inputs look to each task: as its most familiar class."""
        return self.best_of_tasks(self.familiar_classes(encoded, NEARNESS))

    def kinship(self, encoded: Tensor) -> list[Tensor]:
        """Return how familiar inputs look to all classes together, once for all tasks: a soft maximum, so that what
        lies between learned kinds, and might be either, is known as well."""
        familiar = self.familiar_classes(encoded, NEARNESS_OF_ALL)
        return [SOFTNESS * (familiar / SOFTNESS).logsumexp(1)]

    def familiar_classes(self, encoded: Tensor, nearness: float) -> Tensor:
        """Return how much inputs look like each class under the bare trunk: whether they lie in its direction, and
        are nearer to it than to all classes together, in units of how far classes are. [B, classes]"""
        pooled, bare = self.trunk_gaussians, self.bare(encoded)
        if len(pooled.means) == 1:
            return pooled.relative(bare)
        return pooled.cosines(bare) + nearness / pooled.whitened.square().sum(1).mean() * pooled.relative(bare)

    def best_of_tasks(self, of_classes: Tensor) -> list[Tensor]:
        """Return the largest value of each task's classes."""
        return [own.amax(1) for own in of_classes.split(self.classes_per_task, 1)]

    def bare(self, encoded: Tensor) -> Tensor:
        """Return what the bare trunk sees."""
        return encoded[:, : len(self.feature_sets(0))].flatten(1)[:, : self.trunk.bare_dim]

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        """Return no distances of a task without adapters: its metric is that of all classes, and becomes better."""
        if not self.closed[task]:
            return super().promised(images, task)
        promised = ProtectedMethod.promised(self, images, task)
        return {**promised, "wp_logits": self.wp_heads[task](promised["features"])}

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "closed": self.closed,
            "trunk_classes": len(self.trunk_gaussians.means),
            "tuning": self.tuning.describe(),
        }

    def rebuild(self, description: dict[str, Any]) -> None:
        self.closed = list(description["closed"])
        super().rebuild(description)
        self.trunk_gaussians.rebuild(description["trunk_classes"])
        self.tuning.rebuild(description["tuning"])
        self.tuning.check(self.trunk_as_given)
        self.tuning.to(self.device)


class TrainWpHeadAndSeeBare(TrainWpHead):
    """Train the WP head, take the Gaussians of its classes, and those under the bare trunk."""

    row: Oar

    def finish(self) -> None:
        super().finish()
        if self.row.config.beta:
            oar, task = self.row, self.task
            bare, labels = oar.bare(oar.own_features(task)), task.labels.to(oar.device)
            oar.trunk_gaussians.add(bare, labels, task.classes)


class LearnByStatistics(Phase):
    """Leave the adapters closed: take the Gaussians of a task's classes under the bare trunk, from several looks, and
    begin its heads as their discriminant."""

    name = "statistics"

    def __init__(self, oar: Oar, task: TaskData) -> None:
        self.oar, self.task = oar, task

    @torch.no_grad()
    def finish(self) -> None:
        oar, task, k = self.oar, self.task, self.task.index
        oar.protector.close_task()
        looks, sets = oar.config.looks if oar.trunk.pictures else 1, oar.feature_sets(0)
        encoded = torch.cat(
            [oar.own_features(task), *(oar.encode(seen, sets) for seen in further_looks(task, looks))]
        )
        labels = task.labels.to(oar.device).repeat(looks)
        oar.trunk_gaussians.add(oar.bare(encoded), labels, task.classes, looks)
        start_as_discriminant(oar.wp_heads[k], encoded[:, oar.trunk.features_row], labels, looks)
        for head in (oar.ood_heads[k], oar.step1_heads[k]):  # "not mine" is as likely as classes are on average
            head.weight.copy_(F.pad(oar.wp_heads[k].weight, (0, 0, 0, 1)))
            head.bias.copy_(F.pad(oar.wp_heads[k].bias, (0, 1)))
