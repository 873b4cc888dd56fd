"""DER++: dark experience replay (Buzzega et al., NeurIPS 2020).

Every image that passes may enter a reservoir, with the logits the network gave it at that moment. Each step draws two
batches from it, independently: one whose logits are to be given again (squared error), one whose labels are to be
right (cross-entropy).

Choices: α = 0.1 and β = 0.5, the authors' for CIFAR-10 with 200 images; replay batches as large as the task's. As in
their code images are offered in every epoch, with the logits before the step. The head grows here, so squared errors
are taken over the columns that existed when the logits were stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.errors import OarlockError
from oarlock.memory import Reservoir
from oarlock.methods import method
from oarlock.methods._options import SharedConfig
from oarlock.methods._shared import SharedMethod, TrainShared
from oarlock.nets.adapters import CachedActivations
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Loss, Phase, Step, TaskData, accuracy


@dataclass(frozen=True)
class DerppConfig(SharedConfig):
    alpha: float = option(0.1, least=0)  # weight of stored logits
    beta: float = option(0.5, least=0)  # weight of stored labels


@method("derpp")
class Derpp(SharedMethod):
    """Replay stored logits and labels from a reservoir."""

    Config = DerppConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-lite": {"lr": 0.01}}
    paper = "Buzzega et al., NeurIPS 2020"
    verified = "loss by hand; two different draws; reservoir uniform by a chi-square test"
    config: DerppConfig
    memory: Reservoir

    def __init__(self, trunk: Trunk, memory: int, config: DerppConfig) -> None:
        super().__init__(trunk, memory, config)
        self.memory = Reservoir(memory, trunk.blank(0))

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.memory.begin_task()

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainDark(self, task)]


class TrainDark(TrainShared):
    mean_over_rows = False  # the memory's rows are drawn, whatever the batch
    method: Derpp
    config: DerppConfig

    def prepare(self) -> None:
        super().prepare()
        # Images taken in since the task began have their activations among the task's. Those from before are passed
        # in the same places of the same chunks by a resumed run, so their activations are the same bit for bit.
        memory = self.method.memory
        if int((memory.rows >= 0).sum()) and not (
            int(memory.rows.max()) < len(self.task.images) and bool((memory.rows[int(memory.earlier) :] >= 0).all())
        ):
            raise OarlockError("the model keeps images of the task that the task does not have")
        self.earlier = CachedActivations(self.network.adapters, memory.images[: int(memory.earlier)])

    def loss(self, step: Step) -> Loss:
        rows = step.batch[0]
        dark, labelled = self.draw(step.generator), self.draw(step.generator)
        activations = [self.activations[rows], self.activations_of_memory(dark), self.activations_of_memory(labelled)]
        logits, again, replayed = self.network(torch.cat(activations)).split([len(part) for part in activations])
        labels, memory = self.labels[rows.to(self.labels.device)], self.method.memory
        loss = F.cross_entropy(logits, labels)
        if len(memory):
            loss = loss + self.config.alpha * squared_error(again, memory.logits[dark], memory.known[dark])
            loss = loss + self.config.beta * F.cross_entropy(replayed, memory.labels[labelled])
        self.offered = rows, logits.detach()
        return Loss(loss, accuracy(logits, labels))

    def draw(self, random: torch.Generator) -> Tensor:
        memory = self.method.memory
        return torch.randperm(len(memory), generator=random)[: self.config.batch].to(memory.labels.device)

    def activations_of_memory(self, slots: Tensor) -> Tensor:
        rows = self.method.memory.rows[slots]
        new = rows >= 0
        activations = torch.cat([self.activations[rows[new]], self.earlier[slots[~new]]])
        return activations[torch.cat([torch.nonzero(new), torch.nonzero(~new)]).flatten().argsort()]

    def after_step(self, step: Step) -> None:
        rows, logits = self.offered
        labels = self.labels[rows.to(self.labels.device)]
        self.method.memory.offer(self.task.images[rows], labels, logits, rows, step.generator)


def squared_error(logits: Tensor, stored: Tensor, known: Tensor) -> Tensor:
    """Return the mean squared error over the logits that existed when they were stored.

    >>> logits, stored = torch.tensor([[1.0, 9.0], [1.0, 3.0]]), torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    >>> squared_error(logits, stored, torch.tensor([1, 2]))  # (4 + 0 + 4) / 3
    tensor(2.6667)
    """
    existed = torch.arange(stored.shape[1], device=known.device) < known[:, None]
    return (logits[:, : stored.shape[1]] - stored)[existed].square().mean()
