"""Gaussians of classes, and how near an input is to them."""

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

MIN_DISTANCE = 1e-6  # an image on its class mean would be infinitely near


class Gaussians(Protocol):
    """Measure distances to class means in one metric."""

    def whiten(self, features: Tensor) -> Tensor: ...

    def distances(self, features: Tensor) -> Tensor: ...


class ClassGaussians(nn.Module):
    """Hold class means and one covariance for all classes of a task, as whitening: distances are then plain ones.

    Fewer images than features vary along few directions, and along all others Σ is its shrinkage alone. `whitening`
    then holds these directions A [rank, D] in place of a whole matrix [D, D], and W = (I − Aᵀ·A) / √shrinkage.

    >>> points = torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0]])
    >>> fitted = ClassGaussians(2, 2, shrinkage=0.5)
    >>> fitted.fit(points, torch.tensor([0, 0, 1, 1]))
    >>> fitted.distances(torch.tensor([[0.0, 1.0]]))[0, 0]
    tensor(0.)
    """

    def __init__(self, classes: int, dim: int, shrinkage: float) -> None:
        super().__init__()
        self.shrinkage = shrinkage
        self.register_buffer("means", torch.zeros(classes, dim))
        self.register_buffer("whitening", torch.eye(dim))
        self.means: Tensor
        self.whitening: Tensor

    @property
    def rank(self) -> int:
        """Return along how many directions classes were seen to vary; at most as many as there are features."""
        return len(self.whitening)

    def fit(self, features: Tensor, labels: Tensor) -> None:
        """Fit means, and Σ = mean over classes of the class covariances, shrunk to (1−shrinkage)·Σ + shrinkage·I."""
        classes, dim = self.means.shape
        few = len(labels) - classes < dim
        covariance = torch.zeros(0 if few else dim, dim, dtype=torch.float64)
        means, deviations = list[Tensor](), list[Tensor]()
        for group in by_class(features, labels, classes):
            means.append(group.mean(0))
            if few:
                deviations.append((group - means[-1]) / math.sqrt(len(group) * classes))
            else:
                covariance += scatter_of(group) / len(group) / classes
        self.means.copy_(torch.stack(means))
        if few:
            whitening = _whitening_along(torch.cat(deviations), len(labels) - classes, self.shrinkage)
        else:
            identity = torch.eye(dim, dtype=covariance.dtype)
            whitening = whitening_of((1 - self.shrinkage) * covariance + self.shrinkage * identity)
        self.whitening = whitening.to(self.means).contiguous()  # products round by how a matrix lies in memory

    def forget(self, label: int) -> None:
        """Forget the mean of a class. The covariance, to which all classes added, stays."""
        self.means = without(self.means, label)

    def whiten(self, features: Tensor) -> Tensor:
        """Return W·u of every row u, whose lengths are Mahalanobis lengths."""
        if self.rank == features.shape[1]:
            return features @ self.whitening.T
        return (features - (features @ self.whitening.T) @ self.whitening) / math.sqrt(self.shrinkage)

    def distances(self, features: Tensor) -> Tensor:
        """Return the Mahalanobis distance of every row to every class mean, [B, classes]."""
        return (self.whiten(features)[:, None] - self.whiten(self.means)).norm(dim=-1)

    def rebuild(self, rank: int) -> None:
        """Take a described shape; the tensors come afterwards."""
        self.whitening = self.whitening.new_zeros(rank, self.means.shape[1])


def without(means: Tensor, label: int) -> Tensor:
    return torch.cat([means[:label], means[label + 1 :]])


def log_nearness(distances: Tensor) -> Tensor:
    """Return log c, with c(x) = max over classes of 1 / distance [B, classes].

    >>> log_nearness(torch.tensor([[1.0, 4.0]]))
    tensor([-0.])
    """
    return -distances.amin(1).clamp_min(MIN_DISTANCE).log()


def plain_distances(rows: Tensor, others: Tensor) -> Tensor:
    """Return the distance of every row to every other, by products of matrices however few rows there are, so that
    one graph serves all counts."""
    return torch.cdist(rows, others, compute_mode="use_mm_for_euclid_dist")


def by_class(features: Tensor, labels: Tensor, classes: int) -> Iterator[Tensor]:
    """Yield the features of every class, in double precision (and so on the CPU): one class at a time is enough to
    hold."""
    return (features[labels == label].flatten(1).cpu().double() for label in range(classes))


def scatter_of(group: Tensor) -> Tensor:
    centred = group - group.mean(0)
    return centred.T @ centred


def whitening_of(covariance: Tensor) -> Tensor:
    """Return W with Wᵀ·W = Σ⁻¹, so that ‖W·u‖ is a Mahalanobis length."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), identity, upper=False)


def _whitening_along(deviations: Tensor, rank: int, shrinkage: float) -> Tensor:
    """A [rank, D] with (I − Aᵀ·A) / √shrinkage the symmetric root of Σ⁻¹, where Σ = (1−shrinkage) · deviationsᵀ ·
    deviations + shrinkage · I."""
    _, sizes, directions = torch.linalg.svd(deviations, full_matrices=False)
    lengths = (shrinkage / ((1 - shrinkage) * sizes[:rank].square() + shrinkage)).sqrt()
    return (1 - lengths).sqrt()[:, None] * directions[:rank]
