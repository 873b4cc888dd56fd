"""A low-rank adapter of its own for every task, after LoRA (Hu et al., ICLR 2022): u + u·A·B, with B zero at first.

In a transformer u is what a branch ends in, a product with a frozen matrix W (and a bias), so u·(I + A·B) is what the
branch would give with W + W·A·B: a change of W of low rank. LoRA adds A·B to matrices inside the branch, and scales
it by α/r; here α is r, since a factor is a learning rate's business.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oarlock.nets.adapters import AdapterConfig
from oarlock.nets.heads import truncated_normal_
from oarlock.nets.protectors import protector
from oarlock.nets.protectors._compact import SiteWeights
from oarlock.nets.protectors.own import Own
from oarlock.options import option


class LowRank(nn.Module):
    """Compute u·A·B."""

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)

    def reset(self, generator: torch.Generator) -> None:
        """Take initial values, with which nothing is added."""
        truncated_normal_(self.down.weight, generator)
        nn.init.zeros_(self.up.weight)

    def forward(self, u: Tensor) -> Tensor:
        return self.up(self.down(u))

    def site_weights(self) -> SiteWeights:
        """Return the same as a bottleneck of twice the width: z = relu(z) − relu(−z)."""
        down, up = self.down.weight.T, self.up.weight.T
        zeros = down.new_zeros
        return SiteWeights(torch.cat([down, -down], 1), zeros(2 * len(up)), torch.cat([up, -up]), zeros(up.shape[1]))


@dataclass(frozen=True)
class LoraConfig:
    """Say how much a task may change."""

    rank: int = option(16, least=1, most=2**14)  # of the change at every site


@dataclass(frozen=True)
class LoraAdapterConfig(LoraConfig, AdapterConfig):
    """Hold all that the protector needs to know."""


@protector("lora")
class Lora(Own):
    """Give every task a linear change of low rank of its own."""

    Config = LoraConfig
    config: LoraAdapterConfig

    def new_layer(self, dim: int) -> LowRank:
        return LowRank(dim, self.config.rank)
