"""Gaussians of classes, and how near an input is to them."""

import math
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.errors import OarlockError

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
        for group in _by_class(features, labels, classes):
            means.append(group.mean(0))
            if few:
                deviations.append((group - means[-1]) / math.sqrt(len(group) * classes))
            else:
                covariance += _scatter(group) / len(group) / classes
        self.means.copy_(torch.stack(means))
        if few:
            whitening = _whitening_along(torch.cat(deviations), len(labels) - classes, self.shrinkage)
        else:
            identity = torch.eye(dim, dtype=covariance.dtype)
            whitening = _whitening((1 - self.shrinkage) * covariance + self.shrinkage * identity)
        self.whitening = whitening.to(self.means).contiguous()  # products round by how a matrix lies in memory

    def forget(self, label: int) -> None:
        """Forget the mean of a class. The covariance, to which all classes added, stays."""
        self.means = _without(self.means, label)

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
        self.register_buffer("covariance", torch.zeros(dim, dim))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("whitening", torch.eye(dim), persistent=False)  # follows from the others
        self.register_buffer("centre", torch.zeros(dim), persistent=False)  # of the whitened means
        self.register_buffer("whitened", torch.zeros(0, dim), persistent=False)  # means, around their centre
        self.register_buffer("directions", torch.zeros(0, dim), persistent=False)  # Σ⁻¹ · means, around their mean
        self.register_buffer("spread", torch.zeros(0, 0), persistent=False)  # what classes differ by, see `relative`
        self.register_load_state_dict_post_hook(lambda pooled, _: pooled._whiten())
        self._residual: Tensor | None = None  # takes seconds, and is seldom asked for: see `beside_virtual`
        self.means: Tensor
        self.covariance: Tensor
        self.count: Tensor
        self.whitening: Tensor
        self.centre: Tensor
        self.whitened: Tensor
        self.directions: Tensor
        self.spread: Tensor

    def add(self, features: Tensor, labels: Tensor, classes: int, looks: int = 1) -> None:
        """Take in new classes, labelled 0..classes−1: Σ = scatter / images. Several looks at every image count as
        one: they tell how a class varies, and little about how far to trust that."""
        before, new, means = int(self.count), len(labels) // looks, []
        covariance = self.covariance.cpu().double() * before
        for group in _by_class(features, labels, classes):
            covariance += _scatter(group) / looks
            means.append(group.mean(0))
        covariance /= before + new
        self.means = torch.cat([self.means, torch.stack(means).to(self.means)])
        self.covariance.copy_(covariance)
        self.count.fill_(before + new)
        self._whiten()

    def forget(self, label: int) -> None:
        """Forget the mean of a class. The covariance, to which all classes added, stays, and so does the number of
        images it is of."""
        self.means = _without(self.means, label)
        self._whiten()

    def distances(self, features: Tensor) -> Tensor:
        """Return the Mahalanobis distance of every row to every class mean, [B, classes]. Around the centre products
        of matrices are as exact as differences, and with hundreds of classes many times faster."""
        return plain_distances(self.whiten(features) - self.centre, self.whitened)

    def nearness(self, features: Tensor) -> Tensor:
        """Return minus these distances."""
        return -self.distances(features)

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

    def beside_virtual(self, features: Tensor) -> Tensor:
        """Return the log-sum-exp of the discriminants, less a virtual logit that grows with what lies off the leading
        half of the directions in which everything learned varies (ViM, Wang et al., 2022) [B].

        The covariance of everything is that within classes plus that between their means; the virtual logit's scale
        makes it, on average, as large as the best discriminant of class means.
        """
        if self._residual is None:
            self._residual = self._off_the_leading_half()
        off = ((features - self.means.mean(0)) @ self._residual.to(features)).square().sum(1).sqrt()
        return self.discriminants(features).logsumexp(1) - off

    def _off_the_leading_half(self) -> Tensor:
        """A [D, D − D/2] that maps differences from the middle to their virtual logit's parts."""
        centred = (self.means - self.means.mean(0)).cpu().double()
        whole = self._shrunk(self.covariance.cpu().double()) + centred.T @ centred / len(centred)
        variances, directions = torch.linalg.eigh(whole)  # ascending
        rest = len(whole) - len(whole) // 2
        best = self.discriminants(self.means).amax(1).mean().clamp_min(0)
        scale = (float(best) or 1.0) / math.sqrt(float(variances[:rest].sum()))  # a single class has no discriminant
        return (scale * directions[:, :rest]).to(self.means)

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
        self._residual = None
        self.whitening.copy_(_whitening(self._shrunk(self.covariance.cpu().double())))
        whitened = self.whiten(self.means)
        self.centre.copy_(whitened.mean(0))
        self.whitened = whitened - self.centre
        self.directions = self.whitened @ self.whitening
        classes = len(self.means)
        products = self.whitened.cpu().double() @ self.whitened.cpu().double().T
        inner = products + classes * torch.eye(classes, dtype=products.dtype)
        self.spread = _whitening(inner).T.to(self.whitened)

    def _shrunk(self, covariance: Tensor) -> Tensor:
        variance, shrinkage = 1.0, self.shrinkage
        if shrinkage is None:
            variance = float(covariance.diagonal().mean().clamp_min(1e-6))
            shrinkage = _oracle_approximating_shrinkage(covariance, int(self.count))
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


def _without(means: Tensor, label: int) -> Tensor:
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


def _by_class(features: Tensor, labels: Tensor, classes: int) -> Iterator[Tensor]:
    """The features of every class, in double precision (and so on the CPU): one class at a time is enough to hold."""
    return (features[labels == label].flatten(1).cpu().double() for label in range(classes))


def _scatter(group: Tensor) -> Tensor:
    centred = group - group.mean(0)
    return centred.T @ centred


def _oracle_approximating_shrinkage(covariance: Tensor, images: int) -> float:
    """OAS (Chen et al., 2010), as scikit-learn has it: near the best for Gaussians of this covariance."""
    dim = len(covariance)
    power, variance = float(covariance.square().mean()), float(covariance.diagonal().mean())
    excess = (images + 1) * (power - variance**2 / dim)
    return min(1.0, (power + variance**2) / excess) if excess > 0 else 1.0


def _whitening(covariance: Tensor) -> Tensor:
    """W with Wᵀ·W = Σ⁻¹, so that ‖W·u‖ is a Mahalanobis length."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), identity, upper=False)


def _whitening_along(deviations: Tensor, rank: int, shrinkage: float) -> Tensor:
    """A [rank, D] with (I − Aᵀ·A) / √shrinkage the symmetric root of Σ⁻¹, where Σ = (1−shrinkage) · deviationsᵀ ·
    deviations + shrinkage · I."""
    _, sizes, directions = torch.linalg.svd(deviations, full_matrices=False)
    lengths = (shrinkage / ((1 - shrinkage) * sizes[:rank].square() + shrinkage)).sqrt()
    return (1 - lengths).sqrt()[:, None] * directions[:rank]
