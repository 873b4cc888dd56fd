"""A trunk that is no network: images are feature vectors already, which anything made of pictures, texts or sounds.

So everything else is as it is elsewhere: what learns on a frozen network's features learns on anybody's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oarlock.data.images import Label, Preprocessing
from oarlock.data.vectors import LONGEST, as_vectors, read_labelled_vectors
from oarlock.errors import OarlockError
from oarlock.nets.trunks import VECTORS, Card, Listing, trunk_family
from oarlock.nets.trunks._flat import FlatTrunk
from oarlock.schema import integer, record

ARCHITECTURE = record({"features": integer(1, LONGEST)})
NO_PICTURE = Preprocessing(1, 1, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))  # a card has one; nobody may ask for it


@trunk_family(VECTORS)
class Vectors(FlatTrunk):
    """Take feature vectors as they are.

    >>> trunk = Vectors.of(3)
    >>> trunk(torch.ones(2, 3)).tolist(), trunk.suited_to([[0.0] * 5]).dim
    ([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], 5)
    """

    pictures = False

    def __init__(self, model: nn.Module, card: Card) -> None:
        super().__init__(model, card)
        assert card.architecture is not None
        self.dim = self.bare_dim = card.architecture["features"]

    @classmethod
    def of(cls, features: int) -> "Vectors":
        """Return the trunk for vectors of so many features."""
        return cls(nn.Identity(), Card(VECTORS, NO_PICTURE, {"features": features}, "none", (), family=cls.name))

    # -- what goes in ----------------------------------------------------------------------------------------

    @property
    def rule(self) -> Preprocessing:
        raise OarlockError(
            f"the model takes vectors of {self.dim} features and no pictures: use it from Python, with features that "
            "were made as those it learned"
        )

    def blank(self, count: int) -> Tensor:
        return torch.zeros(count, self.dim)

    def read_labelled(self, images: Any, labels: Any) -> tuple[Tensor, list[Label]]:
        return read_labelled_vectors(images, labels, self.dim)

    def read_in_chunks(self, images: Any, size: int) -> Iterator[Tensor]:
        return iter(as_vectors(images, self.dim).split(size))

    def suited_to(self, images: Any) -> "Vectors":
        features = as_vectors(images).shape[1]
        return self if features == self.dim else Vectors.of(features).to(self.mean.device)

    def embed(self, images: Tensor) -> Tensor:
        return images

    # -- families and files ----------------------------------------------------------------------------------

    @classmethod
    def listed(cls) -> list[Listing]:
        return []  # there is nothing to choose it for on a command line

    @classmethod
    def accepts(cls, name: str) -> bool:
        return name == VECTORS

    @classmethod
    def load(cls, name: str, weights: Path | None, size: int | None) -> "Vectors":
        return cls.of(1)  # until the first vectors come

    @classmethod
    def network(cls, card: Card) -> nn.Module:
        return nn.Identity()

    @classmethod
    def check_architecture(cls, architecture: Any, place: str) -> None:
        ARCHITECTURE(architecture, place)
