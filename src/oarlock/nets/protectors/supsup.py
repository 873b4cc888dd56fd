"""Supermasks (SupSup, Wortsman et al., NeurIPS 2020): adapters of fixed random constants, and for every task a binary
mask that says which of them it uses.

All weights have one size, the Kaiming deviation √(2 / inputs), and a random sign; none is ever trained. A task trains
a score for each, and keeps the largest share of |scores|: the gradient of a mask goes to the scores as it is
(straight-through). When the task is finished the mask is kept and the scores are not. Nothing shared is trained, so
nothing can be overwritten; a task costs a bit for every weight.

As in the authors' layers: |scores|, scores that begin as uniform as a linear layer's weights, the share kept in each
matrix, no biases. Ours: the constants of an adapter's second matrix are `scale` times as large, since it adds to what
the trunk gives; norms of a task's own, as every protector here has them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.nets.adapters import AdapterConfig
from oarlock.nets.heads import Modules, uniform_
from oarlock.nets.protectors import Protector, protector
from oarlock.nets.protectors._compact import SiteWeights
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.schema import Check, boolean, integer


def largest(scores: Tensor, share: float) -> Tensor:
    """Return a mask of the largest share of scores.

    >>> largest(torch.tensor([[0.4, 0.1], [0.3, 0.2]]), 0.5)
    tensor([[1., 0.],
            [1., 0.]])
    """
    mask = torch.ones_like(scores).flatten()
    mask[scores.flatten().argsort(stable=True)[: int((1 - share) * scores.numel())]] = 0
    return mask.view_as(scores)


class _StraightThrough(torch.autograd.Function):
    """Forward the mask, backward as if it were the scores."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, share: float) -> Tensor:
        return largest(scores, share)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class MaskedLinear(nn.Module):
    """Hold a matrix of signed constants [outputs, inputs], a mask of it for every task, and scores while one is
    learned."""

    def __init__(self, inputs: int, outputs: int, share: float, scale: float = 1.0) -> None:
        super().__init__()
        self.share, self.size = share, scale * (2 / inputs) ** 0.5
        self.register_buffer("constants", torch.zeros(outputs, inputs))
        self.register_buffer("masks", torch.zeros(0, outputs, inputs, dtype=torch.bool))
        self.constants: Tensor
        self.masks: Tensor
        self.scores = nn.Parameter(torch.zeros(0, inputs))

    def reset(self, random: torch.Generator) -> None:
        """Draw new scores, and the constants where there are none yet."""
        if self.constants.is_meta:  # on which nothing is drawn
            return
        if not self.constants.any():
            signs = torch.randint(2, self.constants.shape, generator=random) * 2 - 1
            self.constants.copy_(signs * self.size)
        uniform_(self.scores, self.constants.shape[1] ** -0.5, random)

    def add(self, learning: bool) -> None:
        """Take the shapes of one more task."""
        self.masks = torch.cat([self.masks, self.masks.new_zeros(1, *self.constants.shape)])
        if learning:
            self.scores = nn.Parameter(torch.zeros_like(self.constants))

    def finish(self, closed: bool) -> None:
        """Keep the newest task's mask, an empty one of a task that is closed, in place of its scores."""
        if not closed:
            self.masks[-1] = largest(self.scores.detach().abs(), self.share).bool()
        self.scores = nn.Parameter(self.scores.detach()[:0])

    def weight(self, task: int) -> Tensor:
        """Return the matrix that a task uses."""
        learned_now = len(self.scores) and task == len(self.masks) - 1
        mask = _StraightThrough.apply(self.scores.abs(), self.share) if learned_now else self.masks[task]
        return self.constants * mask

    def superposed(self, shares: Tensor) -> Tensor:
        """Return the matrices [B, outputs, inputs] in which the first tasks' masks have these shares [B, tasks]."""
        masks = self.masks[: shares.shape[1]].flatten(1).to(shares.dtype)
        return (shares @ masks).view(-1, *self.constants.shape) * self.constants


class MaskedBottleneck(nn.Module):
    """Compute fc2(relu(fc1(u))) without biases, by masked matrices."""

    def __init__(self, dim: int, config: "SupSupAdapterConfig") -> None:
        super().__init__()
        self.fc1 = MaskedLinear(dim, config.width, config.share)
        self.fc2 = MaskedLinear(config.width, dim, config.share, config.scale)

    def forward(self, u: Tensor, task: int) -> Tensor:
        return F.linear(F.relu(F.linear(u, self.fc1.weight(task))), self.fc2.weight(task))

    def superposed(self, u: Tensor, shares: Tensor) -> Tensor:
        """Return the same with a superposition of masks for each image."""
        places = u.reshape(len(shares), -1, u.shape[-1])
        hidden = F.relu(places @ self.fc1.superposed(shares).mT)
        return (hidden @ self.fc2.superposed(shares).mT).view_as(u)


