"""HAT's gates, done exactly: closed-form gradient, per-epoch annealing, binary masks when a task is finished.

A gate is `a = σ(s·e)` with one embedding `e` per unit and task. While a task is learned `s` is annealed within
every epoch from 1/s_max to s_max; afterwards the gate is the binary mask `e > 0`, and that same mask predicts,
protects and is in force when heads are tuned.

An adapter is then `A(u) = u + g2 ⊙ fc2(relu(g1 ⊙ fc1(u)))`: its matrices are shared by all tasks, gates (g1, g2) and
norms belong to one task each. When a layer runs out of free hidden units it grows a *wing*: a second bottleneck
beside the first, which earlier tasks never evaluate. A wider matrix would do the same sum in another order and round
differently; a task keeps to the youngest bottlenecks of those that existed when it began, side by side as one, and
old results stay bit for bit what they were. There is a limit to how many: a task that passed the wings of all tasks
before it would cost what they all have grown."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.nets.adapters import AdapterConfig, Bottleneck
from oarlock.nets.heads import Modules
from oarlock.nets.protectors import Capacity, Protector, protector
from oarlock.nets.protectors._compact import SiteWeights
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.schema import Check, integer, list_of

NEARLY_FULL = 0.05  # share of free hidden units
REACH = 8  # bottlenecks of a layer that a task uses at most
CLAMP = 6.0  # keeps an embedding within reach of its own gradient
# A gate below this is closed. It could not be seen in float32 sums; but its products would be subnormal numbers, on
# which CPUs take ten times as long.
CLOSED = 1e-10


class _Gate(torch.autograd.Function):
    """Forward σ(s·e), backward s_max·σ'(e): what the published compensation by cosh amounts to, without its
    overflow and without the zeros that a·(1−a) rounds to."""

    @staticmethod
    def forward(ctx: Any, e: Tensor, s: float, s_max: float) -> Tensor:
        ctx.save_for_backward(e)
        ctx.s_max = s_max
        a = torch.sigmoid(s * e)
        return a.masked_fill(a < CLOSED, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (e,) = ctx.saved_tensors
        open_ = torch.sigmoid(e)
        return grads[0] * ctx.s_max * open_ * (1 - open_), None, None


def gate(e: Tensor, s: float, s_max: float) -> Tensor:
    """Return the soft gate of an embedding.

    >>> gate(torch.tensor([-1.0, 0.0, 1.0]), s=400.0, s_max=400.0)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return _Gate.apply(e, s, s_max)


def anneal(fraction: float, s_max: float) -> float:
    """Return s at a fraction of an epoch: linear from 1/s_max to s_max.

    >>> anneal(0.0, 500.0), anneal(1.0, 500.0)
    (0.002, 500.0)
    """
    return 1 / s_max + (s_max - 1 / s_max) * fraction


class SiteGates(NamedTuple):
    """Hold what one task's gates come to at one adapter."""

    hidden: list[Tensor]  # of each bottleneck that the task uses
    output: Tensor
    first: int = 0  # of these bottlenecks


class Gates(nn.Module):
    """Hold one task's gates: for every adapter a hidden gate for each bottleneck from the `first` that the task uses,
    and one output gate."""

    def __init__(self, hidden: list[list[int]], outputs: list[int], first: list[int]) -> None:
        super().__init__()
        self.first = first
        self.hidden: Modules[nn.ParameterList] = Modules(
            nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths) for widths in hidden
        )
        self.output = nn.ParameterList(nn.Parameter(torch.zeros(count)) for count in outputs)
        self.register_buffer("finished", torch.tensor(False))
        self.finished: Tensor

    def reset(self, generator: torch.Generator) -> None:
        for e in self.parameters():
            e.data.copy_(torch.randn(e.shape, generator=generator))

    def values(self, s: float, s_max: float) -> list[SiteGates]:
        """Return the gates of every adapter, soft while learning and binary once finished."""

        def value(e: Tensor) -> Tensor:
            return (e > 0).to(e.dtype) if self.finished else gate(e, s, s_max)

        return [
            SiteGates([value(e) for e in widths], value(out), first)
            for first, widths, out in zip(self.first, self.hidden, self.output, strict=True)
        ]

    def finish(self) -> None:
        self.finished.fill_(True)
        self.requires_grad_(False)

    @torch.no_grad()
    def clamp(self) -> None:
        for e in self.parameters():
            e.clamp_(-CLAMP, CLAMP)


