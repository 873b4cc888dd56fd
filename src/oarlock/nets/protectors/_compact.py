"""Adapters as prediction needs them: each task's as plain matrices, and all tasks in one pass.

Of a finished task only some units matter, under HAT those that it opened. Cut out, they are one small
bottleneck per site and task. Stacked over tasks, one batched product does what a loop over tasks would. Sums are done
in another order than a protector does them, so results agree to rounding; what is promised bit for bit is computed
there."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from oarlock.nets.adapters import AdaptedTrunk
from oarlock.nets.heads import Modules
from oarlock.nets.trunks import SiteFunction, TaskNorms

FOLD_UP_TO = 64  # (image, task) pairs in one folded pass on a CPU; with more, one task after the other is faster
FOLD_ON_DEVICE = 1024  # on other devices; a guess, not measured


class SiteWeights(NamedTuple):
    """Hold one task's bottleneck at one site, `u + relu(u·fc1 + bias1)·fc2 + bias2`: [D, w], [w], [w, D], [D]."""

    fc1: Tensor
    bias1: Tensor
    fc2: Tensor
    bias2: Tensor


class CompactAdapter(nn.Module):
    """Hold one site of all tasks, padded by zeros to the widest task's."""

    def __init__(self, tasks: Sequence[SiteWeights]) -> None:
        super().__init__()
        self.widths = [len(task.bias1) for task in tasks]
        width, dim, count = max(self.widths), len(tasks[0].bias2), len(tasks)
        like = tasks[0].fc1
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
        """Return the adapted values [tasks · B, …, D], one task's images after the other's; a task may come again."""
        where, width = torch.as_tensor(tasks), max(self.widths[task] for task in tasks)
        folded = u.reshape(len(where), -1, u.shape[-1])
        hidden = torch.baddbmm(self.bias1[where, :, :width], folded, self.fc1[where, :, :width]).relu_()
        return u + torch.baddbmm(self.bias2[where], hidden, self.fc2[where, :width]).view_as(u)


class CompactAdapters(nn.Module):
    """Compute the features of finished tasks, as their protector gives them, to rounding."""

    @torch.no_grad()
    def __init__(
        self, network: AdaptedTrunk, norms: Modules[TaskNorms], tasks: Sequence[Sequence[SiteWeights]]
    ) -> None:
        super().__init__()
        self._network = (network,)  # in a tuple, so that its tensors are not counted as ours
        self.norms = norms
        self.weights = _stacked([of_task.weight for of_task in norms])
        self.biases = _stacked([of_task.bias for of_task in norms])
        self.layers = nn.ModuleList(CompactAdapter(site) for site in zip(*tasks, strict=True))

    @torch.no_grad()
    def forward(self, activations: Tensor, tasks: Sequence[int], folded: bool | None = None) -> Tensor:
        """Return features [B, tasks, D] from the activations below the first adapter, in passes over several tasks or
        (not `folded`) over one each; without being told, the faster of the two on this kind of device."""
        if folded is None:
            most = FOLD_UP_TO if activations.device.type == "cpu" else FOLD_ON_DEVICE
            at_once = max(most // max(len(activations), 1), 1)
        else:
            at_once = len(tasks) if folded else 1
        several = [tasks[i : i + at_once] for i in range(0, len(tasks), at_once)]
        return torch.cat([self._all_under(activations, some) for some in several], 1)

    @torch.no_grad()
    def pairs(self, activations: Tensor, tasks: Tensor) -> Tensor:
        """Return features [B, D], with a task given for each image."""
        most = FOLD_UP_TO if activations.device.type == "cpu" else FOLD_ON_DEVICE
        parts = zip(activations.split(most), tasks.split(most), strict=True)
        return torch.cat([self._pass(images, each.tolist()) for images, each in parts])

    def _all_under(self, activations: Tensor, tasks: Sequence[int]) -> Tensor:
        features = self._pass(activations.repeat(len(tasks), *[1] * (activations.ndim - 1)), tasks)
        return features.view(len(tasks), -1, features.shape[1]).transpose(0, 1)

    def _pass(self, activations: Tensor, tasks: Sequence[int]) -> Tensor:
        """Of [tasks · B] images, as many of one task as of another."""

        def adapt(site: int, u: Tensor) -> Tensor:
            return self.layers[site](u, tasks)

        return self._network[0].adapted(activations, adapt, self._norms(tasks))

    def _norms(self, tasks: Sequence[int]) -> SiteFunction:
        if len(tasks) == 1:
            return self.norms[tasks[0]]
        where, any_task = torch.as_tensor(tasks), self.norms[0]

        def norm(index: int, x: Tensor) -> Tensor:
            plain = any_task.normalise(x).reshape(len(tasks), -1, x.shape[-1])
            weight, bias = self.weights[index][where], self.biases[index][where]
            return torch.addcmul(bias[:, None], plain, weight[:, None]).view_as(x)

        return norm


def _stacked(of_tasks: list[Any]) -> nn.ParameterList:
    """Return for every place that has norms the values of all tasks [tasks, D]."""
    places: Iterable[Any] = zip(*of_tasks, strict=True)
    return nn.ParameterList(nn.Parameter(torch.stack(list(place)), False) for place in places)
