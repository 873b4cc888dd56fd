"""How much an input looks like what was learned. Everywhere: higher is more in-distribution."""

import torch
from torch import Tensor, nn


class ClassGaussians(nn.Module):
    """Class means and one covariance for all classes of a task, held as whitening: distances are then plain ones.

    >>> points = torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0]])
    >>> fitted = ClassGaussians(2, 2)
    >>> fitted.fit(points, torch.tensor([0, 0, 1, 1]), shrinkage=0.5)
    >>> fitted.distances(torch.tensor([[0.0, 1.0]]))[0, 0]
    tensor(0.)
    """

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(classes, dim))
        self.register_buffer("whitening", torch.eye(dim))
        self.means: Tensor
        self.whitening: Tensor

    def fit(self, features: Tensor, labels: Tensor, shrinkage: float) -> None:
        """Σ = mean over classes of the class covariances, shrunk to (1−shrinkage)·Σ + shrinkage·I."""
        x = features.double()
        means = torch.stack([x[labels == label].mean(0) for label in range(len(self.means))])
        scatters = [torch.cov(x[labels == label].T, correction=0) for label in range(len(means))]
        covariance = torch.stack(scatters).mean(0)
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        factor = torch.linalg.cholesky((1 - shrinkage) * covariance + shrinkage * identity)
        whitening = torch.linalg.solve_triangular(factor, identity, upper=False)
        self.means.copy_(means)
        self.whitening.copy_(whitening)

    def distances(self, features: Tensor) -> Tensor:
        """Mahalanobis distance of every row to every class mean, [B, classes]."""
        white, white_means = features @ self.whitening.T, self.means @ self.whitening.T
        return (white[:, None] - white_means).norm(dim=-1)
