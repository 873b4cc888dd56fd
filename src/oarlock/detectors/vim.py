"""ViM: virtual-logit matching (Wang et al., CVPR 2022), on the statistics of the bare trunk."""

import math

import torch
from torch import Tensor

from oarlock.detectors import detector
from oarlock.detectors.pooled import PooledGaussians

AS_SMALL = 1.001  # times a variance


@detector("vim")
def vim(bare: Tensor, statistics: PooledGaussians) -> Tensor:
    """Score by the classes' discriminants under the bare trunk against a virtual class: what lies off the leading
    half of the directions in which everything learned varies (ViM, Wang et al., 2022)."""
    off_leading: Tensor = statistics.derived("off the leading half", _off_the_leading_half)
    off = ((bare - statistics.means.mean(0)) @ off_leading.to(bare)).square().sum(1).sqrt()
    return statistics.discriminants(bare).logsumexp(1) - off


def _off_the_leading_half(statistics: PooledGaussians) -> Tensor:
    """A [D, D − D/2 or more] that maps differences from the middle to their virtual logit's parts.

    The covariance of everything is that within classes plus that between their means; the scale makes the virtual
    logit, on average, as large as the best discriminant of class means. Along directions in which nothing learned
    varies all variances are the same: no half of these is leading, so none is left out.
    """
    centred = (statistics.means - statistics.means.mean(0)).cpu().double()
    whole = statistics.shrunk_covariance() + centred.T @ centred / len(centred)
    variances, directions = torch.linalg.eigh(whole)  # ascending
    rest = int((variances <= AS_SMALL * variances[len(whole) - len(whole) // 2 - 1]).sum())
    best = statistics.discriminants(statistics.means).amax(1).mean().clamp_min(0)
    scale = (float(best) or 1.0) / math.sqrt(float(variances[:rest].sum()))  # a single class has no discriminant
    return (scale * directions[:, :rest]).to(statistics.means)
