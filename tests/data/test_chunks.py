"""Images prepared a chunk at a time, so that not all of them are in memory."""

import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from oarlock.data.images import Preprocessing, prepare, prepare_in_chunks
from oarlock.errors import OarlockError

HALF = (0.5, 0.5, 0.5)
RULE = Preprocessing(size=8, resize=8, mean=HALF, std=HALF)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class Pictures(Dataset):
    def __init__(self, pictures: list[Image.Image]) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Image.Image:
        return self.pictures[index]


def test_chunks_are_the_whole_in_pieces_whatever_the_images_are(tmp_path: Path) -> None:
    pictures = [Image.fromarray(x) for x in noise(150, 9, 12, 3)]
    for number, picture in enumerate(pictures[:5]):
        picture.save(tmp_path / f"{number}.png")
    for images in (noise(150, 8, 8, 3), noise(150, 9, 12), pictures, Pictures(pictures), tmp_path):
        whole = prepare(images, RULE)
        for size in (1, 64, 100, 1000):
            chunks = list(prepare_in_chunks(images, RULE, size))
            assert torch.equal(torch.cat(chunks), whole)
            assert all(len(chunk) == size for chunk in chunks[:-1]) and len(chunks[-1]) <= size


def test_a_chunk_is_read_when_it_is_asked_for_and_then_forgotten() -> None:
    class Tracked(Dataset):
        alive: ClassVar[list[weakref.ref]] = []
        most = 0

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> np.ndarray:
            image = noise(30, 40, 3, seed=index)
            self.alive.append(weakref.ref(image))
            self.most = max(self.most, sum(reference() is not None for reference in self.alive))
            return image

    dataset = Tracked()
    chunks = prepare_in_chunks(dataset, RULE, 5)
    assert len(dataset.alive) == 0
    next(chunks)
    assert len(dataset.alive) == 5
    assert len(list(chunks)) == 3
    assert dataset.most <= 2


def test_what_is_wrong_is_said_before_the_first_chunk(tmp_path: Path) -> None:
    for nothing in ([], tmp_path, tmp_path / "gone", 3):
        with pytest.raises(OarlockError):
            prepare_in_chunks(nothing, RULE, 5)