@dataclass(frozen=True)
class SupSupConfig:
    """Say how masks are trained."""

    score_lr: float = option(1.0, least=0)  # of the scores: a rate of their own, as gates have
    share: float = option(0.5, least=1e-3, most=1)  # of the weights of a matrix that a task keeps
    scale: float = option(0.3, least=0)  # of an adapter's second matrix


@dataclass(frozen=True)
class SupSupAdapterConfig(SupSupConfig, AdapterConfig):
    """Hold all that the protector needs to know."""


@protector("supsup")
class SupSup(Protector):
    """Give every task a binary mask over fixed random adapters.

    >>> from oarlock.nets.trunks import load_trunk
    >>> supsup = SupSup(load_trunk("vit_pico"), SupSupAdapterConfig(width=8))
    >>> for task in range(2):
    ...     supsup.begin_task(torch.Generator().manual_seed(task))
    ...     supsup.finish_task()
    >>> activations = supsup.below(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    >>> torch.allclose(supsup.superposed(activations, torch.eye(2))[1], supsup(activations, 1)[1], atol=1e-5)
    True
    """

    described: ClassVar[Mapping[str, Check]] = {"tasks": integer(0, 10_000), "learning": boolean}
    Config = SupSupConfig
    config: SupSupAdapterConfig

    def __init__(self, trunk: Trunk, config: SupSupAdapterConfig) -> None:
        super().__init__(trunk, config)
        self.layers: Modules[MaskedBottleneck] = Modules(MaskedBottleneck(dim, config) for dim in self.sites())

    @property
    def matrices(self) -> list[MaskedLinear]:
        """Return all that is masked."""
        return [fc for layer in self.layers for fc in (layer.fc1, layer.fc2)]

    @property
    def learning(self) -> bool:
        """Return whether the newest task still has scores."""
        return any(len(matrix.scores) for matrix in self.matrices)

    def begin_task(self, random: torch.Generator) -> None:
        """Add norms as pre-trained, and new scores."""
        self.add_norms()
        for matrix in self.matrices:
            matrix.add(learning=True)
            matrix.reset(random)

    def parameter_groups(self) -> list[dict[str, Any]]:
        scores = {"params": [matrix.scores for matrix in self.matrices]}
        return [{"params": self.trainable()}, scores | {"lr": self.config.score_lr, "weight_decay": 0.0}]

    def finish_task(self, seen: Iterable[Tensor] = ()) -> None:
        super().finish_task()
        self._finish(closed=False)

    def close_task(self) -> None:
        """Mask all constants of the newest task."""
        super().finish_task()
        self._finish(closed=True)

    @torch.no_grad()
    def _finish(self, closed: bool) -> None:
        for matrix in self.matrices:
            matrix.finish(closed)

    def forget_task(self, task: int, random: torch.Generator) -> None:
        """Drop the task's masks and norms; the constants were never anybody's."""
        del self.norms[task]
        for matrix in self.matrices:
            matrix.masks = torch.cat([matrix.masks[:task], matrix.masks[task + 1 :]])

    def forward(self, activations: Tensor, task: int, fraction: float = 1.0) -> Tensor:
        return self.adapted(activations, lambda site, u: u + self.layers[site](u, task), self.norms[task])

    def superposed(self, activations: Tensor, shares: Tensor) -> Tensor:
        """Return features [B, D] under superpositions of the first tasks' masks and norms, with shares [B, tasks]."""
        norms = [self.norms[task] for task in range(shares.shape[1])]

        def norm(index: int, x: Tensor) -> Tensor:
            plain = norms[0].normalise(x).reshape(len(shares), -1, x.shape[-1])
            weight = shares @ torch.stack([own.weight[index] for own in norms])
            bias = shares @ torch.stack([own.bias[index] for own in norms])
            return torch.addcmul(bias[:, None], plain, weight[:, None]).view_as(x)

        return self.adapted(activations, lambda site, u: u + self.layers[site].superposed(u, shares), norm)

    def task_weights(self, task: int) -> list[SiteWeights]:
        zeros = self.trunk.mean.new_zeros
        pairs = [(layer.fc1.weight(task).T, layer.fc2.weight(task).T) for layer in self.layers]
        return [SiteWeights(fc1, zeros(fc1.shape[1]), fc2, zeros(len(fc1))) for fc1, fc2 in pairs]

    def describe(self) -> dict[str, Any]:
        return {"tasks": len(self.norms), "learning": self.learning}

    def rebuild(self, description: dict[str, Any]) -> None:
        for task in range(1, description["tasks"] + 1):
            self.add_norms()
            for matrix in self.matrices:
                matrix.add(learning=task == description["tasks"] and description["learning"])
