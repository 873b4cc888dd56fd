"""An adapter of its own for every task, as published (Houlsby et al., ICML 2019): a bottleneck without gates.

Nothing is shared, so nothing can be overwritten; what a model holds grows by whole adapters with every task. The
second matrix begins as zero: a task begins as the bare trunk, and one that is closed stays it and keeps no adapter.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oarlock.nets.adapters import Bottleneck
from oarlock.nets.heads import Modules
from oarlock.nets.protectors import Protector, protector
from oarlock.nets.protectors._compact import SiteWeights
from oarlock.schema import Check, boolean, list_of


class OwnBottleneck(Bottleneck):
    """Compute what is added to a value; nothing, to begin with."""

    def reset(self, generator: torch.Generator) -> None:
        super().reset(generator)
        nn.init.zeros_(self.fc2.weight)

    def site_weights(self) -> SiteWeights:
        """Return the adapter as plain matrices."""
        return SiteWeights(self.fc1.weight.T, self.fc1.bias, self.fc2.weight.T, self.fc2.bias)


@protector("own")
class Own(Protector):
    """Give every task whole adapters of its own."""

    described: ClassVar[Mapping[str, Check]] = {"adapted": list_of(boolean)}

    def __init__(self, trunk: Any, config: Any) -> None:
        super().__init__(trunk, config)
        self.layers: Modules[Any] = Modules()  # of each task, by site; none of a task that was closed

    def new_layer(self, dim: int) -> Any:
        """Return an adapter for one site."""
        return OwnBottleneck(dim, self.config.width)

    def begin_task(self, random: torch.Generator) -> None:
        """Add norms as pre-trained, and adapters that add nothing yet."""
        self._add_task(adapted=True)
        for layer in self.layers[-1]:
            layer.reset(random)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": self.trainable(self.layers[-1])}]

    def finish_task(self, seen: Iterable[Tensor] = ()) -> None:
        super().finish_task()
        self.layers[-1].requires_grad_(False)

    def close_task(self) -> None:
        """Do without the newest task's adapters, which add nothing."""
        self.layers[-1] = Modules()
        self.finish_task()

    def forget_task(self, task: int, random: torch.Generator) -> None:
        del self.norms[task], self.layers[task]

    def forward(self, activations: Tensor, task: int, fraction: float = 1.0) -> Tensor:
        layers = self.layers[task]
        return self.adapted(activations, lambda site, u: u + layers[site](u) if len(layers) else u, self.norms[task])

    def task_weights(self, task: int) -> list[SiteWeights]:
        layers = self.layers[task]
        return [layer.site_weights() for layer in layers] if len(layers) else self.no_weights()

    def describe(self) -> dict[str, Any]:
        return {"adapted": [len(layers) > 0 for layers in self.layers]}

    def rebuild(self, description: dict[str, Any]) -> None:
        for adapted in description["adapted"]:
            self._add_task(adapted)

    def _add_task(self, adapted: bool) -> None:
        self.add_norms()
        layers: Modules[Any] = Modules(self.new_layer(dim) for dim in self.sites() if adapted)
        self.layers.append(layers.to(self.trunk.mean.device))
