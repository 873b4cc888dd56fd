"""Detectors on the statistics of all classes under the bare trunk: their means, and the covariance within them."""

from torch import Tensor

from oarlock.detectors import detector
from oarlock.detectors.pooled import PooledGaussians


@detector("familiar")
def familiar(familiarity: Tensor) -> Tensor:
    """Score by statistics of the bare trunk: how much inputs lie in the direction of a class mean, and how much
    nearer it is than all classes together (relative Mahalanobis distance)."""
    return familiarity


@detector("akin")
def akin(kinship: Tensor) -> Tensor:
    """Score as `familiar` does, by all classes together: what lies between learned kinds, and might be either, is
    known as well."""
    return kinship


@detector("nearest")
def nearest(bare: Tensor, statistics: PooledGaussians) -> Tensor:
    """Score by how near the nearest class mean is under the bare trunk, in one metric for all classes (Mahalanobis
    distance)."""
    return -statistics.distances(bare).amin(1)


@detector("relative")
def relative(bare: Tensor, statistics: PooledGaussians) -> Tensor:
    """Score by how much nearer a class is than all classes together, under the bare trunk (relative Mahalanobis
    distance)."""
    return statistics.relative(bare).amax(1)


@detector("direction")
def direction(bare: Tensor, statistics: PooledGaussians) -> Tensor:
    """Score by how much inputs lie in the direction of a class mean, however far away, under the bare trunk (cosine
    in the metric of the covariance)."""
    return statistics.cosines(bare).amax(1)


@detector("ridge")
def ridge(bare: Tensor, statistics: PooledGaussians) -> Tensor:
    """Score by the largest output of a ridge regression on the bare trunk's values."""
    return statistics.ridge(bare).amax(1)
