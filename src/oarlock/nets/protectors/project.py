"""One set of adapters for all tasks, whose later updates are orthogonal to what earlier tasks put in (GPM, Saha et
al., ICLR 2021; PCP and CUBER stand on the same projection).

Of every matrix a basis is kept of the inputs that finished tasks gave it: the leading singular vectors that hold a
share `energy` of their squared length, beyond what the basis held before. A step moves a matrix only across it, so
what it answers to such inputs stays; what lies outside the basis, and what follows from that in later layers, moves a
little. The promise is therefore a tolerance and not equality: what a finished task answers moves by no more than
`tolerance` of the largest value, as measured (docs/protectors.md).

As published: the bases by singular value decomposition after each task, from what the basis does not hold yet, with
as many vectors as reach the share (their code takes one less of the first task, and of later tasks a larger share).
Ours: the step itself is projected and not its gradient, so momentum, weight decay and Adam's scaling cannot undo it;
all of the task's inputs count, by their second moments; biases belong to a constant input 1; norms are each task's
own.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oarlock.nets.adapters import AdapterConfig, Bottleneck
from oarlock.nets.heads import Modules
from oarlock.nets.protectors import Capacity, Protector, protector
from oarlock.nets.protectors._compact import SiteWeights
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.schema import Check, boolean, integer, list_of

NEARLY_FULL = 0.05  # share of the directions of a matrix's inputs


class ProjectedLinear(nn.Linear):
    """Hold a matrix and a bias, and a basis of the inputs [x | 1] to which they are to answer as they do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("basis", torch.zeros(inputs + 1, 0))
        self.basis: Tensor
        self.before: Tensor | None = None  # [weight | bias] before a step, where there is something to protect

    def guard(self) -> None:
        self.before = self._joined() if self.basis.shape[1] else None

    def project(self) -> None:
        """Take back what a step did along the basis."""
        if self.before is None:
            return
        step = self._joined() - self.before
        self.before = self.before + step - step @ self.basis @ self.basis.T
        self.weight.copy_(self.before[:, :-1])
        self.bias.copy_(self.before[:, -1])

    def protect(self, moments: Tensor, energy: float) -> None:
        """Extend the basis until it holds a share of the squared length of inputs with these second moments, Σ x xᵀ:
        their eigenvectors are the inputs' singular vectors."""
        total, basis = moments.trace(), self.basis.to(moments)
        across = torch.eye(len(moments)).to(moments) - basis @ basis.T
        values, vectors = torch.linalg.eigh(across @ moments @ across)
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        missing = energy * total - (total - values.sum())  # what the basis does not hold yet of what it has to
        held = torch.cat([values.new_zeros(1), values.cumsum(0)])
        count = min(int((held < missing).sum()), len(moments) - basis.shape[1])
        extended = torch.linalg.qr(torch.cat([basis, vectors[:, :count]], 1)).Q  # orthonormal in spite of rounding
        self.basis = extended.to(self.basis).contiguous()  # as a file has it, so that products round the same

    def _joined(self) -> Tensor:
        return torch.cat([self.weight, self.bias[:, None]], 1).detach()


