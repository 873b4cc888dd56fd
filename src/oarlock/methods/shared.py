"""What methods with one network for all tasks share: ungated adapters on the trunk's own norms, one growing head."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from oarlock.methods.base import CHUNK, Method
from oarlock.methods.config import TrainConfig
from oarlock.methods.gated import Tokens, accuracy
from oarlock.nets.adapters import Adapters
from oarlock.nets.heads import GrowingHead
from oarlock.nets.trunk import Trunk
from oarlock.training import Batch, Loss, Optimisation, Step, TaskData, shuffled


class SharedMethod(Method):
    """One network: what is learned later moves what was learned before, so no features are kept."""

    lasting = False
    config: TrainConfig

    def __init__(self, trunk: Trunk, memory: int, config: TrainConfig) -> None:
        super().__init__(trunk, memory, config)
        self.adapters = Adapters(trunk, config.width, config.adapt_last)
        self.head = GrowingHead(trunk.dim)

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        if task.index == 0:
            self.adapters.reset(task.generator("adapters"))
        self.head.grow(task.classes, task.generator("head"))

    def views(self, tasks: int) -> range:
        return range(1)

    @torch.no_grad()
    def encode(self, images: Tensor, views: Sequence[int]) -> Tensor:
        chunks = [self.adapters(self.adapters.below(chunk.to(self.device))) for chunk in images.split(CHUNK)]
        return torch.cat(chunks)[:, None]

    def scores(self, encoded: Tensor) -> Tensor:
        return self.head(encoded[:, 0])

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.head.grow(sum(self.sizes), torch.Generator())


class TrainShared(Optimisation):
    """Adapters and head by cross-entropy over all classes seen, on the images given."""

    name = "training"

    def __init__(self, method: SharedMethod, task: TaskData) -> None:
        self.method, self.task, self.config = method, task, method.config
        self.epochs = self.config.epochs

    def training_set(self) -> tuple[Tensor, Tensor]:
        """Images with their numbers among all classes: the task's own, unless a method says otherwise."""
        return self.task.images, self.task.labels + self.method.columns(self.task.index).start

    def prepare(self) -> None:
        images, labels = self.training_set()
        self.tokens, self.labels = Tokens(self.method.adapters, images), labels.to(self.method.device)

    def optimiser(self) -> Optimizer:
        parameters = [*self.method.adapters.parameters(), *self.method.head.parameters()]
        return self.config.new_optimiser(parameters, self.config.lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [(rows,) for rows in shuffled(len(self.labels), self.config.batch, random)]

    def loss(self, step: Step) -> Loss:
        (rows,) = step.batch
        logits, labels = (
            self.method.head(self.method.adapters(self.tokens[rows])),
            self.labels[rows.to(self.labels.device)],
        )
        return Loss(F.cross_entropy(logits, labels), accuracy(logits, labels))
