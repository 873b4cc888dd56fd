"""Features lifted to many random ones, and regressions on them by sums of their products.

The random directions are drawn once and stored in the model, in half precision, which is what they are rounded to
when they are drawn: a seed alone would save an eighth of the file, and would bind a model to one version of one
library's generator for as long as anybody asks it. The sums are nearly all of a model's file: 16 MB for 2,000 random
features, 100 MB for 5,000.
"""

import torch
from torch import Tensor, nn

from oarlock.errors import OarlockError

LEAST = 1e-10  # penalty, as a share of the trace: an answer keeps six digits


class RandomDirections(nn.Module):
    """Hold directions with independent standard normal entries."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.zeros(dim, count, dtype=torch.half))
        self.values: Tensor

    def draw(self, random: torch.Generator) -> None:
        if not self.values.is_meta:  # on which nothing is drawn
            self.values.copy_(torch.randn(self.values.shape, generator=random))

    def along(self, features: Tensor) -> Tensor:
        """Return how far features reach in every direction [B, count]."""
        return features @ self.values.to(features.dtype)


def ridge(products: Tensor, penalty: float, right: Tensor) -> Tensor:
    """Return (products + penalty · I)⁻¹ · right, which spoils the diagonal of `products`. A penalty that rounding
    would lose is raised to where it is not lost."""
    diagonal = products.diagonal()
    diagonal += max(penalty, LEAST * float(diagonal.sum()))
    factor, failed = torch.linalg.cholesky_ex(products)
    if failed:
        raise OarlockError("the trunk's features of these images are not numbers")
    return torch.cholesky_solve(right, factor)
