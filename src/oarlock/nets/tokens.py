"""Images as training sees them: tokens where the first adapter begins."""

from collections.abc import Callable

import torch
from torch import Tensor

from oarlock.caches import joined
from oarlock.nets.adapters import Adapters

CHUNK = 256  # images per pass outside training: part of what makes a result reproducible bit for bit


class Tokens:
    """What lies below the first adapter, by image: kept when whole stages lie there, else made again when asked."""

    def __init__(self, adapters: Adapters, images: Tensor) -> None:
        self.adapters, self.images = adapters, images
        self.kept: Tensor | None = None
        if adapters.frozen_stages and len(images):
            self.kept = joined((self._make(chunk) for chunk in images.split(CHUNK)), len(images))

    def __getitem__(self, rows: Tensor) -> Tensor:
        if self.kept is None:
            return self._make(self.images[rows])
        return self.kept[rows.to(self.kept.device)].to(self.device)  # from a file, where they are too many for RAM

    @property
    def device(self) -> torch.device:
        return self.adapters.trunk.mean.device

    @torch.no_grad()
    def through(self, network: Callable[[Tensor], Tensor]) -> Tensor:
        """What a network says to every image. Images are not augmented, so a teacher is asked once, not per epoch."""
        return torch.cat([network(self[rows]) for rows in torch.arange(len(self.images)).split(CHUNK)])

    @torch.no_grad()
    def _make(self, images: Tensor) -> Tensor:
        return self.adapters.below(images.to(self.device))
