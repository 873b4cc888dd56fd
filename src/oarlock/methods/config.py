"""What methods let their users set."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torch.optim import SGD, AdamW, Optimizer


def option(default: Any, least: float = -math.inf, most: float = math.inf) -> Any:
    """A field of a configuration with the range of values that make sense."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True)
class TrainConfig:
    """How networks are trained; our defaults, chosen on validation images for `vit_pico`."""

    epochs: int = option(4, least=0)
    batch: int = option(64, least=1)  # joined by as many images from memory where there is replay
    optimiser: Literal["sgd", "adamw"] = "sgd"
    lr: float = option(0.03, least=0)
    momentum: float = option(0.9, least=0, most=1)
    weight_decay: float = option(0.0, least=0)

    def new_optimiser(self, parameters: Iterable[Any], lr: float) -> Optimizer:
        if self.optimiser == "adamw":
            return AdamW(parameters, lr, weight_decay=self.weight_decay)
        return SGD(parameters, lr, self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class AdapterConfig(TrainConfig):
    """Where the trunk is adapted, and by how much."""

    width: int = option(64, least=1)  # hidden units of an adapter
    adapt_last: int | None = option(2, least=1)  # stages with adapters, from the top; None: all (the paper)
    bf16: bool = False  # products in bfloat16: for processors that have it, slower elsewhere
