"""KLDA: kernel linear discriminant analysis (Momeni, Mazumder and Liu, AAAI 2025) on the frozen trunk.

Features are lifted to random Fourier features, φ = √(2/D) · cos(f·Ω + b) with Ω from N(0, 2γ) and b from U(0, 2π),
whose products are those of the kernel exp(−γ‖f − f'‖²) on average. There a linear discriminant is fitted: class
means, and one scatter S within classes; the nearest mean by (S + εI)⁻¹ is the answer. Choices: the covariance is (S
+ εI) divided by the number of images, so that outputs are a discriminant's log-probabilities (the authors leave S a
sum; the decision is the same), measured from the middle of the class means; ε as OAS has it where none is
given (the authors' is 10⁻³; their first code takes a pseudo-inverse in its place); 2,000 random features where the
paper has 5,000; a single lift, not the paper's ensemble of five (KLDA-E).

γ has to fit how far features of the trunk lie apart, and the papers' 10⁻⁴ is for DINOv2. By default it is half of
one by the median squared distance between images of the first task, and stays that for ever: so the answer depends
on which task comes first, but with a γ that is given on no order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.detectors.pooled import oracle_approximating_shrinkage
from oarlock.detectors.sums import Products
from oarlock.methods import method
from oarlock.methods._closed_form import ClosedFormMethod
from oarlock.methods._lifted import RandomDirections, ridge
from oarlock.methods._options import MethodConfig
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import TaskData

LEAST = 1e-3  # of 1 less a shrinkage, and of ε where images of a class do not differ
ASKED = 1000  # images whose distances are looked at, at most


@dataclass(frozen=True)
class KldaConfig(MethodConfig):
    random_features: int = option(2000, least=2, most=20_000)
    gamma: float | None = option(None, least=1e-12, most=1e12)  # of the kernel; None: by the first task's distances
    epsilon: float | None = option(None, least=1e-8, most=1e8)  # added to S's diagonal; None: chosen from the data


@method("klda")
class Klda(ClosedFormMethod):
    """Fit a linear discriminant on random Fourier features of the frozen trunk."""

    Config = KldaConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"random_features": 5000, "epsilon": 1e-3}}
    paper = "Momeni, Mazumder and Liu, AAAI 2025"
    verified = "scikit-learn's LinearDiscriminantAnalysis and RBF kernel; the authors' code on a small case"
    exact_with: ClassVar[Mapping[str, Any]] = {"gamma": 1e-3}
    config: KldaConfig

    def __init__(self, trunk: Trunk, memory: int, config: KldaConfig) -> None:
        super().__init__(trunk, memory, config)
        size = config.random_features
        self.directions = RandomDirections(trunk.dim, size)
        self.scatter = Products(size)  # S
        self.register_buffer("angles", torch.zeros(size))  # b
        self.register_buffer("gamma", torch.tensor(config.gamma or 0.0, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("means", torch.zeros(0, size, dtype=torch.float64))
        self.register_buffer("weights", torch.zeros(size, 0))  # solving takes longer than loading
        self.angles: Tensor
        self.gamma: Tensor
        self.count: Tensor
        self.means: Tensor
        self.weights: Tensor

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        if task.index == 0:
            self.directions.draw(task.generator("random features"))
            drawn = torch.rand(self.angles.shape, generator=task.generator("angles"), device="cpu")
            if not self.angles.is_meta:
                self.angles.copy_(2 * pi * drawn)
        self.make_room(task.classes)

    def make_room(self, classes: int) -> None:
        self.means, self.weights = F.pad(self.means, (0, 0, 0, classes)), F.pad(self.weights, (0, classes))

    def take(self, features: Tensor, task: TaskData) -> None:
        if self.config.gamma is None and task.index == 0:
            self.gamma.fill_(median_gamma(features, task.generator("distances")))
        lifted, labels = self.lifted(features).cpu().double(), task.labels.cpu()
        own = torch.stack([lifted[labels == label].mean(0) for label in range(task.classes)])
        scatter = self.scatter.add(lifted - own[labels])
        self.means[self.class_slice(task.index)] = own.to(self.device)
        self.count += len(features)
        centred = (self.means - self.means.mean(0)).cpu()
        self.weights.copy_(self.count.cpu() * ridge(scatter, self.epsilon(scatter), centred.T))

    def epsilon(self, scatter: Tensor) -> float:
        """Return what is added to the scatter's diagonal: what was given, or so much that its covariance is shrunk as
        suits the number of images."""
        if self.config.epsilon is not None:
            return self.config.epsilon
        shrinkage = oracle_approximating_shrinkage(scatter / int(self.count), int(self.count))
        return shrinkage / max(1 - shrinkage, LEAST) * float(scatter.diagonal().mean()) or LEAST

    def lifted(self, features: Tensor) -> Tensor:
        size, scale = len(self.angles), self.gamma.mul(2).sqrt().to(features.dtype)
        return sqrt(2 / size) * torch.cos(self.directions.along(features) * scale + self.angles)

    def scores(self, encoded: Tensor) -> Tensor:
        """Return the linear discriminant: −½ squared distance to every class mean, but for what they share."""
        middle = self.means.mean(0)
        centred = (self.means - middle).float()
        return (self.lifted(encoded[:, 0]) - middle.float()) @ self.weights - (centred.T * self.weights).sum(0) / 2

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.make_room(sum(self.classes_per_task))


def median_gamma(features: Tensor, random: torch.Generator) -> float:
    """Return 1 / (2 · median squared distance) between images, of as many as are quickly compared; where these do not
    differ, by their squared length."""
    some = features[torch.randperm(len(features), generator=random)[:ASKED].to(features.device)].cpu().double()
    squared = F.pdist(some).square()
    typical = float(squared.median()) if len(some) > 1 else 0.0
    return 1 / (2 * (typical or float(some.square().sum(1).mean()) or 1.0))