def regulariser(soft: list[Tensor], used: list[Tensor]) -> Tensor:
    """Return Σ a(1−a_prev) / Σ (1−a_prev): the share of still free units that the task opens; 0 when none is free.

    >>> regulariser([torch.tensor([1.0, 1.0, 0.5])], [torch.tensor([True, False, False])])
    tensor(0.7500)
    """
    free = [~mask for mask in used]
    count = sum(int(mask.sum()) for mask in free)
    opened = sum((a * mask).sum() for a, mask in zip(soft, free, strict=True))
    return torch.as_tensor(opened) / max(count, 1)


class GatedBottleneck(Bottleneck):
    """Hold the matrices of fc2(relu(g1 ⊙ fc1(u))), and which of its units finished tasks rely on."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__(dim, width)
        self.register_buffer("hidden_used", torch.zeros(width, dtype=torch.bool))
        self.register_buffer("output_used", torch.zeros(dim, dtype=torch.bool))
        self.hidden_used: Tensor
        self.output_used: Tensor

    def occupy(self, hidden: Tensor, output: Tensor) -> None:
        """Add what a finished task opens to what must not move."""
        self.hidden_used |= hidden > 0
        self.output_used |= output > 0

    def protected(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every parameter with the mask of what must not move: 1 where min(a_i, a_j) of the units it joins is
        1. The inputs of fc1 are the trunk's, which all tasks use."""
        yield self.fc1.weight, self.hidden_used[:, None].expand_as(self.fc1.weight)
        yield self.fc1.bias, self.hidden_used
        yield self.fc2.weight, self.output_used[:, None] & self.hidden_used[None, :]
        yield self.fc2.bias, self.output_used

    @torch.no_grad()
    def take_protected(self, other: "GatedBottleneck") -> None:
        """Take over what must not move from where it is."""
        for (mine, mask), (theirs, _) in zip(self.protected(), other.protected(), strict=True):
            mine.copy_(torch.where(mask, theirs, mine))


class GatedAdapter(nn.Module):
    """Hold the first bottleneck and its wings, which share the output gate."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.dim = dim
        self.bottlenecks: Modules[GatedBottleneck] = Modules([GatedBottleneck(dim, width)])

    def forward(self, u: Tensor, hidden: list[Tensor], output: Tensor, first: int = 0) -> Tensor:
        # A task has no gates for wings younger than it: these are not evaluated.
        weight1, bias1, weight2, bias2 = self._side_by_side(first, len(hidden))
        # relu(g1 ⊙ z) = g1 ⊙ relu(z), so both gates go into the second matrix, which is far smaller than what it is
        # applied to; and a gate that is closed still gets its gradient.
        gated = output[:, None] * weight2 * torch.cat(hidden)
        return F.linear(F.linear(u, weight1, bias1).relu_(), gated, output * bias2).add_(u)

    def open_units(self, hidden: list[Tensor], output: Tensor, first: int = 0) -> SiteWeights:
        """Return what one task has opened, the output gate inside fc2."""
        parts = list(zip(self.some(first, len(hidden)), [gate > 0 for gate in hidden], strict=True))
        return SiteWeights(
            torch.cat([part.fc1.weight[open_] for part, open_ in parts]).T,
            torch.cat([part.fc1.bias[open_] for part, open_ in parts]),
            torch.cat([part.fc2.weight[:, open_] for part, open_ in parts], 1).T * output,
            sum(part.fc2.bias for part, _ in parts) * output,
        )

    def some(self, first: int, count: int) -> list[GatedBottleneck]:
        """Return bottlenecks that a task uses."""
        return list(self.bottlenecks)[first : first + count]

    def add_wing(self, width: int) -> GatedBottleneck:
        """Return a new bottleneck beside the others."""
        wing = GatedBottleneck(self.dim, width).to(self.bottlenecks[0].fc1.weight.device)
        self.bottlenecks.append(wing)
        return wing

    def keep_wings(self, count: int) -> None:
        """Remove the youngest bottlenecks until so many are left."""
        while len(self.bottlenecks) > count:
            del self.bottlenecks[-1]

    def _side_by_side(self, first: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weight and bias of fc1 and fc2 of some bottlenecks as one: several small products take longer than a larger
        one."""
        parts = self.some(first, count)
        if len(parts) == 1:
            return parts[0].fc1.weight, parts[0].fc1.bias, parts[0].fc2.weight, parts[0].fc2.bias
        return (
            torch.cat([part.fc1.weight for part in parts]),
            torch.cat([part.fc1.bias for part in parts]),
            torch.cat([part.fc2.weight for part in parts], 1),
            torch.stack([part.fc2.bias for part in parts]).sum(0),
        )

    @property
    def first(self) -> int:
        """Return the first bottleneck that the next task uses."""
        return max(len(self.bottlenecks) - REACH, 0)

    @property
    def widths(self) -> list[int]:
        return [bottleneck.width for bottleneck in self.bottlenecks]

    @property
    def free(self) -> float:
        """Return the share of hidden units, of those within reach, that no finished task uses."""
        within = self.some(self.first, REACH)
        used = sum(int(bottleneck.hidden_used.sum()) for bottleneck in within)
        return 1 - used / sum(bottleneck.width for bottleneck in within)


