"""Images kept after their task is over, with their features in every view."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from oarlock.methods.base import Method


class EncodedImages(nn.Module):
    """Images, their class numbers, and their features [images, views, features]: neither the trunk's nor a finished
    task's features ever change, so every (image, view) pair is computed once."""

    def __init__(self, image_size: int, features: int) -> None:
        super().__init__()
        self.register_buffer("images", torch.zeros(0, 3, image_size, image_size, dtype=torch.uint8))
        self.register_buffer("labels", torch.zeros(0, dtype=torch.long))
        self.register_buffer("encoded", torch.zeros(0, 0, features))
        self.images: Tensor
        self.labels: Tensor
        self.encoded: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def keep(self, rows: Tensor) -> None:
        """Forget all other images."""
        self.images, self.labels, self.encoded = self.images[rows], self.labels[rows], self.encoded[rows]

    def refresh(self, method: "Method", tasks: int) -> None:
        """Compute the views that are missing now that a number of tasks is finished: all of them where features do
        not last."""
        known = self.encoded.shape[1] if method.lasting else 0
        missing = method.views(tasks)[known:]
        if len(self) and missing:
            self.encoded = torch.cat([self.encoded[:, :known], method.encode(self.images, missing)], 1)

    def add_images(self, images: Tensor, labels: Tensor, encoded: Tensor) -> None:
        device = self.labels.device
        self.images = torch.cat([self.images, images.to(device)])
        self.labels = torch.cat([self.labels, labels.to(device)])
        self.encoded = torch.cat([self.encoded.reshape(len(self.encoded), *encoded.shape[1:]), encoded.to(device)])

    def describe(self) -> list[int]:
        return list(self.encoded.shape[:2])

    def rebuild(self, shape: list[int]) -> None:
        """Take a described shape; the tensors come afterwards."""
        images, views = shape
        self.images = self.images.new_zeros(images, *self.images.shape[1:])
        self.labels = self.labels.new_zeros(images)
        self.encoded = self.encoded.new_zeros(images, views, self.encoded.shape[2])


class Memory(EncodedImages):
    """Class-balanced replay: at most `budget` images, ⌊budget / classes seen⌋ of each class, chosen at random.

    A class's images stand in the order they were drawn, so keeping the first few is keeping a random few.

    >>> memory = Memory(budget=4, image_size=8, features=5)
    >>> nine = torch.zeros(9, dtype=torch.long)
    >>> kept, chosen = memory.choose(nine, classes=2, random=torch.Generator().manual_seed(0))
    >>> len(kept), len(chosen)
    (0, 2)
    """

    def __init__(self, budget: int, image_size: int, features: int) -> None:
        super().__init__(image_size, features)
        self.budget = budget

    def choose(self, labels: Tensor, classes: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which rows to keep, and which of newly offered images (given by their labels) to take."""
        quota = self.budget // classes
        kept = [torch.nonzero(self.labels == label).flatten()[:quota] for label in self.labels.unique()]
        chosen = []
        for label in labels.unique():
            rows = torch.nonzero(labels == label).flatten()
            chosen.append(rows[torch.randperm(len(rows), generator=random)[:quota]])
        return _join(kept), _join(chosen)


def _join(rows: list[Tensor]) -> Tensor:
    return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)
