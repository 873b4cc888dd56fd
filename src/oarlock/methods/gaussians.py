"""What gated methods share that measure how far an input lies from a task's classes."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oarlock.methods.config import option
from oarlock.methods.gated import GatedConfig, GatedMethod
from oarlock.nets.modules import Modules
from oarlock.nets.trunk import Trunk
from oarlock.ood import ClassGaussians
from oarlock.training import TaskData


@dataclass(frozen=True)
class GaussianConfig(GatedConfig):
    """How distances are measured."""

    shrinkage: float = option(0.2, least=1e-6, most=1)  # of a task's covariance towards the identity


class GaussianMethod(GatedMethod):
    """Every task has the Gaussians of its classes, in its own features, which never change again."""

    config: GaussianConfig
    constants: ClassVar[tuple[str, ...]] = ("means", "whitening")

    def __init__(self, trunk: Trunk, memory: int, config: GaussianConfig) -> None:
        super().__init__(trunk, memory, config)
        self.gaussians: Modules[ClassGaussians] = Modules()

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.add_heads(task.classes, task.generator("heads"))

    def add_heads(self, classes: int, random: torch.Generator) -> None:
        """What a task brings besides gates and norms; a method with heads adds them."""
        self.gaussians.append(ClassGaussians(classes, self.trunk.dim).to(self.device))

    def fit_gaussians(self, task: TaskData) -> None:
        """Class means and covariance of the task's own features."""
        features, labels = self.own_views(task)[:, -1], task.labels.to(self.device)
        self.gaussians[task.index].fit(features, labels, self.config.shrinkage)

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        promised, gaussians = super().promised(images, task), self.gaussians[task]
        return {
            **promised,
            "distances": gaussians.distances(promised["features"]),
            "means": gaussians.means,
            "whitening": gaussians.whitening,
        }

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        for classes in self.sizes:
            self.add_heads(classes, torch.Generator())
