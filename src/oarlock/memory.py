"""Images kept after their task is over, with their features in every feature set."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from oarlock.data.jpeg import from_jpeg, to_jpeg
from oarlock.errors import OarlockError

DENSEST = 100  # bytes of pixels to a byte of JPEG, more than photographs have
ROOM = 2**28  # bytes of pixels, for which nothing is asked

Order = Callable[[Tensor, int], Tensor]  # the rows of one class, how many are wanted → those to take, best first


class Encoder(Protocol):
    """Give images their features, as a method does."""

    features_frozen: bool

    def feature_sets(self, tasks: int) -> Sequence[int]: ...

    def encode(self, images: Tensor, sets: Sequence[int]) -> Tensor: ...


class EncodedImages(nn.Module):
    """Hold images, their class numbers, and their features [images, feature sets, features]: neither the trunk's nor
    a finished task's features ever change, so every (image, feature set) pair is computed once."""

    def __init__(self, no_images: Tensor, features: int) -> None:
        super().__init__()
        self.register_buffer("images", no_images)  # which says what is held of each
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

    def forget(self, label: int, row: int | None = None) -> None:
        """Forget the images of a class, whose number those above it move up to, and what a feature set made of all
        others where that goes as well."""
        self.keep(torch.nonzero(self.labels != label).flatten())
        self.labels = self.labels - (self.labels > label).long()
        if row is not None:
            self.encoded = torch.cat([self.encoded[:, :row], self.encoded[:, row + 1 :]], 1)

    def make_room(self, labels: Tensor, limit: int, order: Order) -> None:
        """Forget images of the classes that have most, until no more than a limit are left with those to come (given
        by their labels). What is kept stands as it stood."""
        quota = fair_quota(torch.cat([self.labels.cpu(), labels.cpu()]).bincount(), limit)
        rows = [order(torch.nonzero(self.labels == label).flatten().cpu(), quota) for label in self.labels.unique()]
        self.keep(_join(rows).sort().values)

    def refresh(self, method: Encoder, tasks: int) -> None:
        """Compute the feature sets that are missing now that a number of tasks is finished: all of them where
        features do not last."""
        known = self.encoded.shape[1] if method.features_frozen else 0
        missing = method.feature_sets(tasks)[known:]
        if len(self) and missing:
            self.encoded = torch.cat([self.encoded[:, :known], method.encode(self.images, missing)], 1)

    def add_images(self, images: Tensor, labels: Tensor, encoded: Tensor | None = None) -> None:
        device = self.labels.device
        encoded = self.encoded.new_zeros(len(images), *self.encoded.shape[1:]) if encoded is None else encoded
        self.images = torch.cat([self.images, images.to(device)])
        self.labels = torch.cat([self.labels, labels.to(device)])
        self.encoded = torch.cat([self.encoded.reshape(len(self.encoded), *encoded.shape[1:]), encoded.to(device)])

    def take_in(self, images: Tensor, labels: Tensor, encode: Callable[[Tensor], Tensor]) -> None:
        """Add images, with the features that a function gives to them."""
        self.add_images(images, labels, encode(images))

    def check(self, classes: int) -> None:
        """Refuse images of other classes than the first so many, in what was read from a file."""
        if len(self) and not (int(self.labels.min()) >= 0 and int(self.labels.max()) < classes):
            raise OarlockError(f"the model keeps images of other classes than its {classes}")

    def describe(self) -> list[int]:
        return list(self.encoded.shape[:2])

    def rebuild(self, shape: list[int]) -> None:
        """Take a described shape; the tensors come afterwards."""
        images, sets = shape
        self._make_room_for(images)
        self.labels = self.labels.new_empty(images)
        self.encoded = self.encoded.new_empty(images, sets, self.encoded.shape[2])

    def _make_room_for(self, images: int) -> None:
        self.images = self.images.new_empty(images, *self.images.shape[1:])


