"""EASE: an ensemble of expandable subspaces (Zhou et al., CVPR 2024, "Expandable Subspace Ensemble for Pre-Trained
Model-Based Class-Incremental Learning").

Every task trains an adapter of its own, a subspace, and keeps no images. A class is a prototype, its mean feature, in
every subspace. Those of a task's classes are taken in its subspace and in all earlier ones. In a later subspace j
they are made up: by how alike an old class and each class from task j on are in the old class's own subspace (a
softmax of cosines), the prototypes of the later classes are mixed. Classes compete by their cosine in the subspace of
their own task, plus α times the mean of the cosines in all others.

From the authors' code: mixtures are made anew after every task, of all classes from task j on (the paper: of the
newest task's, once); α is divided by the number of other subspaces. Left out: the bare trunk as one more subspace,
which they have on some data sets. Ours: adapters after attention too, norms for each task, a cosine head that begins
sharper (authors: a scale of 1, for many epochs), and how networks are trained.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.detectors import EvidenceOf
from oarlock.methods import method
from oarlock.methods._options import ProtectedConfig
from oarlock.methods._protected import ProtectedMethod, TrainFeatures
from oarlock.nets.heads import truncated_normal_
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Phase, TaskData

SHARPNESS = 10.0  # what a cosine counts as a log-probability


@dataclass(frozen=True)
class EaseConfig(ProtectedConfig):
    protector: str = "own"
    alpha: float = option(0.1, least=0)  # weight of the subspaces of other tasks


@method("ease")
class Ease(ProtectedMethod):
    """Give every task an adapter, and compare with prototypes in the subspaces of all tasks."""

    Config = EaseConfig
    paper = "Zhou et al., CVPR 2024"
    verified = "prototypes by numpy; mixtures and scores with the authors' code; old tasks bit for bit"
    needs_memory = False
    suggested = True
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **ProtectedMethod.evidence,
        "logits": lambda method, encoded: method.scores_by_task(encoded),
    }
    config: EaseConfig

    def __init__(self, trunk: Trunk, memory: int, config: EaseConfig) -> None:
        super().__init__(trunk, memory, config)
        self.register_buffer("prototypes", torch.zeros(0, 0, trunk.dim))  # of every class, in every subspace
        self.prototypes: Tensor
        self.head = CosineHead(trunk.dim, 0)  # of the newest task, to train its adapter by

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self._shape_to(self.classes_per_task)
        self.head.reset(task.generator("head"))

    def _shape_to(self, classes_per_task: list[int]) -> None:
        classes, subspaces = self.prototypes.shape[:2]
        more = (0, 0, 0, len(classes_per_task) - subspaces, 0, sum(classes_per_task) - classes)
        self.prototypes = F.pad(self.prototypes, more)
        self.head = CosineHead(self.trunk.dim, classes_per_task[-1]).to(self.device)

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainFeatures(self, task, self.head), TakePrototypes(self, task)]

    @torch.no_grad()
    def take_prototypes(self, task: TaskData) -> None:
        """Take the task's prototypes in all subspaces, and make up those of earlier classes in later ones."""
        self.own_features(task)  # refused where training diverged
        self._own = None
        features = self.encode_cached(self.activations(task.images), range(task.index + 1))
        labels, first = task.labels.to(self.device), self.class_slice(task.index).start
        for label in range(task.classes):
            self.prototypes[first + label] = features[labels == label].mean(0)
        for later in range(1, task.index + 1):
            for earlier in range(later):
                self.mix_prototypes(earlier, later)

    def mix_prototypes(self, earlier: int, later: int) -> None:
        """Make up prototypes of a task's classes in a later task's subspace, of those of all classes that follow."""
        old, new = self.class_slice(earlier), slice(self.class_slice(later).start, None)
        alike = cosines(self.prototypes[old, earlier], self.prototypes[new, earlier])
        self.prototypes[old, later] = alike.softmax(1) @ self.prototypes[new, later]

    def scores(self, encoded: Tensor) -> Tensor:
        tasks = len(self.classes_per_task)
        parts = []
        for task in range(tasks):
            prototypes = self.prototypes[self.class_slice(task)]
            near = torch.stack([cosines(encoded[:, j], prototypes[:, j]) for j in range(tasks)])
            others = near.sum(0) - near[task]
            parts.append(near[task] + self.config.alpha / max(tasks - 1, 1) * others)
        return SHARPNESS * torch.cat(parts, 1)

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        promised = super().promised(images, task)
        own = self.prototypes[self.class_slice(task), task]
        return {**promised, "own_cosines": cosines(promised["features"], own)}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        if self.classes_per_task:
            self._shape_to(self.classes_per_task)


class CosineHead(nn.Module):
    """Compare directions only, as prototypes will."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, features))
        self.scale = nn.Parameter(torch.tensor(SHARPNESS))

    def reset(self, random: torch.Generator) -> None:
        """Take initial values."""
        truncated_normal_(self.weight, random)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * cosines(features, self.weight)


def cosines(rows: Tensor, others: Tensor) -> Tensor:
    """Return the cosine of every row with every other.

    >>> cosines(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    tensor([[1., 0.]])
    """
    return F.normalize(rows, dim=1) @ F.normalize(others, dim=1).T


class TakePrototypes(Phase):
    """Take prototypes in one pass for each subspace; nothing is optimised."""

    name = "prototypes"

    def __init__(self, ease: Ease, task: TaskData) -> None:
        self.ease, self.task = ease, task

    def start(self) -> None:
        self.ease.take_prototypes(self.task)
