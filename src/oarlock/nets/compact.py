"""Adapters as prediction needs them: closed gates cut out, and all tasks in one pass.

Of a finished task only the open units matter. Cut out and put side by side, the units of a bottleneck and its wings
are one small bottleneck per task, with the output gate inside its second matrix. Stacked over tasks, one batched
product does what a loop over tasks would. Sums are done in another order than in `Adapters`, so results agree to
rounding; what is promised bit for bit is computed there.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oarlock.nets.adapters import Adapter, Adapters
from oarlock.nets.base import At, Trunk

FOLD_UP_TO = 64  # (image, task) pairs in one folded pass on a CPU; with more, one task after the other is faster
FOLD_ON_DEVICE = 1024  # on other devices; a guess, not measured


class CompactAdapter(nn.Module):
    """One adapter of all tasks: u + fc2_t(relu(fc1_t(u))) with the open units of task t, padded by zeros to the
    largest task's."""

    def __init__(self, adapter: Adapter, gates: list[tuple[list[Tensor], Tensor]]) -> None:
        super().__init__()
        tasks = [_open_units(adapter, *of_task) for of_task in gates]
        self.widths = [len(bias) for _, bias, _, _ in tasks]
        width, dim, count = max(self.widths), adapter.dim, len(tasks)
        like = tasks[0][0]
        self.register_buffer("fc1", like.new_zeros(count, dim, width))
        self.register_buffer("bias1", like.new_zeros(count, 1, width))
        self.register_buffer("fc2", like.new_zeros(count, width, dim))
        self.register_buffer("bias2", like.new_zeros(count, 1, dim))
        self.fc1: Tensor
        self.bias1: Tensor
        self.fc2: Tensor
        self.bias2: Tensor
        for task, (fc1, bias1, fc2, bias2) in enumerate(tasks):
            self.fc1[task, :, : len(bias1)] = fc1
            self.bias1[task, :, : len(bias1)] = bias1
            self.fc2[task, : len(bias1)] = fc2
            self.bias2[task] = bias2

    def forward(self, u: Tensor, tasks: Sequence[int]) -> Tensor:
        """[tasks · B, …, D], one task's images after the other's; a task may come again."""
        where, width = torch.as_tensor(tasks), max(self.widths[task] for task in tasks)
        folded = u.reshape(len(where), -1, u.shape[-1])
        hidden = torch.baddbmm(self.bias1[where, :, :width], folded, self.fc1[where, :, :width]).relu_()
        return u + torch.baddbmm(self.bias2[where], hidden, self.fc2[where, :width]).view_as(u)


class CompactAdapters(nn.Module):
    """The features of finished tasks, as `Adapters` gives them, to rounding.

    >>> from oarlock.nets.trunk import load_trunk
    >>> adapters = Adapters(load_trunk("vit_pico"), width=8, adapt_last=2)
    >>> for task in range(3):
    ...     adapters.begin_task(torch.Generator().manual_seed(task))
    ...     adapters.finish_task()
    >>> tokens = adapters.below(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    >>> compact = CompactAdapters(adapters)
    >>> compact(tokens, [0, 2]).shape
    torch.Size([2, 2, 192])
    >>> torch.allclose(compact(tokens, [2])[:, 0], adapters(tokens, 2), atol=1e-5)
    True
    """

    @torch.no_grad()
    def __init__(self, adapters: Adapters) -> None:
        super().__init__()
        self._trunk = (adapters.trunk,)
        self.frozen_stages = adapters.frozen_stages
        self.arithmetic, self.in_full = adapters.arithmetic, adapters.in_full
        self.norms = adapters.norms
        self.weights = _stacked([norms.weight for norms in self.norms])
        self.biases = _stacked([norms.bias for norms in self.norms])
        gates = [of_task.values(1.0, 1.0) for of_task in adapters.gates]
        self.layers = nn.ModuleList(
            CompactAdapter(layer, [of_task[site] for of_task in gates]) for site, layer in enumerate(adapters.layers)
        )

    @property
    def trunk(self) -> Trunk:
        return self._trunk[0]

    @torch.no_grad()
    def forward(self, tokens: Tensor, tasks: Sequence[int], folded: bool | None = None) -> Tensor:
        """Features [B, tasks, D] from the tokens below the first adapter, in passes over several tasks or (not
        `folded`) over one each; without being told, the faster of the two on this kind of device."""
        if folded is None:
            most = FOLD_UP_TO if tokens.device.type == "cpu" else FOLD_ON_DEVICE
            at_once = max(most // max(len(tokens), 1), 1)
        else:
            at_once = len(tasks) if folded else 1
        several = [tasks[i : i + at_once] for i in range(0, len(tasks), at_once)]
        return torch.cat([self._all_under(tokens, some) for some in several], 1)

    @torch.no_grad()
    def pairs(self, tokens: Tensor, tasks: Tensor) -> Tensor:
        """Features [B, D] with a task for each image."""
        most = FOLD_UP_TO if tokens.device.type == "cpu" else FOLD_ON_DEVICE
        parts = zip(tokens.split(most), tasks.split(most), strict=True)
        return torch.cat([self._pass(images, each.tolist()) for images, each in parts])

    def _all_under(self, tokens: Tensor, tasks: Sequence[int]) -> Tensor:
        features = self._pass(tokens.repeat(len(tasks), *[1] * (tokens.ndim - 1)), tasks)
        return features.view(len(tasks), -1, features.shape[1]).transpose(0, 1)

    def _pass(self, tokens: Tensor, tasks: Sequence[int]) -> Tensor:
        """Of [tasks · B] images, as many of one task as of another."""

        def adapt(site: int, u: Tensor) -> Tensor:
            return self.layers[site](u, tasks)

        with self.arithmetic():
            return self.in_full(self.trunk.adapted(tokens, self.frozen_stages, adapt, self._norms(tasks)))

    def _norms(self, tasks: Sequence[int]) -> At:
        if len(tasks) == 1:
            return self.norms[tasks[0]]
        where, any_task = torch.as_tensor(tasks), self.norms[0]

        def norm(index: int, x: Tensor) -> Tensor:
            plain = any_task.normalise(x).reshape(len(tasks), -1, x.shape[-1])
            weight, bias = self.weights[index][where], self.biases[index][where]
            return torch.addcmul(bias[:, None], plain, weight[:, None]).view_as(x)

        return norm


def _stacked(of_tasks: list[Any]) -> nn.ParameterList:
    """For every place that has norms, the values of all tasks [tasks, D]."""
    return nn.ParameterList(nn.Parameter(torch.stack(list(place)), False) for place in zip(*of_tasks, strict=True))


def _open_units(adapter: Adapter, hidden: list[Tensor], output: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """fc1 [D, w], its bias, fc2 [w, D] and its bias, of what one task has opened. A wing younger than the task is not
    among its gates."""
    parts = list(zip(adapter.bottlenecks, [gate > 0 for gate in hidden], strict=False))
    return (
        torch.cat([part.fc1.weight[open_] for part, open_ in parts]).T,
        torch.cat([part.fc1.bias[open_] for part, open_ in parts]),
        torch.cat([part.fc2.weight[:, open_] for part, open_ in parts], 1).T * output,
        sum(part.fc2.bias for part, _ in parts) * output,
    )
