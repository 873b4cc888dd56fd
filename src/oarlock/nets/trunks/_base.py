"""What a trunk is, of whatever family: a pre-trained network, untouched, seen as embed → stages → pool; its card, and
weights from files.

Adapters stand at *sites* above the frozen stages. The trunk walks past them and asks from outside what is to be done
there, so a pass of the bare trunk needs no switch and the trunk's tensors belong to no method.
"""

import argparse
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from timm.data import ImageNetInfo
from torch import Tensor, nn

from oarlock.data.images import Label, Preprocessing, prepare_in_chunks, read_labelled, short_side
from oarlock.errors import OarlockError
from oarlock.files import fingerprint
from oarlock.layout import read_data, read_header
from oarlock.nets.trunks._listing import Listing
from oarlock.nets.trunks._sizes import LARGEST, Sizes
from oarlock.schema import integer, list_of, maybe, number, plain, record, text, understood

LOCAL = "local file "  # how the source of weights begins that a user gave


RULE = record(
    {
        "size": integer(1, LARGEST),
        "resize": integer(1, 4 * LARGEST),
        "mean": list_of(number(-100, 100), 3, 3),
        "std": list_of(number(1e-3, 100), 3, 3),
    }
)
CARD = record(
    {"name": text(200), "preprocessing": RULE, "architecture": plain, "source": text(), "family": text(100)},
    {"classes": maybe(list_of(text())), "wnids": maybe(list_of(text(100)))},
)


