"""Trunks of any other kind that timm has: what happens inside is not looked at, and one adapter stands on the
features."""

from collections.abc import Mapping
from typing import Any, ClassVar

import timm
import torch
from torch import Tensor

from oarlock.errors import OarlockError
from oarlock.nets.trunks import trunk_family
from oarlock.nets.trunks._base import Card, Trunk
from oarlock.nets.trunks._flat import FlatTrunk
from oarlock.nets.trunks._sizes import Sizes
from oarlock.nets.trunks._timm import TimmTrunk, create, one_image, unsupported

STEP = 32  # of sizes, for networks that take any


@trunk_family("features")
class Features(FlatTrunk, TimmTrunk):
    """Wrap any of timm's networks that gives a feature vector, frozen. Activations are the features, [B, D].

    >>> trunk = Features.plan("mixer_s32_224")
    >>> trunk.sites(0), len(trunk.stages)
    ([512], 0)
    """

    takes_the_rest = True
    examples: ClassVar[Mapping[str, str]] = {"vit_small_patch16_dinov3": "", "beit_base_patch16_224": ""}

    def __init__(self, model: Any, card: Card) -> None:
        dim = feature_dim(model.eval(), card.preprocessing.size)
        if dim is None:
            raise unsupported(card.name, f"a {type(model).__name__} gives no feature vector")
        super().__init__(model, card)
        self.dim = self.bare_dim = dim

    @classmethod
    def accepts(cls, name: str) -> bool:
        return timm.is_model(name)

    @property
    def sizes(self) -> Sizes:
        """Return multiples of the patch size, or of 32, where the network or timm for it takes a size that is not its
        own; which of them, only trying tells."""
        step = _step(self.model)
        return Sizes(self.size, step, 2 * step) if self._takes(self.size + step) else Sizes(self.size)

    def _takes(self, size: int) -> bool:
        try:
            with torch.device("meta"):  # shapes are enough
                model = create(self.card.name).eval()
                self.fit(model, size)
        except Exception:  # networks raise all kinds of things about sizes
            return False
        return feature_dim(model, size) is not None

    def _at(self, size: int) -> Trunk:
        if not self._takes(size):
            raise OarlockError(f"size={size}: images of the trunk {self.card.name!r} cannot have so many pixels")
        return super()._at(size)

    def embed(self, images: Tensor) -> Tensor:
        return self.model(self.normalised(images))

    def worth_keeping(self, stages: int) -> bool:
        return True  # the whole network lies below


@torch.no_grad()
def feature_dim(model: Any, size: int) -> int | None:
    """Return how many values a network gives for an image of this size; None if it gives no vector."""
    try:
        features = model(one_image(model, size))
    except Exception:  # networks raise all kinds of things about sizes
        return None
    return features.shape[1] if isinstance(features, Tensor) and features.ndim == 2 else None


def _step(model: Any) -> int:
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", STEP)
    return patch if isinstance(patch, int) else patch[0]
