"""The contract of a protector: what a finished task computes stays bit for bit what it was, whatever is learned
later.

A method holds a protector and asks it for the features of a task; it knows nothing of how the promise is kept.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from oarlock.errors import OarlockError
from oarlock.nets.adapters import AdaptedTrunk
from oarlock.nets.heads import Modules
from oarlock.nets.protectors._compact import CompactAdapters, SiteWeights
from oarlock.nets.trunks import TaskNorms, Trunk
from oarlock.schema import Check


class Capacity(NamedTuple):
    """Say how much room there is for tasks to come, by layer."""

    free: list[float]  # share of units that no finished task uses
    wings: list[int]  # parts that were added when room ran out


class Protector(AdaptedTrunk, ABC):
    """Hold everything trained between the trunk and the heads, for all tasks: each has its norms, and what else a
    subclass gives it."""

    name: ClassVar[str]
    described: ClassVar[Mapping[str, Check]] = {}  # what `describe` returns, as a file has to have it
    Config: ClassVar[type]  # its options, beside those of the method that holds it
    config: Any

    def __init__(self, trunk: Trunk, config: Any) -> None:
        super().__init__(trunk, config.adapt_last, config.bf16)
        self.config = config
        self.norms: Modules[TaskNorms] = Modules()

    # -- learning a task -----------------------------------------------------------------------------------

    @abstractmethod
    def begin_task(self, random: torch.Generator) -> None:
        """Add what a new task needs; from now on all shapes are final until the next."""

    def guard(self) -> None:
        """Note what finished tasks rely on, before the first step of training and again when training is resumed."""

    @abstractmethod
    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the weights that the newest task trains, as an optimiser wants them; heads join the first group."""

    def penalty(self, fraction: float) -> Tensor | None:
        """Return what is added to the loss of a step at a fraction of its epoch; None for nothing."""
        return None

    def after_step(self) -> None:
        """Put back what finished tasks rely on: weight decay, momentum and Adam's state move weights whose gradient
        is zero."""

    def finish_task(self) -> None:
        """Make the newest task final: from now on its features never change."""
        self.norms[-1].requires_grad_(False)

    def close_task(self) -> None:
        """Make the newest task, which was not trained, final with nothing of its own: its features are the bare
        trunk's, and no room is taken from tasks to come. A protector whose tasks do not begin so has to do more."""
        self.finish_task()

    def forget_task(self, task: int, random: torch.Generator) -> None:
        """Remove what only one finished task has, so that later ones take the numbers before theirs; what it used
        alone of what tasks share is drawn anew."""
        raise OarlockError(f"{self.name} cannot take a task out again, and this is the only class of one")

    # -- asking a task -------------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, activations: Tensor, task: int, fraction: float = 1.0) -> Tensor:
        """Return a task's features [B, D] from the activations `below` gave; where in an epoch training stands
        matters only while the task is being learned."""

    @abstractmethod
    def task_weights(self, task: int) -> list[SiteWeights]:
        """Return a finished task's adapters as plain matrices, one for each site: no gate, nothing that is closed."""

    def compact(self) -> CompactAdapters:
        """Return finished tasks as prediction wants them: the same features to rounding, in fewer and smaller
        passes."""
        return CompactAdapters(self, self.norms, [self.task_weights(task) for task in range(len(self.norms))])

    def capacity(self) -> Capacity | None:
        """Return how much room is left; None where room does not run out."""
        return None

    # -- rebuilding ----------------------------------------------------------------------------------------

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return JSON that is enough to rebuild all shapes."""

    @abstractmethod
    def rebuild(self, description: dict[str, Any]) -> None:
        """Take the described shapes; the tensors come afterwards."""

    def add_norms(self) -> None:
        """Give the newest task norms that begin as pre-trained."""
        self.norms.append(self.trunk.new_norms(self.frozen_stages).to(self.trunk.mean.device))

    def trainable(self, *modules: nn.Module) -> list[nn.Parameter]:
        """Return the parameters of some modules and of the newest task's norms."""
        return [parameter for module in (*modules, self.norms[-1]) for parameter in module.parameters()]
