"""Which images show the same: identical pixels, or one photograph that was saved again, resized or made brighter."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from torch import Tensor

from oarlock.errors import OarlockError

# Chosen on the training photos of the Grocery Store dataset: there all pairs as near as this are of one scene, even
# at twice the distance, and what JPEG at quality 20, half the size or 40 % more light made of a photo is found.
_DISTANCE = 5  # of the 64 bits of a difference hash
_LIKENESS = 0.95  # cosine of two thumbnails
_CLEAR_FROM = 64  # pixels on a side; of smaller images only identical ones are told
_MOST = 20  # copies of one photo; more are pictures that are alike otherwise, as from a camera that does not move
_CHUNK = 64  # images looked at together
_PAIRS = 2**24  # compared together


def same_pictures(images: Tensor, labels: Tensor) -> np.ndarray:
    """Return a number for each of some uint8 images [N, 3, H, W], the same for images that are copies of each other;
    of features [N, D], for those that are equal.

    Near copies that would be half of a class or more are not believed to be copies: a camera that does not move
    makes such pictures too.

    >>> import torch
    >>> images = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 8, 8)[[0, 1, 2, 1]]
    >>> same_pictures(images, torch.zeros(4, dtype=torch.long)).tolist()
    [0, 1, 2, 1]
    """
    first: dict[bytes, int] = {}
    same = np.array([first.setdefault(digest, row) for row, digest in enumerate(_digests(images))], dtype=np.int64)
    if images.ndim < 4 or images.shape[-1] < _CLEAR_FROM:
        return same
    near = united(same, _near_copies(images, np.unique(same)))
    return np.where(_believed(near, labels.numpy()), near, same)


def united(groups: np.ndarray, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """Return groups with those joined that a pair has members of; the smallest row of a group is its number.

    >>> united(np.array([0, 1, 0, 3, 4]), [(2, 3)]).tolist()
    [0, 1, 0, 0, 4]
    """
    parent: dict[int, int] = {}

    def root(group: int) -> int:
        while group in parent:
            group = parent[group]
        return group

    numbers = groups.tolist()
    for a, b in pairs:
        low, high = sorted((root(numbers[a]), root(numbers[b])))
        if low != high:
            parent[high] = low
    return np.array([root(number) for number in numbers], dtype=np.int64)


def kept_together(images: Tensor, labels: Tensor, names: Sequence[object] | None = None) -> tuple[np.ndarray, int]:
    """Return groups of images that belong on one side of a split, copies and those whose group has the same name; and
    how many images are copies of others.

    >>> import torch
    >>> images = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 8, 8)[[0, 1, 2, 1]]
    >>> groups, copies = kept_together(images, torch.zeros(4, dtype=torch.long), ["hill", "hill", "lake", "sea"])
    >>> groups.tolist(), copies
    ([0, 0, 2, 0], 1)
    """
    groups = same_pictures(images, labels)
    copies = len(groups) - len(np.unique(groups))
    if names is None:
        return groups, copies
    if len(names) != len(images):
        raise OarlockError(f"there are {len(images)} images but {len(names)} groups: name one group for each image")
    first: dict[object, int] = {}
    return united(groups, ((row, first.setdefault(name, row)) for row, name in enumerate(names))), copies


def _digests(images: Tensor) -> Iterator[bytes]:
    for start in range(0, len(images), _CHUNK):
        for image in images[start : start + _CHUNK].cpu().numpy():
            yield hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()


def _believed(near: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether the group of each image is small enough to be copies: as a whole, and in each class it is in."""
    _, rows, sizes = np.unique(near, return_inverse=True, return_counts=True)
    cells, places, here = np.unique(np.stack([near, labels]), axis=1, return_inverse=True, return_counts=True)
    too_many = 2 * here > np.bincount(labels)[cells[1]]
    doubtful = np.unique(near[too_many[places.ravel()]])
    return (sizes[rows.ravel()] <= _MOST) & ~np.isin(near, doubtful)


def _near_copies(images: Tensor, rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs of rows. All sums are of whole numbers that floats hold exactly, so that every machine finds the same."""
    signs, thumbnails = _looks(images, rows)
    lengths = np.sqrt(np.square(thumbnails).sum(1).astype(np.float64))
    seen = np.flatnonzero(lengths)  # an even area is like any other
    rows, signs, thumbnails, lengths = rows[seen], signs[seen], thumbnails[seen], lengths[seen]
    step = max(1, _PAIRS // max(len(rows), 1))
    found: list[tuple[int, int]] = []
    crowded = np.zeros(len(rows), dtype=bool)
    for start in range(0, len(rows), step):
        alike = signs[start : start + step] @ signs.T >= signs.shape[1] - 2 * _DISTANCE
        some = np.flatnonzero(alike.sum(1) > 1)
        likeness = thumbnails[start + some] @ thumbnails.T / lengths
        near = alike[some] & (likeness >= _LIKENESS * lengths[start + some, None])
        crowded[start + some] = near.sum(1) > _MOST
        kept = ~crowded[start + some]
        first, second = np.nonzero(near[kept])
        pairs = np.stack([start + some[kept][first], second], 1)
        found += [(a, b) for a, b in pairs.tolist() if a < b]
    return ((int(rows[a]), int(rows[b])) for a, b in found if not crowded[b])


def _looks(images: Tensor, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every image 64 signs, whether it gets brighter to the right, and a thumbnail of 16 × 16 greys about 0."""
    signs, thumbnails = [], []
    for start in range(0, len(rows), _CHUNK):
        grey = images[rows[start : start + _CHUNK]].cpu().numpy().sum(1, dtype=np.uint16)
        means = _means(grey, 8, 9)
        signs.append(np.where(means[:, :, 1:] > means[:, :, :-1] + _SCALE, 1, -1).reshape(len(grey), -1))
        greys = (_means(grey, 16, 16) // _SCALE).reshape(len(grey), -1)
        thumbnails.append(greys - greys.sum(1, keepdims=True) // greys.shape[1])
    return np.concatenate(signs).astype(np.float32), np.concatenate(thumbnails).astype(np.float32)


_SCALE = 1000  # of one grey level in whole numbers


def _means(grey: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Mean greys of the cells of a grid, times _SCALE; `grey` is the sum of three channels."""
    (_, height, width), sums = grey.shape, grey
    areas = np.ones((1, 1), dtype=np.int64)
    for axis, (size, parts) in enumerate([(height, rows), (width, columns)], start=1):
        edges = np.arange(parts + 1) * size // parts
        sums = np.add.reduceat(sums, edges[:-1], axis=axis, dtype=np.int64)
        areas = areas * (np.diff(edges)[:, None] if axis == 1 else np.diff(edges))
    return sums * _SCALE // (3 * areas)
