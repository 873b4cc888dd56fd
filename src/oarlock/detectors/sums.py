"""Sums of products of rows, in double precision. A symmetric one is stored as its triangle: 4 · D² bytes for D
columns, as much as the whole of it in single precision."""

import torch
from torch import Tensor, nn

ROWS = 2048  # whose products are summed at a time, in double precision


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
        return self.add_products(products(rows, rows))

    def add_products(self, symmetric: Tensor) -> Tensor:
        """Take in a sum of products of rows, and return the whole matrix, on the CPU."""
        whole = self.whole() + symmetric
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
