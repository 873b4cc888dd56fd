"""NCM: the nearest class mean on the frozen trunk.

The plainest of all: a mean for each class, and by default the cosine with it, as RanPAC's (McDonnell et al.,
NeurIPS 2023) and AnaCP's (Momeni et al., NeurIPS 2025) tables have it; `cosine=false` takes the distance between
features as they are. Choice: distances are read as those of a Gaussian around each mean that spreads alike in all
directions and for all classes, as much as training images do, so that there are probabilities; the decision does
not depend on it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.detectors import EvidenceOf
from oarlock.detectors.gaussians import plain_distances
from oarlock.methods import method
from oarlock.methods._base import Method
from oarlock.methods._closed_form import ClosedFormMethod, Spread
from oarlock.methods._options import MethodConfig
from oarlock.nets.trunks import Trunk
from oarlock.training import TaskData


@dataclass(frozen=True)
class NcmConfig(MethodConfig):
    cosine: bool = True  # compare directions; otherwise distances


@method("ncm")
class Ncm(ClosedFormMethod):
    """Answer with the class whose mean feature is nearest."""

    Config = NcmConfig
    paper = "Mensink et al., TPAMI 2013"
    verified = "scikit-learn's NearestCentroid"
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **Method.evidence,
        "gaussians": lambda method, encoded: [method],
    }

    def __init__(self, trunk: Trunk, memory: int, config: NcmConfig) -> None:
        super().__init__(trunk, memory, config)
        self.register_buffer("means", torch.zeros(0, trunk.dim))
        self.means: Tensor
        self.spread = Spread(trunk.dim)

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.means = torch.cat([self.means, self.means.new_zeros(task.classes, self.trunk.dim)])

    def take(self, features: Tensor, task: TaskData) -> None:
        labels = task.labels.to(features.device)
        own = torch.stack([features[labels == label].double().mean(0) for label in range(task.classes)])
        self.means[self.class_slice(task.index)] = own.to(self.means)
        nearest = self.compared(own)[labels]
        self.spread.add((self.compared(features.double()) - nearest).square().sum(1))

    def compared(self, features: Tensor) -> Tensor:
        """Return what of features is compared: their directions, or all."""
        return F.normalize(features, dim=1) if self.config.cosine else features

    def distances(self, features: Tensor) -> Tensor:
        """Return the distance of every row to every class mean [B, classes]."""
        return plain_distances(self.compared(features), self.compared(self.means))

    def scores(self, encoded: Tensor) -> Tensor:
        """Return −½ squared distance by the variance."""
        return -0.5 * self.distances(encoded[:, 0]).square() / self.spread.variance

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.means = self.means.new_zeros(sum(self.classes_per_task), self.trunk.dim)
