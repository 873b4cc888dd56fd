"""Copies of one photograph are told from photographs that are only alike."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from oarlock.data import copies
from oarlock.data.copies import kept_together, same_pictures, united
from oarlock.data.folders import group_by_folder, group_by_prefix
from oarlock.data.images import prepare
from oarlock.data.pictures import Preprocessing
from oarlock.data.sources import open_source
from oarlock.errors import OarlockError

RULE = Preprocessing(size=96, resize=110, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def photo(seed: int, side: int = 300) -> Image.Image:
    """A scene with large and small structure."""
    coarse = np.random.default_rng(seed).integers(0, 200, (11, 14, 3)).astype("uint8")
    return Image.fromarray(coarse).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)


def saved(picture: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file)


COPIES = {
    "the same": lambda picture: picture.copy(),
    "saved again": lambda picture: saved(picture, 30),
    "half the size": lambda picture: picture.resize((picture.width // 2, picture.height // 2)),
    "brighter": lambda picture: ImageEnhance.Brightness(picture).enhance(1.2),
    "darker": lambda picture: ImageEnhance.Brightness(picture).enhance(0.7),
    "cut by a pixel": lambda picture: picture.crop((1, 1, picture.width - 1, picture.height - 1)),
}


def groups_of(pictures: list[Image.Image], labels: list[int] | None = None) -> list[int]:
    numbers = torch.zeros(len(pictures), dtype=torch.long) if labels is None else torch.tensor(labels)
    return same_pictures(prepare(pictures, RULE), numbers).tolist()


@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_is_found_and_other_photographs_are_not(kind: str) -> None:
    pictures = [photo(seed) for seed in range(12)]
    assert groups_of([*pictures, COPIES[kind](pictures[4])]) == [*range(12), 4]


def test_copies_are_found_across_classes_and_in_any_number_of_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [photo(seed) for seed in range(12)]
    pictures += [COPIES["brighter"](pictures[1]), COPIES["half the size"](pictures[1]), COPIES["darker"](pictures[7])]
    labels = [0] * 6 + [1] * 9
    expected = [*range(12), 1, 1, 7]
    assert groups_of(pictures, labels) == expected
    monkeypatch.setattr(copies, "_PAIRS", 20)  # one row at a time
    assert groups_of(pictures, labels) == expected


def test_pictures_of_a_camera_that_does_not_move_are_not_taken_for_copies() -> None:
    scene = photo(0)
    rng = np.random.default_rng(0)

    def with_a_part() -> Image.Image:
        picture = scene.copy()
        picture.paste(tuple(rng.integers(0, 255, 3).tolist()), (180, 140, 200, 160))
        return picture

    many = [with_a_part() for _ in range(30)]
    assert groups_of(many) == list(range(30))
    assert groups_of([*many[:6], many[0]]) == [*range(6), 0]  # pixel for pixel the same, whatever is near
    assert groups_of([*many[:4], *(photo(seed) for seed in range(1, 8))]) == [0, 0, 0, 0, *range(4, 11)]


def test_even_areas_are_not_like_each_other() -> None:
    grey = [Image.new("RGB", (300, 300), (level,) * 3) for level in (10, 90, 240)]
    assert groups_of([*grey, *map(photo, range(5))]) == list(range(8))


def test_of_small_images_only_identical_ones_are_told() -> None:
    small = Preprocessing(size=32, resize=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    pictures = [photo(seed) for seed in range(6)]
    images = prepare([*pictures, pictures[2], COPIES["brighter"](pictures[3])], small)
    assert same_pictures(images, torch.zeros(8, dtype=torch.long)).tolist() == [0, 1, 2, 3, 4, 5, 2, 7]


def test_the_bundled_sample_has_no_copies() -> None:
    images = torch.from_numpy(open_source("sample").train.images).permute(0, 3, 1, 2)
    labels = torch.zeros(len(images), dtype=torch.long)
    assert len(set(same_pictures(images, labels).tolist())) == len(images)


def test_groups_that_are_linked_are_one() -> None:
    assert united(np.arange(6), [(5, 4), (4, 1), (2, 3)]).tolist() == [0, 1, 2, 2, 1, 1]


def test_named_groups_join_copies() -> None:
    images = torch.randint(0, 255, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[5] = images[0]
    labels = torch.zeros(6, dtype=torch.long)
    assert kept_together(images, labels)[0].tolist() == [0, 1, 2, 3, 4, 0]
    groups, count = kept_together(images, labels, ["a", "b", "b", "c", "d", "e"])
    assert (groups.tolist(), count) == ([0, 1, 1, 3, 4, 0], 1)
    with pytest.raises(OarlockError, match="6 images but 2 groups"):
        kept_together(images, labels, ["a", "b"])


def test_file_names_and_folders_name_groups() -> None:
    apples = Path("shop/apple")
    prefixes = {"b_1.jpg": "b", "b_2.jpg": "b", "walk 3-04.png": "walk 3", "IMG.jpg": "IMG.jpg", "_1.png": "_1.png"}
    assert {name: group_by_prefix(apples / name, apples) for name in prefixes} == prefixes
    folders = {"a/1.jpg": "a", "a/b/2.jpg": "a/b", "3.jpg": "3.jpg"}
    assert {name: group_by_folder(apples / name, apples) for name in folders} == folders


def noise(count: int, side: int = 64) -> Tensor:
    return torch.randint(
        0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )


def test_noise_has_no_copies() -> None:
    assert same_pictures(noise(200), torch.zeros(200, dtype=torch.long)).tolist() == list(range(200))
