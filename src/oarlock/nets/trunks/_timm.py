"""What the families of timm's networks share: sketches without weights, timm's weights or a file's, other sizes.

A network that depends on its input size has tensors for its own (positions, for example), from which timm computes
those for another. What is computed is never hashed: the published tensors and the size say what it is.
"""

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import timm
import torch
from torch import Tensor, nn

from oarlock.data.images import Preprocessing
from oarlock.errors import OarlockError
from oarlock.nets.trunks._base import LOCAL, Card, Trunk, imagenet_classes, load_weights, read_weights
from oarlock.nets.trunks._listing import Listing, seen_by
from oarlock.schema import one_of

PLAIN = re.compile(r"\w+(\.\w+)?", re.ASCII)  # a network of timm's, and which of its weights


def create(name: str, pretrained: bool = False) -> Any:
    """Return timm's network under a name, without a classifier. Names that have timm look elsewhere, on a hub or in a
    folder, are none of its networks: a name may stand in a file that somebody else wrote."""
    if not (PLAIN.fullmatch(name) and timm.is_model(name)):
        raise OarlockError(f"timm has no network {name!r}: `oarlock trunks` lists names")
    return timm.create_model(name, pretrained=pretrained, num_classes=0)


@cache
def sketch(name: str) -> Any:
    """Return timm's network with shapes only: no memory, no download, and a tenth of a second."""
    try:
        with torch.device("meta"):
            return create(name).eval()
    except (RuntimeError, NotImplementedError):  # some compute with values while they are made
        return create(name).eval()


def timm_card(model: Any, name: str, source: str, seen: tuple[Any, Any] = (None, None), family: str = "vit") -> Card:
    """Return the card of a timm model under timm's own name."""
    facts = model.pretrained_cfg
    size = facts["input_size"][-1]
    rule = Preprocessing(size, _resize(facts, size), tuple(facts["mean"]), tuple(facts["std"]))
    return Card(name, rule, None, source, *seen, family=family)


def unsupported(name: str, problem: str) -> OarlockError:
    """Return the error for a network that cannot be a trunk."""
    return OarlockError(f"the trunk {name!r} is not supported: {problem}; `oarlock trunks` lists what is")


class TimmTrunk(Trunk):
    """Load a network by timm's name and build it again from a card that has only that name."""

    examples: ClassVar[Mapping[str, str]] = {}  # names to list, and what we recommend them for
    model: Any
    # The card it was loaded with, and what it then had where tensors were computed for another size: so a trunk that
    # is resized twice is as one resized once.
    origin: tuple[Card, dict[str, Tensor]]

    def __init__(self, model: Any, card: Card) -> None:
        super().__init__(model, card)
        self.origin = card, {}

    @classmethod
    def problem(cls, model: Any) -> str | None:
        """Return why the family cannot walk this network; None when it can, as one that takes all networks."""
        return None

    @classmethod
    def accepts(cls, name: str) -> bool:
        return name in cls.names or (timm.is_model(name) and cls.problem(sketch(name)) is None)

    @classmethod
    def plan(cls, name: str) -> Trunk:
        """Return a trunk without weights, of which shapes and sizes can be asked."""
        model = sketch(name)
        with next(model.parameters()).device:
            return cls(model, timm_card(model, name, source="none", family=cls.name))

    @classmethod
    def listed(cls) -> list[Listing]:
        """Return the examples that this version of timm has."""
        plans = {name: cls.plan(name) for name in cls.examples if timm.is_model(name)}
        return [
            Listing.of(
                plan, seen_by(sketch(name).pretrained_cfg.get("tag") or ""), "timm's download", cls.examples[name]
            )
            for name, plan in plans.items()
        ]

    @classmethod
    def load(cls, name: str, weights: Path | None, size: int | None) -> Trunk:
        """Return a trunk with a local file's weights or with those that timm downloads; a name or a size that does
        not do is refused before."""
        plan = cls.plan(name)
        if size is not None:
            plan.resized(size)
        trunk = cls._downloaded(name) if weights is None else cls._from_file(name, weights)
        return trunk if size is None else trunk.resized(size)

    @classmethod
    def check_architecture(cls, architecture: Any, place: str) -> None:
        one_of(None)(architecture, place)  # timm knows the name

    @classmethod
    def network(cls, card: Card) -> Any:
        model = create(card.name)
        if card.preprocessing.size != _own_size(model):
            cls.fit(model, card.preprocessing.size)
        return model

    @classmethod
    def fit(cls, model: Any, size: int) -> None:
        """Make a network that depends on the input size fit another, in place; others need nothing."""
        if hasattr(model, "set_input_size"):
            model.set_input_size(img_size=(size, size))

    def published(self) -> dict[str, Tensor]:
        """Return the tensors whose shapes are those at the network's own size: the others were computed."""
        if self.card.architecture or self.size == _own_size(self.model):
            return self.tensors()
        shapes = {name: tensor.shape for name, tensor in sketch(self.card.name).state_dict().items()}
        return {name: tensor for name, tensor in self.tensors().items() if tensor.shape == shapes[name]}

    def _at(self, size: int) -> Trunk:
        card = self._card_at(size)
        if not hasattr(self.model, "set_input_size"):
            return type(self)(self.model, card)
        # A second network that takes over all tensors, and computes of them only what depends on the size.
        first, replaced = self.origin
        with self.mean.device:
            model = self.network(first)
            model.load_state_dict(self.tensors() | replaced, assign=True)
            before = model.state_dict()
            self.fit(model, size)
            trunk = type(self)(model, card)
        computed = [name for name, tensor in trunk.tensors().items() if tensor.shape != before[name].shape]
        trunk.origin = first, {name: before[name] for name in computed}
        return trunk

    def _card_at(self, size: int) -> Card:
        return self.card.at(size, _resize(self.model.pretrained_cfg, size))

    @classmethod
    def _from_file(cls, name: str, weights: Path) -> Trunk:
        model = create(name)
        load_weights(model, read_weights(weights), str(weights))
        return cls(model, timm_card(model, name, f"{LOCAL}{weights.name}", family=cls.name))

    @classmethod
    def _downloaded(cls, name: str) -> Trunk:
        try:
            model = create(name, pretrained=True)
        except (OSError, RuntimeError) as problem:
            raise OarlockError(
                f"timm could not provide the weights of {name!r} ({_first_line(problem)}); "
                "check the connection, or pass a local file with weights="
            ) from problem
        tag = model.pretrained_cfg.get("tag") or ""  # which of timm's weights
        seen = imagenet_classes() if only_imagenet(tag) else (None, None)
        source = f"timm {name.partition('.')[0]} {tag}".strip()
        return cls(model, timm_card(model, name, source, seen, cls.name))


def only_imagenet(tag: str) -> bool:
    """Return whether weights under one of timm's tags saw ImageNet-1k and nothing else.

    >>> [only_imagenet(tag) for tag in ("fb_in1k", "augreg_in21k_ft_in1k", "ns_jft_in1k", "lvd142m")]
    [True, False, False, False]
    """
    return tag.endswith("in1k") and not {"ft", "jft"} & set(tag.split("_"))  # tuned on it last, or with more images


def _own_size(model: Any) -> int:
    return model.pretrained_cfg["input_size"][-1]


def _resize(facts: dict[str, Any], size: int) -> int:
    return math.floor(size / facts["crop_pct"])


def _first_line(problem: Exception) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]


def one_image(model: nn.Module, size: int) -> Tensor:
    """Return an image on the network's device, to ask it for shapes."""
    parameter = next(model.parameters())
    return torch.zeros(1, 3, size, size, device=parameter.device, dtype=parameter.dtype)
