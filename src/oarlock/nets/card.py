"""What must be known about a trunk's weights besides the weights."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from timm.data import ImageNetInfo

from oarlock.data.images import Preprocessing

LOCAL = "local file "  # how the source of weights begins that a user gave


@dataclass(frozen=True)
class Card:
    """Where a trunk comes from, how it wants its images, and what it was pre-trained on."""

    name: str
    preprocessing: Preprocessing
    architecture: dict[str, Any] | None = None  # what the network is built from; None: timm knows the name
    source: str = ""
    classes: tuple[str, ...] | None = None  # what it was pre-trained on; None: not known
    wnids: tuple[str, ...] | None = None  # the same as WordNet ids, where they are known

    def overlap(self, names: list[str], wnids: Mapping[str, str] | None = None) -> str:
        """Whether pre-training saw one of these classes: "yes", "no" or "unknown" (names without letters).

        By name, or by WordNet id where the card has them and `wnids` has one for every name.

        >>> rule = Preprocessing(32, 32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        >>> Card("t", rule, classes=("sea slug, nudibranch",)).overlap(["slug"])
        'yes'
        """
        if self.wnids is not None and wnids and all(name in wnids for name in names):
            return "yes" if any(wnids[name] in self.wnids for name in names) else "no"
        if self.classes is None or not all(any(c.isalpha() for c in name) for name in names):
            return "unknown"
        seen = {word for words in self.classes for word in _nouns(words)}
        return "yes" if any(seen.intersection(_nouns(name)) for name in names) else "no"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, card: dict[str, Any]) -> "Card":
        rule = card["preprocessing"]
        rule = Preprocessing(rule["size"], rule["resize"], tuple(rule["mean"]), tuple(rule["std"]))
        classes, wnids = (None if (found := card.get(key)) is None else tuple(found) for key in ("classes", "wnids"))
        return cls(card["name"], rule, card["architecture"], card["source"], classes, wnids)


def timm_card(model: Any, name: str, source: str, *seen: tuple[str, ...]) -> Card:
    """The card of a timm model under timm's own name."""
    facts = model.pretrained_cfg
    size = facts["input_size"][-1]
    rule = Preprocessing(size, math.floor(size / facts["crop_pct"]), tuple(facts["mean"]), tuple(facts["std"]))
    return Card(name, rule, None, source, *seen)


def imagenet_classes() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words and WordNet ids of the 1000 classes."""
    seen = ImageNetInfo("imagenet-1k")
    return tuple(seen.label_descriptions()), tuple(seen.label_names())


def _nouns(text: str) -> Iterator[str]:
    """Every synonym, and the noun at its end: a sea slug is a slug and not a sea."""
    for synonym in text.lower().replace("_", " ").split(","):
        if synonym.strip():
            yield synonym.strip()
            yield synonym.split()[-1]
