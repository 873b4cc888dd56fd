"""What methods share that learn in closed form: one pass of the frozen trunk over a task's images, and sums.

Nothing is optimised and nothing of an image is kept, so that what was learned is what learning everything at once
would have given, in whatever order classes came and however they were cut into tasks.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oarlock.methods._base import Method
from oarlock.training import Phase, TaskData

SHARPNESS = 10.0  # what an output of a regression on one-hot classes counts as a log-probability


class ClosedFormMethod(Method):
    """Take statistics of the bare trunk's features, and answer by them."""

    needs_memory = False
    # Options with which order and cut do not matter, where a default looks at one task for all: tests use them.
    exact_with: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def take(self, features: Tensor, task: TaskData) -> None:
        """Take in a task's features [N, D], which `task` has the labels of."""

    def phases(self, task: TaskData) -> list[Phase]:
        return [TakeStatistics(self, task)]

    def feature_sets(self, tasks: int) -> range:
        return range(-1, 0)  # the bare trunk's features, whatever was learned

    def encode_chunk(self, images: Tensor, sets: Sequence[int]) -> Tensor:
        return self.trunk(images)[:, None]


class TakeStatistics(Phase):
    """Pass a task's images through the trunk once; nothing is optimised."""

    name = "statistics"

    def __init__(self, method: ClosedFormMethod, task: TaskData) -> None:
        self.method, self.task = method, task

    def start(self) -> None:
        self.method.take(self.method.encode(self.task.images, [-1])[:, 0], self.task)


class Spread(nn.Module):
    """Hold how far images lie from what is expected of their class: one variance for all directions and classes.

    >>> spread = Spread(dim=2)
    >>> spread.add(torch.tensor([1.0, 3.0]))
    >>> spread.variance
    tensor(1.)
    """

    LEAST = 1e-6  # of images that do not differ at all

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))
        self.register_buffer("count", torch.tensor(0))
        self.total: Tensor
        self.count: Tensor

    def add(self, squared: Tensor) -> None:
        """Take in squared distances of images."""
        self.total += squared.double().sum()
        self.count += len(squared)

    @property
    def variance(self) -> Tensor:
        """Return the mean square in one direction."""
        return (self.total / (self.count * self.dim).clamp_min(1)).clamp_min(self.LEAST).float()
