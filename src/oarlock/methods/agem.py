"""A-GEM: averaged gradient episodic memory (Chaudhry et al., ICLR 2019).

Replay only forbids: the network is trained on the task's images alone, but where the gradient g would raise the loss
of a batch from memory with gradient g_ref (g·g_ref < 0), it is projected onto the half-space in which it does not.

Choices: the memory is class-balanced as for all methods here and holds finished tasks only, as in the authors' code;
the reference batch is as large as the task's (theirs: up to 256). One head over all classes, no task masks, since
nobody says which task an image is from. Plain SGD as in their code: with momentum a step goes on along gradients that
were projected against other references, and little is left of the constraint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.methods import method
from oarlock.methods._options import SharedConfig
from oarlock.methods._shared import Remember, SharedMethod, TrainBesideMemory
from oarlock.options import option
from oarlock.training import Loss, Phase, Step, TaskData


@dataclass(frozen=True)
class AgemConfig(SharedConfig):
    momentum: float = option(0.0, least=0, most=1)


@method("agem")
class Agem(SharedMethod):
    """Project gradients until they do not raise the loss on the memory."""

    Config = AgemConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-mini": {"lr": 0.01}}
    paper = "Chaudhry et al., ICLR 2019"
    verified = "closed form and an independent quadratic program; product with the reference never negative"

    def entries_while_training(self) -> int:
        return 3 * sum(parameter.numel() for parameter in self.parameters())  # gradients, as the paper counts them

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainProjected(self, task), Remember(self, task)]


class TrainProjected(TrainBesideMemory):
    """Train by cross-entropy on the task's images, with gradients under the memory's constraint."""

    mean_over_rows = False  # the constraint is one of the whole gradient

    def gradients(self, step: Step) -> Loss:
        loss = super().gradients(step)
        if len(step.batch) > 1:
            parameters = list(self.network.parameters())
            reference = self._reference(step.batch[1], parameters)
            gradient = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
            parts = project(gradient, reference).split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter)
        return loss

    def _reference(self, rows: Tensor, parameters: list[torch.nn.Parameter]) -> Tensor:
        logits = self.network(self.replay[rows])
        loss = F.cross_entropy(logits, self.replay_labels[rows.to(self.replay_labels.device)])
        return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, parameters)])


def project(gradient: Tensor, reference: Tensor) -> Tensor:
    """Return the nearest vector to `gradient` whose product with `reference` is not negative.

    >>> project(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]))
    tensor([1., 0.])
    >>> project(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]))
    tensor([1., 1.])
    """
    product = gradient @ reference
    if product >= 0:
        return gradient
    squared = (reference @ reference).clamp_min(torch.finfo(reference.dtype).tiny)  # may round to 0
    return gradient - product / squared * reference