class ProjectedBottleneck(Bottleneck):
    """Compute fc2(relu(fc1(u))) by matrices that keep to what they answered."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__(dim, width)
        self.fc1, self.fc2 = ProjectedLinear(dim, width), ProjectedLinear(width, dim)


@dataclass(frozen=True)
class ProjectConfig:
    """Say how much of what tasks look at is protected."""

    energy: float = option(0.99, least=0, most=1)  # share of the inputs' squared length that a basis holds


@dataclass(frozen=True)
class ProjectAdapterConfig(ProjectConfig, AdapterConfig):
    """Hold all that the protector needs to know."""


@protector("project")
class Project(Protector):
    """Share adapters, and move them only across what finished tasks put in: to a tolerance, not bit for bit."""

    tolerance = 0.1
    described: ClassVar[Mapping[str, Check]] = {"closed": list_of(boolean), "ranks": list_of(integer(0))}
    Config = ProjectConfig
    config: ProjectAdapterConfig

    def __init__(self, trunk: Trunk, config: ProjectAdapterConfig) -> None:
        super().__init__(trunk, config)
        self.layers: Modules[Any] = Modules(ProjectedBottleneck(dim, config.width) for dim in self.sites())
        self.closed: list[bool] = []  # which tasks do without adapters

    @property
    def matrices(self) -> list[ProjectedLinear]:
        """Return all that is projected."""
        return [fc for layer in self.layers for fc in (layer.fc1, layer.fc2)]

    # -- learning a task -----------------------------------------------------------------------------------

    def begin_task(self, random: torch.Generator) -> None:
        """Add norms as pre-trained; the adapters are those of the tasks before."""
        if not self.closed:
            for layer in self.layers:
                layer.reset(random)
        self._add_task(closed=False)

    def guard(self) -> None:
        for matrix in self.matrices:
            matrix.guard()

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": self.trainable(self.layers)}]

    @torch.no_grad()
    def after_step(self) -> None:
        for matrix in self.matrices:
            matrix.project()

    @torch.no_grad()
    def finish_task(self, seen: Iterable[Tensor] = ()) -> None:
        super().finish_task()
        for matrix, moments in self._second_moments(seen).items():
            matrix.protect(moments, self.config.energy)
        if min(self.capacity().free) < NEARLY_FULL:
            what = "finished tasks look almost everywhere, so the next one can hardly change an adapter; lower energy"
            warnings.warn(what, stacklevel=2)

    def close_task(self) -> None:
        """Leave the adapters out of the newest task."""
        self.closed[-1] = True
        super().finish_task()

    def _second_moments(self, seen: Iterable[Tensor]) -> dict[ProjectedLinear, Tensor]:
        """Σ x xᵀ of what every matrix gets from the newest task's images, with 1 behind every x."""
        moments: dict[ProjectedLinear, Tensor] = {}

        def add(matrix: ProjectedLinear, inputs: tuple[Tensor]) -> None:
            x = inputs[0].detach().flatten(0, -2).double()
            x = torch.cat([x, x.new_ones(len(x), 1)], 1)
            moments[matrix] = moments.get(matrix, 0) + x.T @ x

        hooks = [matrix.register_forward_pre_hook(add) for matrix in self.matrices]
        try:
            for activations in seen:
                self(activations, len(self.closed) - 1)
        finally:
            for hook in hooks:
                hook.remove()
        return moments

    # -- asking a task -------------------------------------------------------------------------------------

    def forward(self, activations: Tensor, task: int, fraction: float = 1.0) -> Tensor:
        closed = self.closed[task]
        return self.adapted(activations, lambda site, u: u if closed else u + self.layers[site](u), self.norms[task])

    def task_weights(self, task: int) -> list[SiteWeights]:
        if self.closed[task]:
            return self.no_weights()
        pairs = [(layer.fc1, layer.fc2) for layer in self.layers]
        return [SiteWeights(fc1.weight.T, fc1.bias, fc2.weight.T, fc2.bias) for fc1, fc2 in pairs]

    def capacity(self) -> Capacity:
        return Capacity([1 - matrix.basis.shape[1] / len(matrix.basis) for matrix in self.matrices], wings=[])

    # -- rebuilding ----------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        return {"closed": list(self.closed), "ranks": [matrix.basis.shape[1] for matrix in self.matrices]}

    def rebuild(self, description: dict[str, Any]) -> None:
        for closed in description["closed"]:
            self._add_task(closed)
        for matrix, rank in zip(self.matrices, description["ranks"], strict=True):
            matrix.basis = matrix.basis.new_zeros(len(matrix.basis), rank)

    def _add_task(self, closed: bool) -> None:
        self.add_norms()
        self.closed.append(closed)
