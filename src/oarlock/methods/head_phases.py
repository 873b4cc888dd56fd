"""Phases that train linear heads on features which no longer change: the trunk is not run in them."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.methods.config import option
from oarlock.methods.gated import GatedConfig, GatedMethod, accuracy
from oarlock.nets.modules import Modules
from oarlock.training import Batch, Loss, Optimisation, Step, TaskData, cycled, shuffled


@dataclass(frozen=True)
class HeadConfig(GatedConfig):
    """How heads are trained on top of gated features."""

    head_batch: int = option(32, least=1)
    head_lr: float = option(0.003, least=0)


class TrainHead(Optimisation):
    """One head on the task's own images, plain cross-entropy."""

    name = "within-task head"

    def __init__(self, method: GatedMethod, task: TaskData, config: HeadConfig, head: nn.Linear, epochs: int) -> None:
        self.method, self.task, self.config, self.head = method, task, config, head
        self.epochs = epochs

    def prepare(self) -> None:
        self.features = self.method.own_views(self.task)[:, -1]
        self.labels = self.task.labels.to(self.method.device)

    def optimiser(self) -> Optimizer:
        return self.config.new_optimiser(self.head.parameters(), self.config.head_lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [(rows,) for rows in shuffled(len(self.labels), self.config.head_batch, random)]

    def loss(self, step: Step) -> Loss:
        rows = step.batch[0].to(self.labels.device)
        logits, labels = self.head(self.features[rows]), self.labels[rows]
        return Loss(F.cross_entropy(logits, labels), accuracy(logits, labels))


class OwnAndForeign(NamedTuple):
    """The memory's features under one task: of its own images, with labels, and of all others."""

    own: Tensor
    labels: Tensor
    foreign: Tensor


class TuneOodHeads(Optimisation):
    """The OOD heads of all tasks, each on the memory: its own images against all the others, half and half."""

    name = "OOD heads"

    def __init__(
        self, method: GatedMethod, task: TaskData, config: HeadConfig, heads: Modules[nn.Linear], epochs: int
    ) -> None:
        self.method, self.task, self.config, self.heads = method, task, config, heads
        self.epochs = epochs if task.index else 0  # nothing is foreign to a single task

    def start(self) -> None:
        self.method.remember(self.task)

    def prepare(self) -> None:
        method, memory = self.method, self.method.memory
        labels = memory.labels.to(method.device)
        self.data = []
        for j, features in enumerate(method.by_task(memory.encoded)):
            local = labels - method.columns(j).start
            own = (local >= 0) & (local < method.sizes[j])
            self.data.append(OwnAndForeign(features[own], local[own], features[~own]))

    def optimiser(self) -> Optimizer:
        return self.config.new_optimiser(self.heads.parameters(), self.config.head_lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        steps = -(-len(self.method.memory) // self.config.head_batch)
        sizes = [self.config.head_batch] * steps
        columns = []
        for own, _, foreign in self.data:
            columns += [cycled(len(own), sizes, random), cycled(len(foreign), sizes, random)]
        return list(zip(*columns, strict=True))

    def loss(self, step: Step) -> Loss:
        """The heads share nothing, so the sum of their losses trains each as if alone (Eq. obj_back_update)."""
        losses, right = [], []
        for j, (own, labels, foreign) in enumerate(self.data):
            mine, others = step.batch[2 * j].to(own.device), step.batch[2 * j + 1].to(own.device)
            logits = self.heads[j](torch.cat([own[mine], foreign[others]]))
            target = torch.cat([labels[mine], labels.new_full((len(others),), self.method.sizes[j])])
            losses.append(F.cross_entropy(logits, target))
            right.append(accuracy(logits, target))
        return Loss(torch.stack(losses).sum(), sum(right) / len(right))
