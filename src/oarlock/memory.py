"""Images kept after their task is over, with their features in every view."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from oarlock.methods.base import Method

Order = Callable[[Tensor, int], Tensor]  # the rows of one class, how many are wanted → those to take, best first


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

    def make_room(self, labels: Tensor, limit: int, order: Order) -> None:
        """Forget images of the classes that have most, until no more than a limit are left with those to come (given
        by their labels). What is kept stands as it stood."""
        quota = fair_quota(torch.cat([self.labels.cpu(), labels.cpu()]).bincount(), limit)
        rows = [order(torch.nonzero(self.labels == label).flatten().cpu(), quota) for label in self.labels.unique()]
        self.keep(_join(rows).sort().values)

    def refresh(self, method: "Method", tasks: int) -> None:
        """Compute the views that are missing now that a number of tasks is finished: all of them where features do
        not last."""
        known = self.encoded.shape[1] if method.lasting else 0
        missing = method.views(tasks)[known:]
        if len(self) and missing:
            self.encoded = torch.cat([self.encoded[:, :known], method.encode(self.images, missing)], 1)

    def add_images(self, images: Tensor, labels: Tensor, encoded: Tensor | None = None) -> None:
        device = self.labels.device
        encoded = self.encoded.new_zeros(len(images), *self.encoded.shape[1:]) if encoded is None else encoded
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
    """Class-balanced replay: at most `budget` images, ⌊budget / classes seen⌋ of each class.

    A class's images stand in the order they were chosen in, so keeping the first few is keeping the best few, or a
    random few where they were drawn at random.

    >>> memory = Memory(budget=4, image_size=8, features=5)
    >>> nine = torch.zeros(9, dtype=torch.long)
    >>> kept, chosen = memory.choose(nine, classes=2, order=at_random(torch.Generator().manual_seed(0)))
    >>> len(kept), len(chosen)
    (0, 2)
    """

    def __init__(self, budget: int, image_size: int, features: int) -> None:
        super().__init__(image_size, features)
        self.budget = budget

    def enlarge(self, budget: int) -> None:
        """Hold more images from now on."""
        self.budget = budget

    def choose(self, labels: Tensor, classes: int, order: Order) -> tuple[Tensor, Tensor]:
        """Which rows to keep, and which of newly offered images (given by their labels) to take."""
        quota = self.budget // classes
        kept = [torch.nonzero(self.labels == label).flatten()[:quota] for label in self.labels.unique()]
        chosen = []
        for label in labels.unique():
            rows = torch.nonzero(labels == label).flatten()
            chosen.append(order(rows, quota))
        return _join(kept), _join(chosen)


def fair_quota(counts: Tensor, limit: int) -> int:
    """How many images a class may keep, of those that each has, for all to have no more than a limit; at least one.

    >>> fair_quota(torch.tensor([9, 2, 5]), limit=10), fair_quota(torch.tensor([4, 4, 4]), limit=2)
    (4, 1)
    """
    quota = int(counts.max()) if len(counts) else 1
    while quota > 1 and counts.clamp_max(quota).sum() > limit:
        quota -= 1
    return quota


def at_random(random: torch.Generator) -> Order:
    return lambda rows, wanted: rows[torch.randperm(len(rows), generator=random)[:wanted]]


def herding(features: Tensor) -> Order:
    """Each next image brings the mean of those chosen closest to the mean of the class (iCaRL's algorithm 4), on
    features of length 1.

    >>> along_a_circle = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> herding(along_a_circle)(torch.arange(4), 2).tolist()
    [1, 2]
    """
    unit = torch.nn.functional.normalize(features.detach().cpu().double(), dim=1)

    def order(rows: Tensor, wanted: int) -> Tensor:
        own, total, chosen = unit[rows], torch.zeros(unit.shape[1], dtype=unit.dtype), list[int]()
        for count in range(1, min(wanted, len(rows)) + 1):
            distances = (own.mean(0) - (total + own) / count).norm(dim=1)
            distances[chosen] = torch.inf
            chosen.append(int(distances.argmin()))
            total += own[chosen[-1]]
        return rows[chosen]

    return order


def _join(rows: list[Tensor]) -> Tensor:
    return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)
