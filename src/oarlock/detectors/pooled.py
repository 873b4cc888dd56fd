"""One covariance for all classes, however they come: what the closed forms and the bare trunk's detectors stand on.

Its sum is kept in double precision: rounded to single after every task, one of fewer images than features with next
to no shrinkage gives other scores in another order of tasks, by a tenth for 30 tasks of 4 images of 200 features.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.detectors.gaussians import by_class, plain_distances, scatter_of, whitening_of, without
from oarlock.detectors.sums import Products
from oarlock.errors import OarlockError


class PooledGaussians(nn.Module):
    """Hold class means that stay, and one within-class covariance over all classes seen, in whatever order they came.

    >>> points = torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0]])
    >>> pooled = PooledGaussians(2)
    >>> pooled.add(points, torch.tensor([0, 0, 1, 1]), classes=2)
    >>> pooled.distances(torch.tensor([[0.0, 1.0]]))[0, 0]
    tensor(0.)
    """

    def __init__(self, dim: int, shrinkage: float | None = None) -> None:
        """Shrink the covariance towards the identity; without a shrinkage, towards its mean variance, by as much as
        suits the number of images."""
        super().__init__()
        self.shrinkage = shrinkage
        self.register_buffer("means", torch.zeros(0, dim))
        self.scatter = Products(dim)  # of all images around their class means
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("whitening", torch.eye(dim), persistent=False)  # follows from the others
        self.register_buffer("centre", torch.zeros(dim), persistent=False)  # of the whitened means
        self.register_buffer("whitened", torch.zeros(0, dim), persistent=False)  # means, around their centre
        self.register_buffer("directions", torch.zeros(0, dim), persistent=False)  # Σ⁻¹ · means, around their mean
        self.register_buffer("spread", torch.zeros(0, 0), persistent=False)  # what classes differ by, see `relative`
        self.register_load_state_dict_post_hook(lambda pooled, _: pooled._whiten())
        self._derived: dict[str, Any] = {}  # takes seconds, and is seldom asked for: see `derived`
        self.means: Tensor
        self.count: Tensor
        self.whitening: Tensor
        self.centre: Tensor
        self.whitened: Tensor
        self.directions: Tensor
        self.spread: Tensor

    def add(self, features: Tensor, labels: Tensor, classes: int, looks: int = 1) -> None:
        """Take in new classes, labelled 0..classes−1: Σ = scatter / images. Several looks at every image count as
        one: they tell how a class varies, and little about how far to trust that."""
        dim, means = self.means.shape[1], []
        scatter = torch.zeros(dim, dim, dtype=torch.float64)
        for group in by_class(features, labels, classes):
            scatter += scatter_of(group) / looks
            means.append(group.mean(0))
        self.means = torch.cat([self.means, torch.stack(means).to(self.means)])
        self.scatter.add_products(scatter)
        self.count += len(labels) // looks
        self._whiten()

    @classmethod
    def of(cls, means: Tensor, covariance: Tensor, images: int) -> "PooledGaussians":
        """Return those with known means and covariance."""
        pooled = cls(means.shape[1])
        pooled.means = means.to(pooled.means)
        pooled.scatter.add_products(covariance * images)
        pooled.count.fill_(images)
        pooled._whiten()
        return pooled

    def forget(self, label: int) -> None:
        """Forget the mean of a class. The covariance, to which all classes added, stays, and so does the number of
        images it is of."""
        self.means = without(self.means, label)
        self._whiten()

    def distances(self, features: Tensor) -> Tensor:
        """Return the Mahalanobis distance of every row to every class mean, [B, classes]. Around the centre products
        of matrices are as exact as differences, and with hundreds of classes many times faster."""
        return plain_distances(self.whiten(features) - self.centre, self.whitened)

    def whiten(self, features: Tensor) -> Tensor:
        """Return W·u of every row u, whose lengths are Mahalanobis lengths."""
        return features @ self.whitening.T

    def discriminants(self, features: Tensor) -> Tensor:
        """Return −½ squared distance to every class mean, up to a constant of the row that all classes share: linear
        in the features, so it costs next to nothing. [B, classes]"""
        return self._along(features) - self.whitened.square().sum(1) / 2

    def cosines(self, features: Tensor) -> Tensor:
        """Return the cosine of the angle at which every class mean is seen from the middle of all of them, against
        the direction of the features, in the metric of the covariance [B, classes]: however far away these are."""
        return F.normalize(self.whiten(features) - self.centre) @ F.normalize(self.whitened).T

    def relative(self, features: Tensor) -> Tensor:
        """Return how much nearer every class is than all classes together: d₀² − d_c², with d₀ the distance to the
        mean of all class means, in the covariance within classes plus that between their means [B, classes].

        What is quadratic in the features cancels: with a = Mᵀ·Σ⁻¹·x for M of C centred class means, Woodbury's
        identity gives d₀² − d_c² = 2·a_c − m_cᵀ·Σ⁻¹·m_c − aᵀ·(C·I + Mᵀ·Σ⁻¹·M)⁻¹·a.
        """
        if len(self.means) == 1:  # it is all there is, and never nearer than that
            return -self.distances(features).square()
        along = self._along(features)
        common = (along @ self.spread).square().sum(1, keepdim=True)
        return 2 * along - self.whitened.square().sum(1) - common

    def ridge(self, features: Tensor) -> Tensor:
        """Return how much the outputs of a ridge regression on one-hot classes exceed 1/C, all C classes counting the
        same and the shrinkage of Σ in place of the penalty [B, classes].

        Its weights are (Σ + M·Mᵀ/C)⁻¹ · m_c / C; its outputs, by Woodbury, (C·I + Mᵀ·Σ⁻¹·M)⁻¹ · Mᵀ·Σ⁻¹·x.
        """
        return self._along(features) @ (self.spread @ self.spread.T)

    def derived(self, name: str, make: Callable[["PooledGaussians"], Any]) -> Any:
        """Return what is made of these statistics, and made anew only when there are others."""
        if name not in self._derived:
            self._derived[name] = make(self)
        return self._derived[name]

    def _along(self, features: Tensor) -> Tensor:
        return (features - self.means.mean(0)) @ self.directions.T

    def rebuild(self, classes: int) -> None:
        """Take a described shape; the tensors come afterwards."""
        self.means = self.means.new_zeros(classes, self.means.shape[1])

    def _whiten(self) -> None:
        if int(self.count) < 0 or bool(self.count) != bool(len(self.means)):
            raise OarlockError(f"{len(self.means)} class means cannot be of {int(self.count)} images")
        if not self.count:
            return
        self._derived = {}
        self.whitening.copy_(whitening_of(self.shrunk_covariance()))
        whitened = self.whiten(self.means)
        self.centre.copy_(whitened.mean(0))
        self.whitened = whitened - self.centre
        self.directions = self.whitened @ self.whitening
        classes = len(self.means)
        products = self.whitened.cpu().double() @ self.whitened.cpu().double().T
        inner = products + classes * torch.eye(classes, dtype=products.dtype)
        self.spread = whitening_of(inner).T.to(self.whitened)

    @property
    def covariance(self) -> Tensor:
        """Return the covariance within classes, in double precision, on the CPU."""
        return self.scatter.whole() / self.count.cpu()

    def shrunk_covariance(self) -> Tensor:
        """Return Σ as distances are measured by it, in double precision."""
        covariance = self.covariance
        variance, shrinkage = 1.0, self.shrinkage
        if shrinkage is None:
            variance = float(covariance.diagonal().mean().clamp_min(1e-6))
            shrinkage = oracle_approximating_shrinkage(covariance, int(self.count))
        sphere = variance * torch.eye(len(covariance), dtype=covariance.dtype)
        return (1 - shrinkage) * covariance + shrinkage * sphere


class PartOfPooled(nn.Module):
    """Measure distances to some of the classes that are pooled, in the metric of all of them."""

    def __init__(self, pooled: PooledGaussians, classes: slice) -> None:
        super().__init__()
        self._pooled = (pooled,)  # in a tuple, so that its tensors are not counted as ours
        self.classes = classes

    def forget(self, label: int) -> None:
        """Do nothing: there is nothing of its own."""

    def whiten(self, features: Tensor) -> Tensor:
        return self._pooled[0].whiten(features)

    def distances(self, features: Tensor) -> Tensor:
        return self._pooled[0].distances(features)[:, self.classes]


def oracle_approximating_shrinkage(covariance: Tensor, images: int) -> float:
    """Return how much to shrink a covariance towards its mean variance, by OAS (Chen et al., 2010) as scikit-learn
    has it: near the best for Gaussians of this covariance."""
    dim = len(covariance)
    power, variance = float(covariance.square().mean()), float(covariance.diagonal().mean())
    excess = (images + 1) * (power - variance**2 / dim)
    return min(1.0, (power + variance**2) / excess) if excess > 0 else 1.0
