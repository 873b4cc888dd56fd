"""Features lifted to many random ones, and regressions on them by sums of their products.

The random directions are drawn once and stored in the model, in half precision, which is what they are rounded to
when they are drawn: a seed alone would save an eighth of the file, and would bind a model to one version of one
library's generator for as long as anybody asks it. Sums are in double precision, and a symmetric one is stored as
its triangle: 4 · M² bytes for M random features, which is nearly all of a model's file (16 MB for 2,000, 100 MB for
5,000).
"""

import torch
from torch import Tensor, nn

from oarlock.errors import OarlockError

ROWS = 2048  # images whose products are summed at a time, in double precision
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


class Products(nn.Module):
    """Hold a sum of products of rows with themselves, as the lower triangle of the symmetric matrix that it is.

    >>> products = Products(2)
    >>> products.add(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    tensor([[ 1.,  2.],
            [ 2., 13.]], dtype=torch.float64)
    >>> products.triangle
    tensor([ 1.,  2., 13.], dtype=torch.float64)
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("triangle", torch.zeros(size * (size + 1) // 2, dtype=torch.float64))
        self.triangle: Tensor

    def add(self, rows: Tensor) -> Tensor:
        """Take in rows, and return the whole matrix, on the CPU."""
        whole = self.whole() + products(rows, rows)
        self.triangle.copy_(torch.cat([row[: index + 1] for index, row in enumerate(whole)]))
        return whole

    def whole(self) -> Tensor:
        """Return the matrix [size, size], on the CPU."""
        lower = torch.zeros(self.size, self.size, dtype=torch.float64)
        rows = self.triangle.cpu().split(list(range(1, self.size + 1)))
        for index, row in enumerate(rows):
            lower[index, : index + 1] = row
        return lower + lower.tril(-1).T


def products(rows: Tensor, others: Tensor) -> Tensor:
    """Return rowsᵀ · others in double precision, on the CPU."""
    total = torch.zeros(rows.shape[1], others.shape[1], dtype=torch.float64)
    for one, other in zip(rows.split(ROWS), others.split(ROWS), strict=True):
        total.addmm_(one.cpu().double().T, other.cpu().double())
    return total


def ridge(products: Tensor, penalty: float, right: Tensor) -> Tensor:
    """Return (products + penalty · I)⁻¹ · right, which spoils the diagonal of `products`. A penalty that rounding
    would lose is raised to where it is not lost."""
    diagonal = products.diagonal()
    diagonal += max(penalty, LEAST * float(diagonal.sum()))
    factor, failed = torch.linalg.cholesky_ex(products)
    if failed:
        raise OarlockError("the trunk's features of these images are not numbers")
    return torch.cholesky_solve(right, factor)
