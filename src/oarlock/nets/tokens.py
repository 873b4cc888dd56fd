"""Images as training sees them: tokens where the first adapter begins."""

from collections.abc import Callable

import torch
from torch import Tensor

from oarlock.caches import joined, joined_parts
from oarlock.nets.adapters import Adapters

CHUNK = 256  # images per pass outside training: part of what makes a result reproducible bit for bit


class Tokens:
    """What lies below the first adapter, by image: kept when whole stages lie there, else made again when asked. The
    bare trunk's features [images, views, features] are seen on the way, and kept with them where they are wanted."""

    def __init__(self, adapters: Adapters, images: Tensor, bare: bool = False) -> None:
        self.adapters, self.images = adapters, images
        self.kept: Tensor | None = None
        self.bare: Tensor | None = None
        if adapters.frozen_stages and len(images):
            chunks = images.split(CHUNK)
            if bare:
                self.kept, self.bare = joined_parts(map(self._make_with_bare, chunks), len(images))
            else:
                self.kept = joined(map(self._make, chunks), len(images))

    def __getitem__(self, rows: Tensor) -> Tensor:
        if self.kept is None:
            return self._make(self.images[rows.to(self.images.device)])
        return self.kept[rows.to(self.kept.device)].to(self.device)  # from a file, where they are too many for RAM

    @property
    def device(self) -> torch.device:
        return self.adapters.trunk.mean.device

    @torch.no_grad()
    def through(self, network: Callable[[Tensor], Tensor], rows: Tensor | None = None) -> Tensor:
        """What a network says to every image, or to some. Images are not augmented, so a teacher is asked once, not
        per epoch."""
        rows = torch.arange(len(self.images)) if rows is None else rows
        return torch.cat([network(self[some]) for some in rows.split(CHUNK)])

    @torch.no_grad()
    def _make(self, images: Tensor) -> Tensor:
        return self.adapters.below(images.to(self.device))

    @torch.no_grad()
    def _make_with_bare(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.adapters.below_and_bare(images.to(self.device))
