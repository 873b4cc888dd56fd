"""Trunks that are not looked into: activations are the features, [B, D], and one adapter stands on them."""

from torch import Tensor

from oarlock.nets.trunks._base import SiteFunction, Trunk
from oarlock.nets.trunks._staged import Scales


class FlatTrunk(Trunk):
    """Walk a network that has no stages."""

    adapters = "on the features"
    stages = ()

    def below(self, images: Tensor, stages: int) -> Tensor:
        return self.embed(images)

    def below_and_bare(self, images: Tensor, stages: int) -> tuple[Tensor, Tensor]:
        features = self.embed(images)
        return features, features[:, None]

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(images)

    def sites(self, stages: int) -> list[int]:
        return [self.dim]

    def new_norms(self, stages: int) -> Scales:
        return Scales([self.dim])

    def adapted(self, activations: Tensor, stages: int, adapt: SiteFunction, norms: SiteFunction | None) -> Tensor:
        return adapt(0, activations if norms is None else norms(0, activations))
