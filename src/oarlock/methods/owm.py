"""OWM: orthogonal weights modification (Zeng et al., Nature Machine Intelligence 2019).

No replay. Every trained layer (both matrices of each adapter, and the head) has a projector P = α(αI + Σ x xᵀ)⁻¹ over
inputs x it received in finished tasks. P is nearly 0 on what they span and nearly 1 across it, so a gradient times P
changes hardly anything of what the layer answers to them.

Choices: as in the authors' code biases belong to a constant input 1, inputs are averaged over a batch before they
enter P, and where there are many positions (there patches, here activations) each is a vector of its own. P is
updated after a task, as the paper says, in one pass with training's batch size; the authors' code updates it in every
step of training, so that a task's own inputs hinder it too, and lets α fall during a task, to 0.1 in the last layer
and far less in the first. α = 0.1 everywhere is ours. Gradients are not clipped. AdamW and weight decay undo the
projection; SGD with momentum keeps it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oarlock.methods import method
from oarlock.methods._options import SharedConfig
from oarlock.methods._shared import SharedMethod, TrainShared
from oarlock.nets.adapters import CachedActivations
from oarlock.nets.heads import GrowingHead, Modules
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Loss, Phase, Step, TaskData, shuffled

Layer = nn.Linear | GrowingHead


@dataclass(frozen=True)
class OwmConfig(SharedConfig):
    alpha: float = option(0.1, least=1e-9)  # how little of old inputs may still be written to; small: nothing


@method("owm")
class Owm(SharedMethod):
    """Keep gradients orthogonal to the inputs of finished tasks, in every layer."""

    Config = OwmConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-mini": {"lr": 0.01}}
    paper = "Zeng et al., Nature Machine Intelligence 2019"
    verified = "projector in closed form and by rank-one steps; updates leave answers to old inputs alone"
    needs_memory = False
    config: OwmConfig

    def __init__(self, trunk: Trunk, memory: int, config: OwmConfig) -> None:
        super().__init__(trunk, memory, config)
        self.projectors: Modules[Projector] = Modules(Projector(layer.weight.shape[1]) for layer in self.layers)

    @property
    def layers(self) -> list[Layer]:
        """Return all layers that are trained."""
        bottlenecks = self.network.adapters.layers
        return [*(fc for bottleneck in bottlenecks for fc in (bottleneck.fc1, bottleneck.fc2)), self.network.head]

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainProjected(self, task), UpdateProjectors(self, task)]


class Projector(nn.Module):
    """Hold P of one layer; in the first task it is the identity."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(inputs + 1))
        self.matrix: Tensor

    def add(self, inputs: Tensor, alpha: float) -> None:
        """Update P by recursive least squares with a block of inputs [..., D] at once, in double precision (and so on
        the CPU): P ← (I + P·XᵀX/α)⁻¹·P."""
        rows, before = inputs.flatten(0, -2).cpu().double(), self.matrix.cpu().double()
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        updated = torch.linalg.solve(torch.eye(len(before)).to(before) + before @ rows.T @ rows / alpha, before)
        self.matrix.copy_((updated + updated.T) / 2)  # symmetric in spite of rounding

    def project(self, layer: Layer) -> None:
        """Multiply the layer's gradient [weight | bias] by P."""
        assert layer.weight.grad is not None and layer.bias.grad is not None
        gradient = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
        gradient = gradient @ self.matrix
        layer.weight.grad, layer.bias.grad = gradient[:, :-1].contiguous(), gradient[:, -1].contiguous()


class TrainProjected(TrainShared):
    method: Owm

    def gradients(self, step: Step) -> Loss:
        loss = super().gradients(step)
        for layer, projector in zip(self.method.layers, self.method.projectors, strict=True):
            projector.project(layer)
        return loss


class UpdateProjectors(Phase):
    """Add what each layer receives of the task's images to its projector, in one pass: later tasks are not to write
    to it any more."""

    name = "projectors"

    def __init__(self, owm: Owm, task: TaskData) -> None:
        self.owm, self.task = owm, task

    @torch.no_grad()
    def start(self) -> None:
        owm, task = self.owm, self.task
        activations = CachedActivations(owm.network.adapters, task.images)
        with recorded_inputs(owm.layers) as inputs:
            for rows in shuffled(len(task.images), owm.config.batch, task.generator(self.name)):
                owm.network(activations[rows])
                for layer, projector in zip(owm.layers, owm.projectors, strict=True):
                    projector.add(inputs[layer].mean(0, keepdim=True), owm.config.alpha)


@contextmanager
def recorded_inputs(layers: list[Layer]) -> Iterator[dict[nn.Module, Tensor]]:
    """Yield the inputs of the latest pass, by layer."""
    inputs: dict[nn.Module, Tensor] = {}

    def record(layer: nn.Module, arguments: tuple[Tensor]) -> None:
        (inputs[layer],) = arguments

    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()