@dataclass(frozen=True)
class Card:
    """Say where a trunk comes from, how it wants its images, and what it was pre-trained on."""

    name: str
    preprocessing: Preprocessing
    architecture: dict[str, Any] | None = None  # what the network is built from; None: timm knows the name
    source: str = ""
    classes: tuple[str, ...] | None = None  # what it was pre-trained on; None: not known
    wnids: tuple[str, ...] | None = None  # the same as WordNet ids, where they are known
    family: str = "vit"  # who builds the network

    def overlap(self, names: list[str], wnids: Mapping[str, str] | None = None) -> str:
        """Return whether pre-training saw one of these classes: "yes", "no" or "unknown" (names without letters).

        Compare by name, or by WordNet id where the card has them and `wnids` has one for every name.

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

    def at(self, size: int, resize: int | None = None) -> "Card":
        """Return the card of the same trunk for images of another size, of which as much is cropped as before.

        >>> rule = Preprocessing(32, 40, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        >>> Card("t", rule).at(64).preprocessing.resize
        80
        """
        rule = self.preprocessing
        resize = rule.resize * size // rule.size if resize is None else resize
        return replace(self, preprocessing=replace(rule, size=size, resize=resize))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, card: Any) -> "Card":
        """Return the card that `to_json` gave; refuse what cannot be one."""
        card = CARD(card, "the card of the trunk")
        rule = card["preprocessing"]
        rule = Preprocessing(rule["size"], rule["resize"], tuple(rule["mean"]), tuple(rule["std"]))
        classes, wnids = (None if (found := card.get(key)) is None else tuple(found) for key in ("classes", "wnids"))
        return cls(card["name"], rule, card["architecture"], card["source"], classes, wnids, card["family"])


def imagenet_classes() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words and WordNet ids of ImageNet's 1000 classes."""
    seen = ImageNetInfo("imagenet-1k")
    return tuple(seen.label_descriptions()), tuple(seen.label_names())


def _nouns(text: str) -> Iterator[str]:
    """Every synonym, and the noun at its end: a sea slug is a slug and not a sea."""
    for synonym in text.lower().replace("_", " ").split(","):
        if synonym.strip():
            yield synonym.strip()
            yield synonym.split()[-1]


SiteFunction = Callable[[int, Tensor], Tensor]  # what is done at the n-th of several places


class TaskNorms(nn.Module, ABC):
    """Hold one task's scale and shift of values at every place that has them: a `SiteFunction`."""

    weight: Any  # by place
    bias: Any

    @abstractmethod
    def normalise(self, x: Tensor) -> Tensor:
        """Return values as they are before scale and shift, the same for all tasks."""

    @abstractmethod
    def forward(self, index: int, x: Tensor) -> Tensor: ...


class Trunk(nn.Module, ABC):
    """Hold a frozen network and its card. *Activations* are its values between stages, [B, …, D]: places, and last
    what stands at each. A subclass is a family of trunks: it says what it can load, and builds what a card
    describes."""

    name: ClassVar[str]  # of the family
    names: ClassVar[tuple[str, ...]] = ()  # of trunks that no other family has
    takes_the_rest: ClassVar[bool] = False  # whether other families are asked before
    adapters: ClassVar[str] = ""  # where they stand, for the list
    pictures: ClassVar[bool] = True  # what it takes; otherwise features, and nothing is known about how they look
    dim: int  # of its features
    stages: Sequence[Any]
    bare_dim: int  # how many values of a bare pass tell images apart
    features_row: int = 0  # which row of a bare pass holds the features

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__()
        self.card = card
        self.model = model.eval().requires_grad_(False)
        rule = card.preprocessing
        self.register_buffer("mean", torch.tensor(rule.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(rule.std).view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def train(self, mode: bool = True) -> "Trunk":
        """Keep the trunk frozen: batch norms and dropout never enter training mode."""
        return super().train(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Trunk":
        return self  # never written to, so copies of a method share it

    def normalised(self, images: Tensor) -> Tensor:
        return (images.to(self.mean.dtype) / 255 - self.mean) / self.std

    @property
    def size(self) -> int:
        """Return how many pixels its images have along a side."""
        return self.card.preprocessing.size

    @property
    def bare_rows(self) -> int:
        """Return how many rows of D hold the `bare_dim` values."""
        return math.ceil(self.bare_dim / self.dim)

    # -- what goes in ----------------------------------------------------------------------------------------

    @property
    def rule(self) -> Preprocessing:
        """Return how pictures are prepared; a trunk that takes none refuses."""
        return self.card.preprocessing

    def blank(self, count: int) -> Tensor:
        """Return so many images of zeros, as the trunk takes them."""
        return torch.zeros(count, 3, self.size, self.size, dtype=torch.uint8)

    def read_labelled(self, images: Any, labels: Any) -> tuple[Tensor, list[Label]]:
        """Return images as the trunk takes them, and a label for each."""
        return read_labelled(images, labels, self.rule)

    def read_in_chunks(self, images: Any, size: int) -> Iterator[Tensor]:
        """Return images as the trunk takes them, in pieces of so many, each made when it is asked for."""
        return prepare_in_chunks(images, self.rule, size)

    def suited_to(self, images: Any) -> "Trunk":
        """Return the same network for the input size that suits these images."""
        return self.resized(self.size_for(short_side(images)))

    # -- passes of the bare trunk ----------------------------------------------------------------------------

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Return the activations of uint8 images [B, 3, S, S] before the first stage."""

    @abstractmethod
    def below(self, images: Tensor, stages: int) -> Tensor:
        """Return the activations where adapters begin that leave out the first `stages` stages."""

    @abstractmethod
    def below_and_bare(self, images: Tensor, stages: int) -> tuple[Tensor, Tensor]:
        """Return from one pass the activations that `below` gives, and `bare_dim` values by which the bare trunk sees
        the images, in rows like features [B, bare_rows, D]; what is left of the last row is zero."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Return the bare trunk's features [B, D]."""

    # -- what adapters need ----------------------------------------------------------------------------------

    @abstractmethod
    def sites(self, stages: int) -> list[int]:
        """Return how many values each adapter gets that has a place above the first `stages` stages."""

    @abstractmethod
    def new_norms(self, stages: int) -> TaskNorms:
        """Return a task's own scales and shifts above these stages, which begin by changing nothing."""

    @abstractmethod
    def adapted(self, activations: Tensor, stages: int, adapt: SiteFunction, norms: SiteFunction | None) -> Tensor:
        """Return features [B, D] from the activations `below` gave, with something done at every site and a task's
        norms; with None for these the trunk's own."""

    def worth_keeping(self, stages: int) -> bool:
        """Return whether what `below` gives costs enough to be kept while a task is learned: whole stages do."""
        return stages > 0

    # -- other input sizes -----------------------------------------------------------------------------------

    @property
    def sizes(self) -> Sizes:
        """Return which input sizes the network can take; a family that has more than one says so."""
        return Sizes(self.size)

    def size_for(self, pixels: int) -> int:
        """Return the input size that suits images of so many pixels along their short side: its own, unless a family
        says when another pays."""
        return self.size

    def resized(self, size: int) -> "Trunk":
        """Return the same network for images of another size. Tensors that do not depend on the size are shared."""
        self.sizes.check(self.card.name, size)
        return self if size == self.size else self._at(size).to(self.mean.device)

    def _at(self, size: int) -> "Trunk":
        """For a size that is allowed."""
        return type(self)(self.model, self.card.at(size))

    # -- families and files ----------------------------------------------------------------------------------

    @classmethod
    def listed(cls) -> list[Listing]:
        """Return what there is to say of trunks by their names, or of examples where there are too many; nothing is
        loaded for it."""
        return [
            Listing(name, cls.name, " ".join((cls.__doc__ or "").partition("\n\n")[0].split())) for name in cls.names
        ]

    @classmethod
    def accepts(cls, name: str) -> bool:
        """Tell whether the family would try to load a trunk of this name."""
        return name in cls.names

    @classmethod
    @abstractmethod
    def load(cls, name: str, weights: Path | None, size: int | None) -> "Trunk":
        """Return a trunk by name, with the weights of a local file or those that it comes with, for images of `size`
        pixels; with None, of the size that its card has."""

    @classmethod
    @abstractmethod
    def network(cls, card: Card) -> nn.Module:
        """Return the network that a card describes, with no weights yet."""

    @classmethod
    def check_architecture(cls, architecture: Any, place: str) -> None:
        """Refuse what a network of the family cannot be built from: a card may stand in anybody's file."""
        plain(architecture, place)

    @classmethod
    def sketch(cls, card: Card) -> "Trunk":
        """Return the trunk that a card describes with shapes only, for which no memory is needed; refuse a card that
        is none of the family's. One that could be anybody's has to see an image first, which takes longer than all
        the rest of loading a model."""
        cls.check_architecture(card.architecture, f"the architecture of the trunk {card.name!r}")
        with understood(f"the card of the trunk {card.name!r}"), torch.device("meta"):
            trunk = cls(cls.network(card), card)
            if not cls.is_ours(card):
                trunk(trunk.blank(1))
        return trunk

    @classmethod
    def is_ours(cls, card: Card) -> bool:
        """Tell whether a card is of a network that the family itself brings, for images of a size that it takes."""
        return False

    @classmethod
    def build(cls, card: Card, tensors: dict[str, Tensor]) -> "Trunk":
        """Return a trunk from its card and tensors."""
        model = cls.network(card)
        load_weights(model, tensors, card.name)
        return cls(model, card)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    def published(self) -> dict[str, Tensor]:
        """Return the tensors that are as they were published: not those computed for another input size, which
        another processor may round differently."""
        return self.tensors()

    @cached_property
    def sha256(self) -> str:
        return fingerprint(self.published())

    @property
    def size_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())


CLASSIFIERS = ("head", "classifier")  # how names of them begin, beside those that timm has for a network


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a local weights file; no code in it is run."""
    try:
        if path.suffix == ".safetensors":
            with open(path, "rb") as file:
                return read_data(file, read_header(file))
        with torch.serialization.safe_globals([argparse.Namespace]):  # DeiT's own scripts put their arguments in
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as problem:
        raise OarlockError(f"there is no weights file {path}") from problem
    except Exception as problem:  # torch raises many kinds, and advises to load unsafe files anyway
        raise OarlockError(
            f"{path} cannot be read as weights; expected .safetensors or a torch file that holds tensors only"
        ) from problem
    for key in ("model", "state_dict"):
        content = content.get(key, content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise OarlockError(f"{path} holds no dictionary of tensors, plain or under 'model' or 'state_dict'")
    return content


def load_weights(model: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    """Put tensors into a model; all that it has must be there, and no others but a classifier's."""
    wanted = model.state_dict()
    found = {name: value.to(wanted[name].dtype) for name, value in fitting(model, tensors, origin).items()}
    model.load_state_dict(found)


def fitting(model: nn.Module, tensors: dict[str, Tensor], origin: str) -> dict[str, Tensor]:
    """Return those of some tensors that a model has, which may be a sketch; refuse any others but a classifier's."""
    # The classifier of pre-training is of no use to a trunk; published checkpoints may have any number of them.
    wanted = model.state_dict()
    found = {name: value for name, value in tensors.items() if name in wanted or not _of_classifier(name, model)}
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    expected = {name: tuple(value.shape) for name, value in wanted.items()}
    wrong = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
    if wrong:
        name = wrong[0]
        raise OarlockError(
            f"the weights in {origin} do not fit the architecture: {len(wrong)} tensors differ, for example "
            f"{name!r} (file: {shapes.get(name, 'absent')}, wanted: {expected.get(name, 'absent')})"
        )
    return found


def _of_classifier(name: str, model: Any) -> bool:
    known = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    known = (known,) if isinstance(known, str) else known
    return name.split(".")[0].startswith(CLASSIFIERS) or any(name.startswith(f"{one}.") for one in known)
