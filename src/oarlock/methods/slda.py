"""SLDA: streaming linear discriminant analysis (Hayes and Kanan, CVPR workshops 2020) on the frozen trunk.

No adapters, no memory: class means and one covariance shared by all classes, updated as classes come, and a linear
discriminant with uniform priors. Choices: the covariance is the exact within-class scatter divided by the number of
images, which does not depend on the order of samples; the authors' update of a running covariance, which centres each
sample on its running class mean, does. The authors shrink it by 1e-4 towards the identity, as the paper's protocols
do here: with fewer images than features that is next to nothing, and the discriminant follows noise. By default it is
shrunk towards its mean variance, by as much as suits the number of images (oracle approximating shrinkage).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oarlock.detectors import EvidenceOf
from oarlock.detectors.pooled import PooledGaussians
from oarlock.methods import method
from oarlock.methods._base import Method
from oarlock.methods._closed_form import ClosedFormMethod
from oarlock.methods._options import MethodConfig
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.schema import Check, integer
from oarlock.training import TaskData


@dataclass(frozen=True)
class SldaConfig(MethodConfig):
    shrinkage: float | None = option(None, least=1e-5, most=1)  # towards the identity; None: chosen from the data


@method("slda")
class Slda(ClosedFormMethod):
    """Fit a linear discriminant on the frozen trunk with one running covariance."""

    Config = SldaConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"shrinkage": 1e-4},
        "c10-5t-mini": {"shrinkage": 0.001},
        "c10-5t-lite": {"shrinkage": 0.1},
    }
    paper = "Hayes and Kanan, CVPR workshops 2020"
    verified = "scikit-learn's LinearDiscriminantAnalysis and OAS; any order of samples"
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **Method.evidence,
        "gaussians": lambda method, encoded: [method.gaussians],
        "bare": lambda method, encoded: [encoded[:, 0]],
        "statistics": lambda method, encoded: [method.gaussians],
    }
    described: ClassVar[Mapping[str, Check]] = {**Method.described, "classes": integer(0)}

    def __init__(self, trunk: Trunk, memory: int, config: SldaConfig) -> None:
        super().__init__(trunk, memory, config)
        self.gaussians = PooledGaussians(trunk.dim, config.shrinkage)

    def take(self, features: Tensor, task: TaskData) -> None:
        self.gaussians.add(features, task.labels.to(self.device), task.classes)

    def forget(self, column: int, random: torch.Generator) -> None:
        task = int(self.tasks_of(torch.tensor(column)))
        self.gaussians.forget(column)
        self.classes_per_task[task] -= 1
        if not self.classes_per_task[task]:
            del self.classes_per_task[task]

    def scores(self, encoded: Tensor) -> Tensor:
        """Return −½ squared Mahalanobis distance: the linear discriminant, up to a constant of the row."""
        return -0.5 * self.gaussians.distances(encoded[:, 0]).square()

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "classes": len(self.gaussians.means)}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.gaussians.rebuild(description["classes"])
