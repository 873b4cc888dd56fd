"""One network for all tasks: ungated adapters on the trunk's own norms, and one head that grows."""

import torch
from torch import Tensor, nn

from oarlock.nets.adapters import Adapters
from oarlock.nets.heads import GrowingHead
from oarlock.nets.trunk import Trunk


class Network(nn.Module):
    """What methods train whose tasks share everything; a teacher is a copy of it.

    >>> from oarlock.nets.trunk import load_trunk
    >>> network = Network(load_trunk("vit_pico"), width=8, adapt_last=1)
    >>> network.head.grow(3, torch.Generator().manual_seed(0))
    >>> network(network.adapters.below(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))).shape
    torch.Size([2, 3])
    """

    def __init__(self, trunk: Trunk, width: int, adapt_last: int | None, bf16: bool = False) -> None:
        super().__init__()
        self.adapters = Adapters(trunk, width, adapt_last, bf16)
        self.head = GrowingHead(trunk.dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits from the tokens below the first adapter."""
        return self.head(self.adapters(tokens))

    def reset(self, generator: torch.Generator) -> None:
        """Initial values of everything."""
        self.adapters.reset(generator)
        self.head.reset(generator)
