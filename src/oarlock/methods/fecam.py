"""FeCAM: a covariance for every class (Goswami et al., NeurIPS 2023) on the frozen trunk.

Features are normalised; a class has their mean μ and covariance Σ (divided by n − 1), to whose diagonal its mean is
added; scaled to a matrix of correlations C, it gives the distance (x − μ)ᵀ C⁻¹ (x − μ), and the least of these the
answer. As in the authors' code for vision transformers: no shrinkage of what is off the diagonal. By default there
is no Tukey transform either; where there is, covariances are of features normalised after it (their code for convnets
takes them before, and adds to the diagonal twice). A class of one image has C = I.

With s the mean variance, C⁻¹ = D (I + ΣI/s)⁻¹ D for D = √(diag Σ + s) / √s, and a class of n images varies along n
− 1 directions only: these are stored in place of a matrix, and δᵀ C⁻¹ δ = ‖Dδ‖² − ‖T Dδ‖². Choice: a distance is
read as a Gaussian's, in units of what training images have from their own class, so that there are probabilities.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.detectors import EvidenceOf
from oarlock.methods import method
from oarlock.methods._base import Method
from oarlock.methods._closed_form import ClosedFormMethod, Spread
from oarlock.methods._options import MethodConfig
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.schema import Check, integer, list_of
from oarlock.training import TaskData

NOTHING = 1e-12  # mean variance of normalised features below which a class shows none


@dataclass(frozen=True)
class FecamConfig(MethodConfig):
    alpha: float = option(1.0, least=1e-3, most=1e3)  # times the mean variance is added to the diagonal
    tukey: float = option(1.0, least=0.1, most=1)  # power of features, with their sign; 0.5 in the paper for convnets


class Metric(NamedTuple):
    """Measure squared distances to a class mean."""

    mean: Tensor
    scale: Tensor  # D
    directions: Tensor  # T [rank, D]

    def __call__(self, features: Tensor) -> Tensor:
        scaled = (features - self.mean) * self.scale
        return (scaled.square().sum(1) - (scaled @ self.directions.T).square().sum(1)).clamp_min(0)


@method("fecam")
class Fecam(ClosedFormMethod):
    """Answer with the nearest class, each in the metric of its own covariance."""

    Config = FecamConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-mini": {"alpha": 10.0}}
    paper = "Goswami et al., NeurIPS 2023"
    verified = "its formula by numpy; the authors' code on a small case"
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **Method.evidence,
        "gaussians": lambda method, encoded: [method],
    }
    described: ClassVar[Mapping[str, Check]] = {**Method.described, "ranks": list_of(integer(0))}
    config: FecamConfig

    def __init__(self, trunk: Trunk, memory: int, config: FecamConfig) -> None:
        super().__init__(trunk, memory, config)
        self.ranks: list[int] = []  # along how many directions each class varies
        self.spread = Spread(trunk.dim)
        self.register_buffer("means", torch.zeros(0, trunk.dim))
        self.register_buffer("scales", torch.zeros(0, trunk.dim))
        self.register_buffer("directions", torch.zeros(0, trunk.dim))
        self.means: Tensor
        self.scales: Tensor
        self.directions: Tensor

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        images = task.labels.bincount(minlength=task.classes).tolist() if len(task.labels) else [0] * task.classes
        self.allocate(self.ranks + [min(max(count - 1, 0), self.trunk.dim) for count in images])

    def allocate(self, ranks: list[int]) -> None:
        """Make room for classes of these ranks, behind those that there are."""
        for name, rows in (("means", len(ranks)), ("scales", len(ranks)), ("directions", sum(ranks))):
            here = getattr(self, name)
            setattr(self, name, F.pad(here, (0, 0, 0, rows - len(here))))
        self.ranks = ranks

    def metrics(self) -> Iterator[Metric]:
        """Yield those of all classes."""
        yield from map(Metric, self.means, self.scales, self.directions.split(self.ranks))

    def take(self, features: Tensor, task: TaskData) -> None:
        own = list(self.metrics())[self.class_slice(task.index)]
        for label, metric in enumerate(own):
            group = self.compared(features[task.labels.to(features.device) == label].cpu().double())
            fitted = fit(group, len(metric.directions), self.config.alpha)
            for room, value in zip(metric, fitted, strict=True):
                room.copy_(value)
            self.spread.add(fitted(group))

    def distances(self, features: Tensor) -> Tensor:
        """Return the distance of every row to every class [B, classes], each in its own metric."""
        compared = self.compared(features)
        return torch.stack([metric(compared) for metric in self.metrics()], 1).sqrt()

    def compared(self, features: Tensor) -> Tensor:
        """Return normalised features, after Tukey's transform."""
        return F.normalize(features.sign() * features.abs() ** self.config.tukey, dim=1)

    def scores(self, encoded: Tensor) -> Tensor:
        """Return −½ squared distance by the variance."""
        return -0.5 * self.distances(encoded[:, 0]).square() / self.spread.variance

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "ranks": self.ranks}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.allocate(list(description["ranks"]))


def fit(group: Tensor, rank: int, alpha: float) -> Metric:
    """Return the metric of a class of normalised features."""
    mean = group.mean(0)
    deviations = (group - mean) / max(len(group) - 1, 1) ** 0.5
    variances = deviations.square().sum(0)
    added = alpha * variances.mean()
    if added < NOTHING:
        return Metric(mean, torch.ones_like(mean), deviations[:rank] * 0)
    deviations /= added.sqrt()
    if len(group) <= len(mean):  # of the two products of deviations, the smaller
        sizes, mixes = torch.linalg.eigh(deviations @ deviations.T)
        along = mixes.T @ deviations
    else:
        sizes, along = torch.linalg.eigh(deviations.T @ deviations)
        along = sizes.clamp_min(0).sqrt()[:, None] * along.T
    directions = along / (1 + sizes.clamp_min(0)).sqrt()[:, None]
    return Metric(mean, (variances / added + 1).sqrt(), directions[len(directions) - rank :])