class PackedImages(EncodedImages):
    """Hold images as JPEG: what was lost is lost before anything looks at them, so that nothing changes when they are
    read from a file.

    >>> grey = torch.full((3, 3, 64, 64), 100, dtype=torch.uint8)
    >>> packed = PackedImages(grey[:0], features=2)
    >>> packed.take_in(grey, torch.arange(3), lambda images: torch.zeros(len(images), 1, 2))
    >>> packed.keep(torch.tensor([0, 2]))
    >>> len(packed), len(packed.files) < grey[0].numel()
    (2, True)
    """

    def __init__(self, no_images: Tensor, features: int) -> None:
        super().__init__(no_images, features)
        self.register_buffer("images", self.images, persistent=False)  # follows from the files
        self.register_buffer("files", torch.zeros(0, dtype=torch.uint8))  # one after the other
        self.register_buffer("lengths", torch.zeros(0, dtype=torch.long))  # of each
        self.register_load_state_dict_post_hook(lambda packed, _: packed._unpack())
        self.files: Tensor
        self.lengths: Tensor

    def take_in(self, images: Tensor, labels: Tensor, encode: Callable[[Tensor], Tensor]) -> None:
        files = to_jpeg(images)
        super().take_in(from_jpeg(files, images.shape[-1]), labels, encode)
        self._pack([*self._each(), *files])

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        files = self._each()
        self._pack([files[row] for row in rows.tolist()])

    def describe(self) -> list[int]:
        return [*super().describe(), len(self.files)]

    def rebuild(self, shape: list[int]) -> None:
        *both, length = shape
        super().rebuild(both)
        self.lengths, self.files = self.lengths.new_zeros(both[0]), self.files.new_zeros(length)

    def _make_room_for(self, images: int) -> None:
        """There is none to be made: they follow from the files."""

    def _each(self) -> list[bytes]:
        lengths = self.lengths.tolist()
        if min(lengths, default=0) < 0 or sum(lengths) != len(self.files):
            raise OarlockError("the images that the model keeps are not where it says")
        return [part.numpy().tobytes() for part in self.files.cpu().split(lengths)] if lengths else []

    def _pack(self, files: list[bytes]) -> None:
        device = self.files.device
        self.files = (
            torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8).to(device) if files else self.files[:0]
        )
        self.lengths = torch.tensor([len(file) for file in files], dtype=torch.long, device=device)

    def _unpack(self) -> None:
        files, size = self._each(), self.images.shape[-1]
        if len(files) * 3 * size**2 > ROOM + DENSEST * len(self.files):
            raise OarlockError(f"{len(files)} images of {size} × {size} pixels cannot be in {len(self.files)} bytes")
        self.images = from_jpeg(files, size).to(self.files.device)


class Memory(EncodedImages):
    """Keep class-balanced images for replay: at most `budget`, ⌊budget / classes seen⌋ of each class.

    A class's images stand in the order they were chosen in, so keeping the first few is keeping the best few, or a
    random few where they were drawn at random.

    >>> memory = Memory(budget=4, no_images=torch.zeros(0, 3, 8, 8, dtype=torch.uint8), features=5)
    >>> nine = torch.zeros(9, dtype=torch.long)
    >>> kept, chosen = memory.choose(nine, classes=2, order=at_random(torch.Generator().manual_seed(0)))
    >>> len(kept), len(chosen)
    (0, 2)
    """

    def __init__(self, budget: int, no_images: Tensor, features: int) -> None:
        super().__init__(no_images, features)
        self.budget = budget

    def enlarge(self, budget: int) -> None:
        """Hold more images from now on."""
        self.budget = budget

    def choose(self, labels: Tensor, classes: int, order: Order) -> tuple[Tensor, Tensor]:
        """Return which rows to keep, and which of newly offered images (given by their labels) to take."""
        quota = self.budget // classes
        kept = [torch.nonzero(self.labels == label).flatten()[:quota] for label in self.labels.unique()]
        chosen = []
        for label in labels.unique():
            rows = torch.nonzero(labels == label).flatten()
            chosen.append(order(rows, quota))
        return _join(kept), _join(chosen)


def fair_quota(counts: Tensor, limit: int) -> int:
    """Return how many images each class may keep of those it has, for no more than a limit in all; at least one.

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
    """Return an order in which each next image brings the mean of those chosen closest to the mean of the class
    (iCaRL's algorithm 4), on features of length 1.

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


class Reservoir(Memory):
    """Keep a random few of all images offered so far; every one of these is held with the same probability.

    >>> images, labels = torch.zeros(9, 3, 2, 2, dtype=torch.uint8), torch.arange(9)
    >>> reservoir = Reservoir(budget=3, no_images=images[:0])
    >>> reservoir.begin_task()
    >>> reservoir.offer(images, labels, torch.zeros(9, 5), torch.arange(9), torch.Generator().manual_seed(0))
    >>> len(reservoir), int(reservoir.offered)
    (3, 9)
    """

    def __init__(self, budget: int, no_images: Tensor) -> None:
        super().__init__(budget, no_images, features=0)
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

    def check(self, classes: int) -> None:
        """Refuse what cannot have come about by offering images, too."""
        super().check(classes)
        known, logits = self.known, self.logits.shape[1]
        if not (
            len(self) == min(self.budget, int(self.offered))
            and 0 <= int(self.earlier) <= len(self)
            and logits <= classes
            and bool(((known >= 0) & (known <= logits) & (self.rows >= -1)).all())
        ):
            raise OarlockError("the model keeps other images than it was offered, or logits of other classes")

    def describe(self) -> list[int]:
        return [*super().describe(), self.logits.shape[1]]

    def rebuild(self, shape: list[int]) -> None:
        *both, classes = shape
        super().rebuild(both)
        self.logits = self.logits.new_zeros(both[0], classes)
        self.known, self.rows = self.known.new_zeros(both[0]), self.rows.new_zeros(both[0])
