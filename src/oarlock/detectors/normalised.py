"""Detectors on features of length 1 under the bare trunk (Mahalanobis++, Müller and Hein, 2025).

Nothing more is kept for them: what means and covariance become when features are scaled to length 1 is computed from
those of the features as they are. In many dimensions the squared length of an image of a class with mean μ is nearly
r² = ‖μ‖² + tr Σ; so its direction is, to first order, μ/r + (I − vvᵀ)(x − μ)/r with v = μ/r.
"""

import torch.nn.functional as F
from torch import Tensor

from oarlock.detectors import detector
from oarlock.detectors.pooled import PooledGaussians


@detector("nearest-normalised")
def nearest_normalised(bare: Tensor, statistics: PooledGaussians) -> Tensor:
    """Score by how near the nearest class mean is under the bare trunk, features and classes scaled to length 1
    (Mahalanobis distance on normalised features)."""
    return -_of_directions(statistics).distances(F.normalize(bare)).amin(1)


@detector("relative-normalised")
def relative_normalised(bare: Tensor, statistics: PooledGaussians) -> Tensor:
    """Score by how much nearer a class is than all classes together, under the bare trunk, features and classes
    scaled to length 1 (relative Mahalanobis distance on normalised features)."""
    return _of_directions(statistics).relative(F.normalize(bare)).amax(1)


def _of_directions(statistics: PooledGaussians) -> PooledGaussians:
    found: PooledGaussians = statistics.derived("directions", normalised)
    return found


def normalised(statistics: PooledGaussians) -> PooledGaussians:
    """Return the statistics of the same images with features scaled to length 1, to first order; their shrinkage is
    what suits the number of images."""
    means, within = statistics.means.cpu().double(), statistics.covariance
    squares = (means.square().sum(1) + within.trace()).clamp_min(1e-12)
    directions = means / squares.sqrt()[:, None]
    shares = 1 / squares / len(means)
    along = directions @ within
    lengths = (along * directions).sum(1)
    mixed = directions.T @ (shares[:, None] * along)
    covariance = shares.sum() * within - mixed - mixed.T + directions.T @ ((shares * lengths)[:, None] * directions)
    return PooledGaussians.of(directions, covariance, int(statistics.count)).to(statistics.means)
