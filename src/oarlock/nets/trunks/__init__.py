"""Trunks by name, and the families they come in: one module each, found by its decorator."""

from pathlib import Path

from torch import Tensor

from oarlock.errors import OarlockError
from oarlock.nets.trunks._base import LOCAL, Card, SiteFunction, TaskNorms, Trunk
from oarlock.nets.trunks._listing import Listing
from oarlock.registry import Registry

__all__ = [
    "BUNDLED",
    "DEFAULT",
    "LOCAL",
    "VECTORS",
    "Card",
    "SiteFunction",
    "TaskNorms",
    "Trunk",
    "build_trunk",
    "families",
    "list_trunks",
    "load_trunk",
    "trunk_family",
]

BUNDLED = "vit_pico"  # which never saw what the small protocols are about
DEFAULT = "efficientnet_lite0"  # for photographs
VECTORS = "vectors"  # no network: what comes in are features

families: Registry[type[Trunk]] = Registry("trunk family", __name__)
trunk_family = families.register


def load_trunk(name: str = DEFAULT, weights: str | Path | None = None, size: int | None = None) -> Trunk:
    """Return a trunk by name: an EfficientNet-lite, the bundled one, any network of timm's that gives a feature
    vector, or what another family offers (`oarlock trunks`).

    `weights` is a local file (`.safetensors`, or a torch file with or without a `model` key); without it
    timm downloads its own, and those of EfficientNet-lites come from the package index. `size` is the side of the
    images it gets, in pixels; without it, the one its weights were trained at or that we chose.
    """
    path, known = None if weights is None else Path(weights), list(families.all().values())
    # First the family to which the name belongs, last the one that takes whatever no other knows better.
    for family in sorted(known, key=lambda family: (name not in family.names, family.takes_the_rest)):
        if family.accepts(name):
            return family.load(name, path, size)
    own = ", ".join(repr(own) for family in known for own in family.names)
    raise OarlockError(
        f"there is no trunk {name!r}: use one of {own}, or the name of a network in timm, such as "
        "'deit_small_patch16_224' (`oarlock trunks` lists more)"
    )


def list_trunks() -> list[Listing]:
    """Return what there is to say of trunks: first those that belong to a family by name, then examples of timm's."""
    listed = [(one.trunk not in family.names, one) for family in families.all().values() for one in family.listed()]
    return [one for _, one in sorted(listed, key=lambda pair: pair[0])]


def build_trunk(card: Card, tensors: dict[str, Tensor]) -> Trunk:
    """Return a trunk from its card and tensors; its architecture is in the card, or timm's under the card's name."""
    return families.find(card.family).build(card, tensors)
