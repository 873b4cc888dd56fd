"""EEIL: end-to-end incremental learning (Castro et al., ECCV 2018).

Cross-entropy over all classes seen, plus for every earlier task a distillation of the network before the task, each
softmax over that task's classes alone; on the task's images and herded exemplars pooled. Then balanced fine-tuning:
all classes equally often, a tenth of the learning rate, and distillation of every task, the newest too, from the
network as the first phase left it.

Choices: temperature 2 and all weights 1, without a factor τ² (authors' code); 3 balanced epochs for every 4 (30 for
40). The balanced set is the memory once it holds the new classes, so it stays within the budget; the authors keep
more for the moment, and herd again afterwards. Their gradient noise and twelvefold augmentation are left out: none of
the methods here augments.
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
class EeilConfig(SharedConfig):
    temperature: float = option(2.0, least=1e-3)  # of distillation
    balanced_epochs: int = option(3, least=0)
    balanced_lr: float = option(0.003, least=0)


@method("eeil")
class Eeil(SharedMethod):
    """Distil per task, then fine-tune on balanced exemplars."""

    Config = EeilConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-mini": {"lr": 0.01}}
    paper = "Castro et al., ECCV 2018"
    verified = "both losses by hand; herding by brute force; balanced batches counted"
    config: EeilConfig

    def phases(self, task: TaskData) -> list[Phase]:
        if task.index == 0:
            return [TrainShared(self, task), Remember(self, task, herd=True)]
        return [TrainDistilled(self, task), Remember(self, task, herd=True), FinetuneBalanced(self, task)]

    def distillations(self, logits: Tensor, taught: Tensor, tasks: int) -> Tensor:
        """Return the sum of the distillation losses of the first tasks."""
        columns = [self.class_slice(task) for task in range(tasks)]
        losses = [distillation(logits[:, c], taught[:, c], self.config.temperature) for c in columns]
        return torch.stack(losses).sum()


class TrainDistilled(TrainWithTeacher):
    method: Eeil

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        learned = self.method.distillations(logits, self.taught[rows], self.task.index)
        return F.cross_entropy(logits, labels) + learned

    def finish(self) -> None:
        self.method.drop_copies()


class FinetuneBalanced(TrainWithTeacher):
    """Fine-tune on the memory, which holds all classes equally; distil what the first phase learned of them all."""

    name = "balanced"
    method: Eeil

    def __init__(self, method: Eeil, task: TaskData) -> None:
        super().__init__(method, task)
        self.epochs = method.config.balanced_epochs

    def training_set(self) -> tuple[Tensor, Tensor]:
        return self.method.memory.images, self.method.memory.labels

    def optimiser(self) -> Optimizer:
        return self.config.new_optimiser(self.network.parameters(), self.method.config.balanced_lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [(rows,) for rows in balanced(self.labels, self.config.batch, random)]

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        learned = self.method.distillations(logits, self.taught[rows], self.task.index + 1)
        return F.cross_entropy(logits, labels) + learned

    def finish(self) -> None:
        self.method.drop_copies()
