"""A memory filled by reservoir sampling, with the logits that images were given when they came."""

import torch
from torch import Tensor

from oarlock.memory import Memory


class Reservoir(Memory):
    """Of all images offered so far, a random few; every one of them is held with the same probability.

    >>> reservoir = Reservoir(budget=3, image_size=2)
    >>> images, labels = torch.zeros(9, 3, 2, 2, dtype=torch.uint8), torch.arange(9)
    >>> reservoir.begin_task()
    >>> reservoir.offer(images, labels, torch.zeros(9, 5), torch.arange(9), torch.Generator().manual_seed(0))
    >>> len(reservoir), int(reservoir.offered)
    (3, 9)
    """

    def __init__(self, budget: int, image_size: int) -> None:
        super().__init__(budget, image_size, features=0)
        self.register_buffer("logits", torch.zeros(0, 0))
        self.register_buffer("known", torch.zeros(0, dtype=torch.long))  # how many classes had a logit then
        self.register_buffer("offered", torch.tensor(0))
        self.register_buffer("rows", torch.zeros(0, dtype=torch.long))  # in the task's images; -1: of earlier tasks
        self.register_buffer("earlier", torch.tensor(0))  # how many it held when the task began
        self.logits: Tensor
        self.known: Tensor
        self.offered: Tensor
        self.rows: Tensor
        self.earlier: Tensor

    def begin_task(self) -> None:
        self.rows.fill_(-1)
        self.earlier.fill_(len(self))

    def enlarge(self, budget: int) -> None:
        """Hold more images from now on, as if only those it has had been offered: the others cannot come back."""
        if budget > self.budget:
            self.offered.fill_(len(self))
        super().enlarge(budget)

    def offer(self, images: Tensor, labels: Tensor, logits: Tensor, rows: Tensor, random: torch.Generator) -> None:
        """Take in each image with probability budget / offered so far, in place of a random one; `rows` are where
        they stand among the task's images."""
        first = int(self.offered)
        self._make_room(min(self.budget, first + len(images)), logits.shape[1])
        drawn = torch.rand(len(images), dtype=torch.float64, generator=random)
        for index, number in enumerate(range(first, first + len(images))):
            slot = number if number < self.budget else int(drawn[index] * (number + 1))
            if slot < self.budget:
                self.images[slot], self.labels[slot] = images[index], labels[index]
                self.logits[slot], self.known[slot] = logits[index], logits.shape[1]
                self.rows[slot] = rows[index]
        self.offered += len(images)

    def _make_room(self, images: int, classes: int) -> None:
        old, count = self.state_dict(), len(self)
        self.rebuild([images, 0, classes])
        self.images[:count], self.labels[:count], self.known[:count] = old["images"], old["labels"], old["known"]
        self.logits[:count, : old["logits"].shape[1]], self.rows[:count] = old["logits"], old["rows"]

    def describe(self) -> list[int]:
        return [*super().describe(), self.logits.shape[1]]

    def rebuild(self, shape: list[int]) -> None:
        *both, classes = shape
        super().rebuild(both)
        self.logits = self.logits.new_zeros(both[0], classes)
        self.known, self.rows = self.known.new_zeros(both[0]), self.rows.new_zeros(both[0])
