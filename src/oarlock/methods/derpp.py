"""DER++: dark experience replay (Buzzega et al., NeurIPS 2020).

Every image that passes may enter a reservoir, with the logits the network gave it at that moment. Each step draws two
batches from it, independently: one whose logits are to be given again (squared error), one whose labels are to be
right (cross-entropy).

Choices: α = 0.1 and β = 0.5, the authors' for CIFAR-10 with 200 images; replay batches as large as the task's. As in
their code images are offered in every epoch, with the logits before the step. The head grows here, so squared errors
are taken over the columns that existed when the logits were stored.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.methods import method
from oarlock.methods.config import AdapterConfig, option
from oarlock.methods.shared import SharedMethod, TrainShared
from oarlock.nets.tokens import Tokens
from oarlock.nets.trunk import Trunk
from oarlock.reservoir import Reservoir
from oarlock.training import Loss, Phase, Step, TaskData, accuracy


@dataclass(frozen=True)
class DerppConfig(AdapterConfig):
    alpha: float = option(0.1, least=0)  # weight of stored logits
    beta: float = option(0.5, least=0)  # weight of stored labels


@method("derpp")
class Derpp(SharedMethod):
    """Replay of stored logits and of labels, from a reservoir."""

    Config = DerppConfig
    paper = "Buzzega et al., NeurIPS 2020"
    verified = "loss by hand; two different draws; reservoir uniform by a chi-square test"
    config: DerppConfig
    memory: Reservoir

    def __init__(self, trunk: Trunk, memory: int, config: DerppConfig) -> None:
        super().__init__(trunk, memory, config)
        self.memory = Reservoir(memory, trunk.card.preprocessing.size)

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.memory.begin_task()

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainDark(self, task)]


class TrainDark(TrainShared):
    method: Derpp
    config: DerppConfig

    def prepare(self) -> None:
        super().prepare()
        # Images taken in since the task began have their tokens among the task's. Those from before are passed in the
        # same places of the same chunks by a resumed run, so their tokens are the same bit for bit.
        memory = self.method.memory
        self.earlier = Tokens(self.network.adapters, memory.images[: int(memory.earlier)])

    def loss(self, step: Step) -> Loss:
        rows = step.batch[0]
        dark, labelled = self.draw(step.generator), self.draw(step.generator)
        tokens = [self.tokens[rows], self.tokens_of_memory(dark), self.tokens_of_memory(labelled)]
        logits, again, replayed = self.network(torch.cat(tokens)).split([len(part) for part in tokens])
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

    def tokens_of_memory(self, slots: Tensor) -> Tensor:
        rows = self.method.memory.rows[slots]
        new = rows >= 0
        tokens = torch.cat([self.tokens[rows[new]], self.earlier[slots[~new]]])
        return tokens[torch.cat([torch.nonzero(new), torch.nonzero(~new)]).flatten().argsort()]

    def after_step(self, step: Step) -> None:
        rows, logits = self.offered
        labels = self.labels[rows.to(self.labels.device)]
        self.method.memory.offer(self.task.images[rows], labels, logits, rows, step.generator)


def squared_error(logits: Tensor, stored: Tensor, known: Tensor) -> Tensor:
    """Mean over the logits that existed when they were stored.

    >>> logits, stored = torch.tensor([[1.0, 9.0], [1.0, 3.0]]), torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    >>> squared_error(logits, stored, torch.tensor([1, 2]))  # (4 + 0 + 4) / 3
    tensor(2.6667)
    """
    existed = torch.arange(stored.shape[1], device=known.device) < known[:, None]
    return (logits[:, : stored.shape[1]] - stored)[existed].square().mean()
