"""A trunk tuned once, before anything is learned on it: changes of the weights above some of its stages.

Of what training comes to, half is kept: between pre-trained and tuned weights lies what does well on inputs unlike
those tuned to (Wortsman et al., CVPR 2022). Afterwards the tuned trunk is a trunk like any other, and a pass
costs what it cost before.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from oarlock.errors import OarlockError
from oarlock.nets.heads import Modules
from oarlock.nets.trunks import Trunk
from oarlock.schema import boolean, integer, list_of, mapping, record

TUNING = record({"done": boolean, "layers": mapping(list_of(integer(1), 2, 2), most=10_000)})
KEPT = 0.5  # of every change, when tuning is over


class Change(nn.Module):
    """Add something to a weight; it begins as nothing."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.change = nn.Parameter(torch.zeros(rows, columns))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.change.view_as(weight)


class Tuning(nn.Module):
    """Hold the changes of a trunk's layers, by name; none as long as nothing was tuned.

    >>> from oarlock.nets.trunks import load_trunk
    >>> trunk, tuning = load_trunk("vit_pico"), Tuning()
    >>> tuning.begin(trunk, 5)
    >>> tuning.names
    ['blocks.5.attn.proj', 'blocks.5.mlp.fc1', 'blocks.5.mlp.fc2']
    >>> image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    >>> torch.equal(tuning.tuned(trunk)(image), trunk(image))
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.done = False  # what is being tuned is not yet a trunk
        self.names: list[str] = []
        self.changes: Modules[Change] = Modules()

    def begin(self, trunk: Trunk, stages: int) -> None:
        """Make a change for every layer with weights above the first `stages` stages, as yet without effect."""
        weights = {name: layer.weight for name, layer in layers_above(trunk, stages).items()}
        self.rebuild({"done": False, "layers": {name: [len(w), w[0].numel()] for name, w in weights.items()}})
        self.to(trunk.mean.device)

    def trainable(self, trunk: Trunk) -> Trunk:
        """Return the trunk with the changes as they are at any moment: gradients reach them and nothing else."""
        copied = _copy(trunk, changed=())
        for name, change in zip(self.names, self.changes, strict=True):
            parametrize.register_parametrization(copied.model.get_submodule(name), "weight", change)
        return copied

    @torch.no_grad()
    def tuned(self, trunk: Trunk) -> Trunk:
        """Return the trunk with the changes in its weights; all others it shares with the one given."""
        copied = _copy(trunk, self.names)
        for name, change in zip(self.names, self.changes, strict=True):
            layer: Any = copied.model.get_submodule(name)
            layer.weight.copy_(change(layer.weight))
        return copied

    @torch.no_grad()
    def finish(self) -> None:
        """Keep half of every change, and change nothing from now on."""
        for change in self.changes:
            change.change.mul_(KEPT)
        self.done = True
        self.requires_grad_(False)

    def describe(self) -> dict[str, Any]:
        """Return JSON: the shapes of all changes, by layer."""
        shapes = [list(change.change.shape) for change in self.changes]
        return {"done": self.done, "layers": dict(zip(self.names, shapes, strict=True))}

    def check(self, trunk: Trunk) -> None:
        """Refuse changes of layers that a trunk does not have, or has in another size."""
        for name, change in zip(self.names, self.changes, strict=True):
            weight = getattr(dict(trunk.model.named_modules()).get(name), "weight", None)
            if weight is None or [len(weight), weight[0].numel()] != list(change.change.shape):
                raise OarlockError(f"the trunk {trunk.card.name!r} has no layer {name!r} that could be tuned so")

    def rebuild(self, description: dict[str, Any]) -> None:
        """Take described shapes; the tensors come afterwards."""
        shapes = description["layers"]
        self.names, self.changes = list(shapes), Modules(Change(*shape) for shape in shapes.values())
        self.done = description["done"]
        self.requires_grad_(not self.done)


@torch.no_grad()
def layers_above(trunk: Trunk, stages: int) -> dict[str, Any]:
    """Return the linear and convolutional layers that a pass above the first `stages` stages goes through: found by
    walking there."""
    passed, activations = list[nn.Module](), trunk.below(trunk.blank(1).to(trunk.mean.device), stages)
    named = {name: layer for name, layer in trunk.model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    hooks = [layer.register_forward_hook(lambda layer, *_: passed.append(layer)) for layer in named.values()]
    try:
        trunk.adapted(activations, stages, lambda _, x: x, None)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: layer for name, layer in named.items() if any(layer is one for one in passed)}


def _copy(trunk: Trunk, changed: Any) -> Trunk:
    """A trunk with a network of its own, in which only the weights of some layers are copies."""
    own = {f"{name}.weight" for name in changed}
    tensors = [*trunk.model.named_parameters(), *trunk.model.named_buffers()]
    shared = {id(tensor): tensor for name, tensor in tensors if name not in own}
    return type(trunk)(copy.deepcopy(trunk.model, shared), trunk.card)
