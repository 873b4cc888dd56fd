"""BUILD: buffer-free class-incremental learning with post-hoc detectors (Gupta et al., 2025): ROW without a memory.

Features and heads are HAT's: a head has its task's classes and no output "not mine", for there are no images of
other tasks to train one with. Which task an image belongs to is asked of a detector that needs no training: of every
task the same score, and the task that scores highest answers by its own head.

Ours: the choice of detectors; with `distance` ROW's coefficient, 1 / Mahalanobis distance to the nearest class mean.
With `max-logit` answers are HAT's. The paper's best ones shape activations before a head sees them, which fails on
transformers as often as it helps. A small temperature in place of a hard choice, so that there are probabilities.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from oarlock.detectors import EvidenceOf, detectors
from oarlock.methods import method
from oarlock.methods._base import without
from oarlock.methods._protected import AS_IN_PAPER, GaussianConfig, GaussianMethod, TrainFeatures
from oarlock.nets.heads import Modules, new_head
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Phase, TaskData


@dataclass(frozen=True)
class BuildConfig(GaussianConfig):
    task_by: Literal["distance", "energy", "max-logit"] = "distance"  # the detector that is asked for the task
    tau: float = option(0.05, least=1e-3)  # temperature of the softmax over tasks


@method("build")
class Build(GaussianMethod):
    """Learn as HAT does, and choose the task by a detector: ROW without a memory."""

    Config = BuildConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": AS_IN_PAPER}
    paper = "Gupta et al., 2025"
    verified = "training is hat's, tensor for tensor; answers by hand, and with max-logit hat's; distances by scipy"
    needs_memory = False
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **without(GaussianMethod.evidence, "memory", "own_in_memory"),
        "own": lambda method, encoded: method.claims(encoded).unbind(1),
        "logits": lambda method, encoded: method.logits(encoded),
    }
    config: BuildConfig

    def __init__(self, trunk: Trunk, memory: int, config: BuildConfig) -> None:
        super().__init__(trunk, memory, config)
        self.heads: Modules[nn.Linear] = Modules()

    def add_heads(self, classes: int, random: torch.Generator) -> None:
        super().add_heads(classes, random)
        self.heads.append(new_head(self.trunk.dim, classes, random).to(self.device))

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainFeatures(self, task, self.heads[task.index]), TakeGaussians(self, task)]

    def logits(self, encoded: Tensor) -> list[Tensor]:
        """Return what every task's head says."""
        return [head(features) for head, features in zip(self.heads, self.by_task(encoded), strict=True)]

    def claims(self, encoded: Tensor) -> Tensor:
        """Return how strongly every task claims the input, by the detector that chooses tasks."""
        return detectors.find(self.config.task_by).scores(self, encoded)

    def scores(self, encoded: Tensor) -> Tensor:
        """Return log P(y, k | x) = log WP_k(y | x) + log TP_k(x)."""
        tp = self.task_scores(encoded)
        return torch.cat([logits.log_softmax(1) + tp[:, [k]] for k, logits in enumerate(self.logits(encoded))], 1)

    def within_task(self, encoded: Tensor, task: int) -> Tensor:
        return self.heads[task](self.by_task(encoded)[task]).log_softmax(1)

    def task_scores(self, encoded: Tensor) -> Tensor:
        """Return log TP: the softmax over tasks of their claims."""
        return (self.claims(encoded) / self.config.tau).log_softmax(1)

    def take_gaussians(self, task: TaskData) -> None:
        self.fit_gaussians(task)
        self._own = None  # of images that are not needed again

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        promised = super().promised(images, task)
        return {**promised, "logits": self.heads[task](promised["features"])}


class TakeGaussians(Phase):
    """Take class means and covariance in the task's features, which are final."""

    name = "statistics"

    def __init__(self, build: Build, task: TaskData) -> None:
        self.build, self.task = build, task

    def start(self) -> None:
        self.build.take_gaussians(self.task)
