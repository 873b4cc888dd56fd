"""AnaCP: analytic contrastive projection (Momeni, Xiao and Liu, NeurIPS 2025) on the frozen trunk.

Features are normalised. A target for every class stands where its mean would be if classes were further apart:
class means around their middle, whitened by the covariance within classes, their singular values raised by one,
un-whitened and normalised. Heads with random features Z = gelu(f·W_k) are regressed on the targets in closed form,
by Σ ZᵀZ and the sums of Z over each class, and what they say, normalised, is averaged: g(f). Last, a ridge
regression on gelu(g·W) is fitted to samples from a Gaussian of every class, N(μ_c, Σ). Nothing is trained by
gradients.

Choices: Σ is the exact covariance plus 10⁻⁴·I (the authors' weights tasks unevenly, and adds the 10⁻⁴ once),
un-whitened by its root (their code whitens a second time); singular values that are zero, as one of centred means
always is, stay zero; the same draws serve all classes, so that neither order nor cut matters; no adapters are tuned
on the first task; 1,000 random features in each head where the paper has 5,000.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.detectors.sums import Products, products
from oarlock.methods import method
from oarlock.methods._closed_form import SHARPNESS, ClosedFormMethod
from oarlock.methods._lifted import RandomDirections, ridge
from oarlock.methods._options import MethodConfig
from oarlock.nets.heads import Modules
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import TaskData

ADDED = 1e-4  # to all variances of normalised features


@dataclass(frozen=True)
class AnacpConfig(MethodConfig):
    random_features: int = option(1000, least=2, most=20_000)  # of each head, and of the last regression
    heads: int = option(3, least=1, most=100)
    lamb: float = option(100.0, least=1e-8, most=1e8)  # penalty of all regressions
    samples: int = option(100, least=1, most=10_000)  # of each class, for the last regression


class Head(nn.Module):
    """Regress random features on a target for each class."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.directions = RandomDirections(dim, count)
        self.products = Products(count)
        self.register_buffer("sums", torch.zeros(count, 0, dtype=torch.float64))  # of random features over classes
        self.register_buffer("weights", torch.zeros(count, 0))  # which targets are mixed by
        self.sums: Tensor
        self.weights: Tensor

    def make_room(self, classes: int) -> None:
        self.sums, self.weights = (F.pad(columns, (0, classes)) for columns in (self.sums, self.weights))

    def take(self, features: Tensor, labels: Tensor, classes: slice, penalty: float) -> None:
        """Take in images of new classes, labelled from 0."""
        lifted = self.lifted(features)
        one_hot = F.one_hot(labels, classes.stop - classes.start)
        self.sums[:, classes] = products(lifted, one_hot).to(self.sums)
        self.weights.copy_(ridge(self.products.add(lifted), penalty, self.sums.cpu()))

    def lifted(self, features: Tensor) -> Tensor:
        return F.gelu(self.directions.along(features))

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        return F.normalize(self.lifted(features) @ self.weights @ targets, dim=1)


@method("anacp")
class Anacp(ClosedFormMethod):
    """Project features of the frozen trunk towards targets that are further apart, and regress on these."""

    Config = AnacpConfig
    settings: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"random_features": 5000}}
    paper = "Momeni, Xiao and Liu, NeurIPS 2025"
    verified = "its formulas by numpy; the authors' code for a head"
    config: AnacpConfig

    def __init__(self, trunk: Trunk, memory: int, config: AnacpConfig) -> None:
        super().__init__(trunk, memory, config)
        dim, count = trunk.dim, config.random_features
        self.heads: Modules[Head] = Modules(Head(dim, count) for _ in range(config.heads))
        self.directions = RandomDirections(dim, count)
        self.noise = RandomDirections(dim, config.samples)
        self.scatter = Products(dim)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("means", torch.zeros(0, dim, dtype=torch.float64))
        self.register_buffer("targets", torch.zeros(0, dim))
        self.register_buffer("weights", torch.zeros(count, 0))
        self.count: Tensor
        self.means: Tensor
        self.targets: Tensor
        self.weights: Tensor

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        if task.index == 0:
            for number, head in enumerate(self.heads):
                head.directions.draw(task.generator("random features", number))
            self.directions.draw(task.generator("random features"))
            self.noise.draw(task.generator("noise"))
        self.make_room(task.classes)

    def make_room(self, classes: int) -> None:
        self.means, self.targets = (F.pad(rows, (0, 0, 0, classes)) for rows in (self.means, self.targets))
        self.weights = F.pad(self.weights, (0, classes))
        for head in self.heads:
            head.make_room(classes)

    def take(self, features: Tensor, task: TaskData) -> None:
        features, labels = F.normalize(features, dim=1), task.labels.to(features.device)
        own = torch.stack([features[labels == label].double().mean(0) for label in range(task.classes)])
        classes = self.class_slice(task.index)
        self.means[classes] = own
        self.count += len(features)
        covariance = self.scatter.add(features.double() - own[labels]) / int(self.count)
        covariance += ADDED * torch.eye(len(covariance), dtype=covariance.dtype)
        self.targets.copy_(set_apart(self.means.cpu(), covariance))
        for head in self.heads:
            head.take(features, labels, classes, self.config.lamb)
        self.fit_last(covariance)

    def fit_last(self, covariance: Tensor) -> None:
        """Fit the last regression to samples of all classes, which differ by their means alone."""
        noise = self.noise.values.T.cpu().double() @ torch.linalg.cholesky(covariance).T
        size = len(self.weights)
        total, sums = torch.zeros(size, size, dtype=torch.float64), []
        for mean in self.means:
            lifted = self.lifted((mean + noise.to(mean)).float())
            total += products(lifted, lifted)
            sums.append(lifted.cpu().double().sum(0))
        self.weights.copy_(ridge(total, self.config.lamb, torch.stack(sums, 1)))

    def lifted(self, features: Tensor) -> Tensor:
        """Return random features of what all heads say together."""
        said = torch.stack([head(features, self.targets) for head in self.heads]).mean(0)
        return F.gelu(self.directions.along(said))

    def scores(self, encoded: Tensor) -> Tensor:
        return SHARPNESS * self.lifted(F.normalize(encoded[:, 0], dim=1)) @ self.weights

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.make_room(sum(self.classes_per_task))


def set_apart(means: Tensor, covariance: Tensor) -> Tensor:
    """Return targets in place of class means: further apart where classes spread little."""
    variances, axes = torch.linalg.eigh(covariance)
    middle = means.mean(0)
    mixes, sizes, directions = torch.linalg.svd((means - middle) @ axes / variances.sqrt(), full_matrices=False)
    varied = min(len(means) - 1, means.shape[1])
    spread = (mixes[:, :varied] * (sizes[:varied] + 1)) @ directions[:varied]
    return F.normalize(spread * variances.sqrt() @ axes.T + middle, dim=1)