@dataclass(frozen=True)
class HatConfig:
    """Say how gates are trained, and when adapters grow."""

    # Of the gates' embeddings: a rate of its own, which stays what it is when another `lr` is searched or chosen.
    gate_lr: float = option(0.03, least=0)
    s_max: float = option(400.0, least=1)  # hardness of the gates at the end of an epoch
    lamb: float = option(0.75, least=0)  # λ of the gates' regulariser
    grow_below: float = option(0.1, least=0, most=1)  # a layer with a smaller share of free hidden units grows a wing
    wing: int = option(32, least=1, most=2**14)  # hidden units of a wing


@dataclass(frozen=True)
class HatAdapterConfig(HatConfig, AdapterConfig):
    """Hold all that the protector needs to know."""


@protector("hat")
class Hat(Protector):
    """Share adapters by hard attention to the task: each task has binary gates over their units.

    >>> from oarlock.nets.trunks import load_trunk
    >>> hat = Hat(load_trunk("vit_pico"), HatAdapterConfig(width=8))
    >>> for task in range(3):
    ...     hat.begin_task(torch.Generator().manual_seed(task))
    ...     hat.finish_task()
    >>> activations = hat.below(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    >>> hat(activations, task=0).shape
    torch.Size([2, 192])
    >>> compact = hat.compact()
    >>> compact(activations, [0, 2]).shape
    torch.Size([2, 2, 192])
    >>> torch.allclose(compact(activations, [2])[:, 0], hat(activations, 2), atol=1e-5)
    True
    """

    described: ClassVar[Mapping[str, Check]] = {
        "bottlenecks": list_of(list_of(integer(1))),
        "tasks": list_of(list_of(integer(1))),  # how many bottlenecks of each layer a task uses
        "first": list_of(list_of(integer(0))),  # from which one on
    }
    Config = HatConfig
    config: HatAdapterConfig

    def __init__(self, trunk: Trunk, config: HatAdapterConfig) -> None:
        super().__init__(trunk, config)
        self.layers: Modules[GatedAdapter] = Modules(GatedAdapter(dim, config.width) for dim in self.sites())
        self.gates: Modules[Gates] = Modules()
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    # -- learning a task -----------------------------------------------------------------------------------

    def begin_task(self, random: torch.Generator) -> None:
        """Add norms as pre-trained, fresh gates, and a wing wherever too little is still free."""
        if not self.gates:
            for layer in self.layers:
                layer.bottlenecks[0].reset(random)
        elif self.config.grow_below:
            for layer in self.layers:
                if layer.free < self.config.grow_below:
                    layer.add_wing(self.config.wing).reset(random)
        self._add_task([layer.first for layer in self.layers])
        self.gates[-1].reset(random)

    def guard(self) -> None:
        self._kept = [
            (parameter, mask, parameter.detach().clone())
            for bottleneck in self._in_use()
            for parameter, mask in bottleneck.protected()
            if mask.any()
        ]

    def parameter_groups(self) -> list[dict[str, Any]]:
        gates = {"params": list(self.gates[-1].parameters()), "lr": self.config.gate_lr, "weight_decay": 0.0}
        return [{"params": self.trainable(*self._in_use())}, gates]

    def penalty(self, fraction: float) -> Tensor:
        """Return λ times HAT's regulariser for the newest task."""
        soft, used = [], []
        for layer, gates in zip(self.layers, self._gates(-1, fraction), strict=True):
            within = layer.some(gates.first, len(gates.hidden))
            soft += [*gates.hidden, gates.output]
            used += [*(bottleneck.hidden_used for bottleneck in within), within[0].output_used]
        return self.config.lamb * regulariser(soft, used)

    @torch.no_grad()
    def after_step(self) -> None:
        for parameter, mask, value in self._kept:
            parameter.copy_(torch.where(mask, value, parameter))
        self.gates[-1].clamp()

    def finish_task(self, seen: Iterable[Tensor] = ()) -> None:
        """Make the newest task's gates binary and protect what they open."""
        super().finish_task()
        self.gates[-1].finish()
        for layer, (hidden, output, first) in zip(self.layers, self._gates(-1), strict=True):
            for bottleneck, mask in zip(layer.some(first, len(hidden)), hidden, strict=True):
                bottleneck.occupy(mask, output)
        self._kept = []
        if not self.config.grow_below and min(layer.free for layer in self.layers) < NEARLY_FULL:
            what = "an adapter has hardly a free unit left for the next task; with grow_below it would grow"
            warnings.warn(what, stacklevel=2)

    @torch.no_grad()
    def close_task(self) -> None:
        """Shut every gate of the newest task."""
        for gate in self.gates[-1].parameters():
            gate.fill_(-1)
        self.finish_task()

    @torch.no_grad()
    def forget_task(self, task: int, random: torch.Generator) -> None:
        del self.norms[task], self.gates[task]
        opened = [self._gates(other) for other in range(len(self.gates))]
        for site, layer in enumerate(self.layers):
            ours = [gates[site] for gates in opened]
            layer.keep_wings(max((first + len(hidden) for hidden, _, first in ours), default=1))
            for index, bottleneck in enumerate(layer.bottlenecks):
                fresh = GatedBottleneck(layer.dim, bottleneck.width).to(bottleneck.fc1.weight.device)
                fresh.reset(random)
                for hidden, output, first in ours:
                    if 0 <= index - first < len(hidden):
                        fresh.occupy(hidden[index - first], output)
                fresh.take_protected(bottleneck)
                layer.bottlenecks[index] = fresh

    # -- asking a task -------------------------------------------------------------------------------------

    def forward(self, activations: Tensor, task: int, fraction: float = 1.0) -> Tensor:
        gates = self._gates(task, fraction)
        return self.adapted(activations, lambda site, u: self.layers[site](u, *gates[site]), self.norms[task])

    def task_weights(self, task: int) -> list[SiteWeights]:
        pairs = zip(self.layers, self._gates(task), strict=True)
        return [layer.open_units(*gates) for layer, gates in pairs]

    def capacity(self) -> Capacity:
        wings = [len(layer.bottlenecks) - 1 for layer in self.layers]
        return Capacity([layer.free for layer in self.layers], wings)

    def _gates(self, task: int, fraction: float = 1.0) -> list[SiteGates]:
        return self.gates[task].values(anneal(fraction, self.config.s_max), self.config.s_max)

    def _in_use(self) -> list[GatedBottleneck]:
        """The bottlenecks that the newest task uses."""
        newest = self.gates[-1]
        used = zip(self.layers, newest.first, newest.hidden, strict=True)
        return [bottleneck for layer, first, widths in used for bottleneck in layer.some(first, len(widths))]

    # -- rebuilding ----------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        return {
            "bottlenecks": [layer.widths for layer in self.layers],
            "tasks": [[len(widths) for widths in gates.hidden] for gates in self.gates],
            "first": [gates.first for gates in self.gates],
        }

    def rebuild(self, description: dict[str, Any]) -> None:
        for counts, firsts in zip(description["tasks"], description["first"], strict=True):
            shapes = zip(self.layers, description["bottlenecks"], counts, firsts, strict=True)
            for layer, widths, count, first in shapes:
                while len(layer.bottlenecks) < first + count:
                    layer.add_wing(widths[len(layer.bottlenecks)])
            self._add_task(firsts)

    def _add_task(self, first: list[int]) -> None:
        hidden = [layer.widths[start:] for layer, start in zip(self.layers, first, strict=True)]
        gates = Gates(hidden, [layer.dim for layer in self.layers], first)
        self.add_norms()
        self.gates.append(gates.to(self.trunk.mean.device))
