"""A-GEM: averaged gradient episodic memory (Chaudhry et al., ICLR 2019).

Replay only forbids: the network is trained on the task's images alone, but where the gradient g would raise the loss
of a batch from memory with gradient g_ref (g·g_ref < 0), it is projected onto the half-space in which it does not.

Choices: the memory is class-balanced as for all methods here and holds finished tasks only, as in the authors' code;
the reference batch is as large as the task's (theirs: up to 256). One head over all classes, no task masks, since
nobody says which task an image is from. Plain SGD as in their code: with momentum a step goes on along gradients that
were projected against other references, and little is left of the constraint.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.methods import method
from oarlock.methods.config import AdapterConfig, option
from oarlock.methods.shared import Remember, SharedMethod, TrainBesideMemory
from oarlock.training import Loss, Phase, Step, TaskData


@dataclass(frozen=True)
class AgemConfig(AdapterConfig):
    momentum: float = option(0.0, least=0, most=1)


@method("agem")
class Agem(SharedMethod):
    """Gradients are projected until they do not raise the loss on the memory."""

    Config = AgemConfig
    paper = "Chaudhry et al., ICLR 2019"
    verified = "closed form and an independent quadratic program; product with the reference never negative"

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainProjected(self, task), Remember(self, task)]


class TrainProjected(TrainBesideMemory):
    """Cross-entropy on the task's images, gradients under the memory's constraint."""

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
    """The nearest vector to `gradient` whose product with `reference` is not negative.

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
