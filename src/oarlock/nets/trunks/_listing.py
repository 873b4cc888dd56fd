"""What `oarlock trunks` says of a trunk, without its weights."""

from typing import Any, NamedTuple

# What the parts of timm's tags stand for that name data; a tag has them in the order of training.
DATA = {
    "in1k": "ImageNet-1k",
    "in12k": "ImageNet-12k",
    "in21k": "ImageNet-21k",
    "in22k": "ImageNet-22k",
    "jft": "JFT",
    "laion2b": "LAION-2B",
    "lvd142m": "LVD-142M",
    "lvd1689m": "LVD-1689M",
    "openai": "OpenAI's pairs of image and text",
    "webli": "WebLI",
}


class Listing(NamedTuple):
    """Hold one line of the list; what a family does not say is None."""

    trunk: str
    family: str
    what: str
    adapters: str | None = None  # where they stand
    millions: float | None = None  # of parameters
    pixels: int | None = None
    sizes: str | None = None  # other pixels that would do
    features: int | None = None
    saw: str | None = None  # in pre-training
    get: str | None = None  # where the weights are
    recommended: str | None = None  # on what we would choose it

    @classmethod
    def of(cls, trunk: Any, saw: str, get: str, recommended: str | None = None) -> "Listing":
        """Return the line of a trunk, which may be on the meta device."""
        stages = f", {len(trunk.stages)} stages" if len(trunk.stages) else ""
        return cls(
            trunk.card.name,
            trunk.name,
            f"{type(trunk.model).__name__}{stages}",
            trunk.adapters,
            round(sum(parameter.numel() for parameter in trunk.model.parameters()) / 1e6, 1),
            trunk.size,
            str(trunk.sizes),
            trunk.dim,
            saw,
            get,
            recommended or None,
        )


def seen_by(tag: str) -> str:
    """Return what weights under one of timm's tags have seen, in order.

    >>> seen_by("in22k_ft_in22k_in1k"), seen_by("lvd142m"), seen_by("somewhere")
    ('ImageNet-22k, then ImageNet-1k', 'LVD-142M', 'somewhere')
    """
    return ", then ".join(DATA[part] for part in dict.fromkeys(tag.split("_")) if part in DATA) or tag
