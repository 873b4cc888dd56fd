"""Adapters and task norms over the stages of a trunk that stays as it is.

At every site the trunk offers stands `A(u) = u + g2 ⊙ fc2(relu(g1 ⊙ fc1(u)))`: in a transformer after attention and
after the MLP of every adapted stage, in a convolutional network at the end of every adapted stage. The matrices are
shared by all tasks; gates (g1, g2) and norms belong to one task each. When a layer runs out of free hidden units it
grows a *wing*: a second bottleneck beside the first, which earlier tasks never evaluate. A wider matrix would do the
same sum in another order and round differently; a task keeps to the bottlenecks that existed when it began, side by
side as one, and old results stay bit for bit what they were.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oarlock.nets.base import TaskNorms, Trunk
from oarlock.nets.gates import Gates, regulariser
from oarlock.nets.initial import truncated_normal_
from oarlock.nets.modules import Modules


class Bottleneck(nn.Module):
    """The matrices of fc2(relu(g1 ⊙ fc1(u))), and which of its units finished tasks rely on."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, width)
        self.fc2 = nn.Linear(width, dim)
        self.register_buffer("hidden_used", torch.zeros(width, dtype=torch.bool))
        self.register_buffer("output_used", torch.zeros(dim, dtype=torch.bool))
        self.hidden_used: Tensor
        self.output_used: Tensor

    @property
    def width(self) -> int:
        return self.fc1.out_features

    def reset(self, generator: torch.Generator) -> None:
        for linear in (self.fc1, self.fc2):
            truncated_normal_(linear.weight, generator)
            nn.init.zeros_(linear.bias)

    def occupy(self, hidden: Tensor, output: Tensor) -> None:
        self.hidden_used |= hidden > 0
        self.output_used |= output > 0

    def protected(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every parameter with the mask of what must not move: 1 where min(a_i, a_j) of the units it joins is 1.
        The inputs of fc1 are the trunk's, which all tasks use."""
        yield self.fc1.weight, self.hidden_used[:, None].expand_as(self.fc1.weight)
        yield self.fc1.bias, self.hidden_used
        yield self.fc2.weight, self.output_used[:, None] & self.hidden_used[None, :]
        yield self.fc2.bias, self.output_used


class Adapter(nn.Module):
    """The first bottleneck and its wings, which share the output gate."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.dim = dim
        self.bottlenecks: Modules[Bottleneck] = Modules([Bottleneck(dim, width)])

    def forward(self, u: Tensor, gates: tuple[list[Tensor], Tensor] | None = None) -> Tensor:
        if gates is None:
            return sum((part.fc2(F.relu(part.fc1(u))) for part in self.bottlenecks), u)
        # A task has hidden gates for the bottlenecks that existed when it began: younger wings are not evaluated.
        weight1, bias1, weight2, bias2 = self._side_by_side(len(gates[0]))
        # relu(g1 ⊙ z) = g1 ⊙ relu(z), so both gates go into the second matrix, which is far smaller than what it is
        # applied to; and a gate that is closed still gets its gradient.
        hidden, output = torch.cat(gates[0]), gates[1]
        gated = output[:, None] * weight2 * hidden
        return F.linear(F.linear(u, weight1, bias1).relu_(), gated, output * bias2).add_(u)

    def _side_by_side(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weight and bias of fc1 and fc2 of the first bottlenecks as one: several small products take longer than a
        larger one."""
        parts = [self.bottlenecks[index] for index in range(count)]
        if count == 1:
            return parts[0].fc1.weight, parts[0].fc1.bias, parts[0].fc2.weight, parts[0].fc2.bias
        return (
            torch.cat([part.fc1.weight for part in parts]),
            torch.cat([part.fc1.bias for part in parts]),
            torch.cat([part.fc2.weight for part in parts], 1),
            torch.stack([part.fc2.bias for part in parts]).sum(0),
        )

    @property
    def widths(self) -> list[int]:
        return [bottleneck.width for bottleneck in self.bottlenecks]

    @property
    def free(self) -> float:
        """The share of hidden units that no finished task uses."""
        used = sum(int(bottleneck.hidden_used.sum()) for bottleneck in self.bottlenecks)
        return 1 - used / sum(self.widths)


class Adapters(nn.Module):
    """Everything trained between the trunk and the heads, for all tasks.

    >>> from oarlock.nets.trunk import load_trunk
    >>> trunk = load_trunk("vit_pico")
    >>> adapters = Adapters(trunk, width=8, adapt_last=2)
    >>> adapters.begin_task(torch.Generator().manual_seed(0))
    >>> tokens = adapters.below(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    >>> adapters(tokens, task=0).shape
    torch.Size([2, 192])
    """

    def __init__(self, trunk: Trunk, width: int, adapt_last: int | None = None, bf16: bool = False) -> None:
        super().__init__()
        self.bf16 = bf16
        stages = len(trunk.stages) if adapt_last is None else min(adapt_last, len(trunk.stages))
        self.frozen_stages = len(trunk.stages) - stages
        self._trunk = (trunk,)  # in a tuple, so that its tensors are not counted as ours
        self.layers: Modules[Adapter] = Modules(Adapter(dim, width) for dim in trunk.sites(self.frozen_stages))
        self.norms: Modules[TaskNorms] = Modules()
        self.gates: Modules[Gates] = Modules()

    @property
    def trunk(self) -> Trunk:
        return self._trunk[0]

    def reset(self, generator: torch.Generator) -> None:
        """Initial values of the shared matrices."""
        for layer in self.layers:
            layer.bottlenecks[0].reset(generator)

    # -- tasks ---------------------------------------------------------------------------------------------

    def begin_task(self, generator: torch.Generator, grow_below: float = 0.0, wing: int = 0) -> None:
        """Norms as pre-trained, fresh gates, and a wing wherever less than `grow_below` is still free."""
        if not self.gates:
            self.reset(generator)
        elif grow_below:
            for layer in self.layers:
                if layer.free < grow_below:
                    self._add_wing(layer, wing).reset(generator)
        self._add_task()
        self.gates[-1].reset(generator)

    def finish_task(self) -> None:
        """Make the newest task's gates binary and protect what they open."""
        gates = self.gates[-1]
        gates.finish()
        self.norms[-1].requires_grad_(False)
        for layer, (hidden, output) in zip(self.layers, gates.values(1.0, 1.0), strict=True):
            for bottleneck, mask in zip(layer.bottlenecks, hidden, strict=True):
                bottleneck.occupy(mask, output)

    def task_weights(self) -> list[nn.Parameter]:
        """What the newest task trains besides its gates: the shared matrices (where free) and its norms."""
        return [*self.layers.parameters(), *self.norms[-1].parameters()]

    def sparsity(self, s: float, s_max: float) -> Tensor:
        """HAT's regulariser for the newest task."""
        soft, used = [], []
        for layer, (hidden, output) in zip(self.layers, self.gates[-1].values(s, s_max), strict=True):
            soft += [*hidden, output]
            used += [*(b.hidden_used for b in layer.bottlenecks), layer.bottlenecks[0].output_used]
        return regulariser(soft, used)

    def free_per_layer(self) -> list[float]:
        return [layer.free for layer in self.layers]

    # -- passes --------------------------------------------------------------------------------------------

    def below(self, images: Tensor) -> Tensor:
        """Tokens where the first adapter begins; the same for all tasks, so they can be cached."""
        with self.arithmetic():
            return self.trunk.below(images, self.frozen_stages)

    def below_and_bare(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """These tokens, and the trunk's own features, without adapters: [B, views, D]."""
        with self.arithmetic():
            tokens, views = self.trunk.below_and_views(images, self.frozen_stages)
        return tokens, self.in_full(views)

    def forward(self, tokens: Tensor, task: int | None = None, s: float = 1.0, s_max: float = 1.0) -> Tensor:
        """Features of a task from the tokens `below` gave; s matters only while the task is being learned. Without a
        task: all gates open and the trunk's own norms, for methods that have one network for all."""
        norms = None if task is None else self.norms[task]
        gates = [None] * len(self.layers) if task is None else self.gates[task].values(s, s_max)

        def adapt(site: int, u: Tensor) -> Tensor:
            return self.layers[site](u, gates[site])

        with self.arithmetic():
            return self.in_full(self.trunk.adapted(tokens, self.frozen_stages, adapt, norms))

    def arithmetic(self) -> AbstractContextManager[Any]:
        """What numbers products of matrices are computed in; a model learns and answers in the same."""
        device = self.trunk.mean.device.type
        return torch.autocast(device, torch.bfloat16) if self.bf16 else nullcontext()

    def in_full(self, features: Tensor) -> Tensor:
        """Heads and distances are computed in full precision."""
        return features.float() if self.bf16 else features

    # -- rebuilding ----------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        return {
            "bottlenecks": [layer.widths for layer in self.layers],
            "tasks": [[len(widths) for widths in gates.hidden] for gates in self.gates],
        }

    def rebuild(self, description: dict[str, Any]) -> None:
        """Take the described shapes; the tensors come afterwards."""
        for counts in description["tasks"]:
            for layer, widths, count in zip(self.layers, description["bottlenecks"], counts, strict=True):
                while len(layer.bottlenecks) < count:
                    self._add_wing(layer, widths[len(layer.bottlenecks)])
            self._add_task()

    def _add_wing(self, layer: Adapter, width: int) -> Bottleneck:
        wing = Bottleneck(layer.dim, width).to(layer.bottlenecks[0].fc1.weight.device)
        layer.bottlenecks.append(wing)
        return wing

    def _add_task(self) -> None:
        device = self.trunk.mean.device
        gates = Gates([layer.widths for layer in self.layers], [layer.dim for layer in self.layers])
        self.norms.append(self.trunk.new_norms(self.frozen_stages).to(device))
        self.gates.append(gates.to(device))


class Protection:
    """Puts back, after every optimiser step, what finished tasks rely on: weight decay, momentum and Adam's
    state move weights whose gradient is zero."""

    def __init__(self, adapters: Adapters) -> None:
        self.kept = [
            (parameter, mask, parameter.detach().clone())
            for layer in adapters.layers
            for bottleneck in layer.bottlenecks
            for parameter, mask in bottleneck.protected()
            if mask.any()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, mask, value in self.kept:
            parameter.copy_(torch.where(mask, value, parameter))
