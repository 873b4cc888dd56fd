"""GD: global distillation (Lee et al., ICCV 2019), without the unlabelled images "in the wild" it was made for.

Three teachers: P, the network before the task; C, a copy trained on the task alone; Q, the two joined into one answer
over all classes. The network learns from labels and all three; then its head is fine-tuned by the same objective on
balanced batches.

Choices, after the authors' code: temperature 2 for P and C, with the factors τ² and the share of classes each speaks
for; P speaks with one softmax over all earlier classes; Q at temperature 1. They ask Q about external images only,
and it takes for granted that an image is of an earlier class; so here, where there are none, it is asked about the
images in memory: a term that is in neither their paper nor their code, where Q is silent without external images. C
is trained without their confidence loss (uniform answers on foreign images). Balance comes from balanced batches
instead of weights. The memory is drawn at random.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from oarlock.methods import method
from oarlock.methods._options import SharedConfig
from oarlock.methods._shared import Remember, SharedMethod, TrainShared, TrainWithTeacher, distillation
from oarlock.options import option
from oarlock.training import Batch, Phase, TaskData, balanced


@dataclass(frozen=True)
class GdConfig(SharedConfig):
    temperature: float = option(2.0, least=1e-3)  # of the teachers P and C
    balanced_epochs: int = option(2, least=0)
    balanced_lr: float = option(0.003, least=0)


@method("gd")
class Gd(SharedMethod):
    """Distil from an old, a new and a joint teacher, then balance the head."""

    Config = GdConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-mini": {"lr": 0.01}}
    paper = "Lee et al., ICCV 2019"
    verified = "all terms by hand; Q sums to one and keeps P's answer; balanced batches counted"
    config: GdConfig

    def phases(self, task: TaskData) -> list[Phase]:
        if task.index == 0:
            return [TrainShared(self, task), Remember(self, task)]
        return [TrainTaskTeacher(self, task), TrainStudent(self, task), BalanceHead(self, task), Remember(self, task)]


class TrainTaskTeacher(TrainShared):
    """Train the teacher C: it starts as the network is, and learns to tell the task's classes from each other."""

    name = "task teacher"

    def start(self) -> None:
        self.method.keep_copy("task")

    def prepare(self) -> None:
        super().prepare()
        self.network = self.method.copies["task"].requires_grad_()

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, self.old :], labels - self.old)


class TrainStudent(TrainWithTeacher):
    """Train the network by labels, P (`taught`) and C on all images, by Q on the memory's."""

    config: GdConfig

    def prepare(self) -> None:
        super().prepare()
        self.taught_new = self.activations.through(self.method.copies["task"])[:, self.old :]
        self.joint = joint_teacher(self.taught[:, : self.old], self.taught_new)

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        old, new = logits[:, : self.old], logits[:, self.old :]
        local = distillation(old, self.taught[rows, : self.old], self.config.temperature)
        task = distillation(new, self.taught_new[rows], self.config.temperature)
        shared = (local * self.old + task * new.shape[1]) / logits.shape[1]
        replayed = (labels < self.old).to(logits.dtype)
        everywhere = (replayed * F.cross_entropy(logits, self.joint[rows], reduction="none")).mean()
        return F.cross_entropy(logits, labels) + everywhere + self.config.temperature**2 * shared


class BalanceHead(TrainStudent):
    """Train the head alone, on features that stay, in batches where all classes are equally frequent."""

    name = "balanced"

    def __init__(self, method: Gd, task: TaskData) -> None:
        super().__init__(method, task)
        self.epochs = method.config.balanced_epochs

    def start(self) -> None:
        pass  # P is still the network before the task

    def prepare(self) -> None:
        super().prepare()
        self.features = self.activations.through(self.network.adapters)

    def optimiser(self) -> Optimizer:
        return self.config.new_optimiser(self.network.head.parameters(), self.config.balanced_lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [(rows,) for rows in balanced(self.labels, self.config.batch, random)]

    def logits(self, rows: Tensor) -> Tensor:
        return self.network.head(self.features[rows.to(self.features.device)])

    def finish(self) -> None:
        self.method.drop_copies()


def joint_teacher(old: Tensor, new: Tensor) -> Tensor:
    """Return Q: P's probability of the class that P is surest of; the rest is shared out so that every other class,
    old or new, gets on average the same.

    >>> joint_teacher(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([[0.5000, 0.1667, 0.1667, 0.1667]])
    """
    before, now = old.softmax(1), new.softmax(1)
    surest, where = before.max(1, keepdim=True)
    others = old.shape[1] + new.shape[1] - 1
    before = (before * (old.shape[1] - 1) / others).scatter(1, where, surest)
    return torch.cat([before, now * (1 - surest) * new.shape[1] / others], 1)
