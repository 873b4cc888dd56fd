"""Other looks at images: of the same size, drawn by a generator, of all that an image has."""

import torch

from oarlock.data.augmentation import AREA, LIGHT, look_again


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_draws_give_the_same_looks_and_others_others() -> None:
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=generator())
    seen = look_again(images, generator(1))
    assert seen.shape == images.shape and seen.dtype == torch.uint8
    assert torch.equal(seen, look_again(images, generator(1)))
    assert not torch.equal(seen, look_again(images, generator(2)))


def test_a_look_shows_a_part_of_its_own_image_and_mirrors_half_of_them() -> None:
    slope = torch.linspace(0, 200, 32).round().to(torch.uint8).expand(400, 3, 32, 32)
    seen = look_again(slope, generator()).float()
    rising = (seen[:, 0, :, -1] > seen[:, 0, :, 0]).all(1)
    assert 150 < int(rising.sum()) < 250
    assert bool(((seen[:, 0, :, -1] < seen[:, 0, :, 0]).all(1) | rising).all())
    shown = (seen[:, 0, 0, -1] - seen[:, 0, 0, 0]).abs() / 200  # of the width, times contrast and brightness
    assert shown.min() > 0.86 * AREA**0.5 * (1 - LIGHT) ** 2 and shown.max() < (1 + LIGHT) ** 2


def test_light_changes_by_no_more_than_it_says() -> None:
    seen = look_again(torch.full((200, 3, 8, 8), 100, dtype=torch.uint8), generator()).float()
    assert seen.min() >= 100 * (1 - LIGHT) - 1 and seen.max() <= 100 * (1 + LIGHT) + 1
    assert seen.std() > 5
