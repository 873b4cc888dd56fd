"""Other looks at the same images: cut otherwise, mirrored, in another light."""

import torch
import torch.nn.functional as F
from torch import Tensor

AREA = 0.5  # of an image that a look shows at least
STRETCH = 4 / 3  # of its width against its height at most, either way
LIGHT = 0.3  # brightness, contrast and saturation change by up to this share

PART = 32  # images at a time: as numbers with a point they take four times the room, and several copies of it
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)


def look_again(images: Tensor, random: torch.Generator) -> Tensor:
    """Return another look at every one of some square uint8 images [B, 3, S, S], of the same size.

    >>> photos = torch.full((2, 3, 8, 8), 100, dtype=torch.uint8)
    >>> seen = look_again(photos, torch.Generator().manual_seed(0))
    >>> seen.shape, bool((seen[0] == seen[0, 0, 0, 0]).all())
    (torch.Size([2, 3, 8, 8]), True)
    """
    cuts = torch.rand(5, len(images), generator=random).to(images.device).split(PART, 1)
    lights = torch.rand(3, len(images), 1, 1, 1, generator=random).to(images.device).split(PART, 1)
    seen = torch.empty_like(images)
    for part, some, cut, light in zip(seen.split(PART), images.split(PART), cuts, lights, strict=True):
        part.copy_(_in_another_light(_cut(some.float(), cut), light).round().clamp(0, 255))
    return seen


def _cut(images: Tensor, draws: Tensor) -> Tensor:
    """A part of each, enlarged to the whole, and mirrored half of the time."""
    side = (AREA + (1 - AREA) * draws[0]).sqrt()
    stretch = STRETCH ** (draws[1] - 0.5)  # the square root of what width has over height
    width, height = (side * stretch).clamp_max(1), (side / stretch).clamp_max(1)
    mirror = (draws[4] < 0.5).float() * 2 - 1
    place = torch.zeros(len(images), 2, 3, device=images.device)
    place[:, 0, 0], place[:, 1, 1] = width * mirror, height
    place[:, 0, 2], place[:, 1, 2] = (1 - width) * (2 * draws[2] - 1), (1 - height) * (2 * draws[3] - 1)
    grid = F.affine_grid(place, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _in_another_light(images: Tensor, draws: Tensor) -> Tensor:
    """Brighter or darker, with more or less contrast and colour."""
    brightness, contrast, saturation = (1 + LIGHT * (2 * draws - 1)).unbind(0)
    images = images * brightness
    grey = (images * images.new_tensor(LUMINANCE).view(3, 1, 1)).sum(1, keepdim=True)
    images = torch.lerp(grey, images, saturation)
    return torch.lerp(grey.mean((2, 3), keepdim=True), images, contrast)
