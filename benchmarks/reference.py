"""ROW in the style of its released code: the same batches and start values as ours, but nothing is kept or shared.

- Every pass begins with the pixels, takes the images through the whole trunk under one task, with the last attention
  over all tokens.
- Step 1 computes gradients for the frozen trunk too, and throws them away.
- Steps 2 and 3 compute the frozen features of every batch of every epoch anew (without gradients).
- After each task all test sets seen so far are evaluated under all tasks.
- A Mahalanobis distance is the diagonal of a matrix of all images against all images, made for each class.

Attention kernels, optimiser, batch sizes and the number of steps are ours. The distances under the bare trunk are our
own addition, which the released code does not have: they are computed as we do it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from oarlock.detectors.gaussians import MIN_DISTANCE
from oarlock.memory import at_random
from oarlock.methods._ood_heads import OwnAndForeign, TuneOodHeads
from oarlock.methods.oar import Oar, TrainWpHeadAndSeeBare
from oarlock.methods.row import TrainRowFeatures
from oarlock.nets.adapters import CachedActivations
from oarlock.nets.protectors.hat import GatedAdapter, Hat, anneal
from oarlock.nets.trunks import Trunk
from oarlock.nets.trunks.vit import Transformer
from oarlock.training import Loss, Phase, Step, TaskData


class WholePasses(Hat):
    """HAT whose every pass begins with the images."""

    def below(self, images: Tensor) -> Tensor:
        return images

    def forward(self, images: Tensor, task: int, fraction: float = 1.0) -> Tensor:
        trunk, s_max = self.trunk, self.config.s_max
        assert isinstance(trunk, Transformer)
        norms, gates = self.norms[task], self.gates[task].values(anneal(fraction, s_max), s_max)
        x = trunk.walk(trunk.embed(images), trunk.stages[: self.frozen_stages])
        for site, (_, body) in enumerate(chain(*trunk.stages[self.frozen_stages :])):
            x = x + _gated(self.layers[site], body(norms(site, x)), *gates[site])
        return trunk.pool(x, lambda pooled: norms(len(self.layers), pooled))


def _gated(adapter: GatedAdapter, u: Tensor, hidden: list[Tensor], output: Tensor, first: int) -> Tensor:
    """Gates multiply what the layers give."""
    change = 0
    for bottleneck, gate in zip(adapter.some(first, len(hidden)), hidden, strict=True):
        change = change + bottleneck.fc2(gate * torch.relu(bottleneck.fc1(u)))
    return u + output * change


class ReferenceRow(Oar):
    """Counts its passes: one for an image under one task, and one for an image under the bare trunk."""

    protector: WholePasses

    def __init__(self, trunk: Trunk, memory: int, config: Any) -> None:
        super().__init__(trunk, memory, config)
        self.protector = WholePasses(trunk, config)  # in place of the one that the options name
        self.passes = 0

    @classmethod
    def like(cls, row: Oar) -> "ReferenceRow":
        """A copy of what ours has learned so far."""
        copy = cls(row.trunk, row.budget, row.config)
        copy.rebuild(row.describe())
        copy.load_state_dict(row.state_dict())
        return copy

    def phases(self, task: TaskData) -> list[Phase]:
        head = self.ood_heads[task.index]
        return [
            ReferenceStep1(self, task, head),
            ReferenceStep2(self, task),
            ReferenceStep3(self, task, task.index + 1),
        ]

    def remember(self, task: TaskData) -> None:
        """Images and labels only."""
        kept, chosen = self.memory.choose(
            task.labels, sum(self.classes_per_task), at_random(task.generator("memory"))
        )
        self.memory.keep(kept)
        self.memory.add_images(task.images[chosen], task.labels[chosen] + self.class_slice(task.index).start)
        self._own = None

    def activations(self, images: Tensor, bare: bool = True) -> CachedActivations:
        return CachedActivations(self.protector, images)  # which are the images

    def encode_cached(
        self, activations: CachedActivations, sets: Sequence[int], rows: Tensor | None = None
    ) -> Tensor:
        return self.encode(activations.images if rows is None else activations.images[rows], sets)

    def encode_chunk(self, images: Tensor, sets: Sequence[int]) -> Tensor:
        own = [self.protector(images, task) for task in sets if task >= 0]
        bare = [index for index in sets if index < 0]
        self.passes += len(images) * (len(own) + bool(bare))
        if bare:
            _, seen = self.trunk.below_and_bare(images, 0)
            own = [*seen[:, bare].unbind(1), *own]
        return torch.stack(own, 1)

    def log_coefficients(self, encoded: Tensor) -> Tensor:
        nearest = []
        for gaussians, features in zip(self.gaussians, self.by_task(encoded), strict=True):
            whitened = gaussians.whiten(torch.eye(features.shape[1]))
            inverse = whitened @ whitened.T
            nearest.append(torch.stack([_distances(features, mean, inverse) for mean in gaussians.means], 1).amin(1))
        return -torch.stack(nearest, 1).clamp_min(MIN_DISTANCE).log()

    @torch.no_grad()
    def accuracies(self, test_sets: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
        """On each of the test sets (images and class numbers) seen so far, in percent, from the pixels."""
        found = []
        for images, numbers in test_sets:
            answers = self.scores(self.encode(images, self.feature_sets(len(self.classes_per_task)))).argmax(1)
            found.append(100 * float((answers == numbers).double().mean()))
        return found


class ReferenceStep1(TrainRowFeatures):
    """The same loss; the backward pass reaches down to the pixels."""

    def gradients(self, step: Step) -> Loss:
        with _gradients_for(self.method.trunk):
            return super().gradients(step)


class ReferenceStep2(TrainWpHeadAndSeeBare):
    head: Any  # a linear one, and then that with the network below it

    def prepare(self) -> None:
        self.features, self.labels = self.task.images, self.task.labels
        self.head = _HeadOnImages(self.row.protector, self.task.index, self.head)


class ReferenceStep3(TuneOodHeads):
    heads: list[Any]

    def prepare(self) -> None:
        method, memory = self.method, self.method.memory
        self.heads = [_HeadOnImages(method.protector, j, head) for j, head in enumerate(self.heads)]
        self.data = []
        for j, head in enumerate(self.heads):
            own = method.tasks_of(memory.labels) == j
            labels = memory.labels[own] - method.class_slice(j).start
            self.data.append(OwnAndForeign(head, memory.images[own], labels, memory.images[~own]))


class _HeadOnImages(nn.Module):
    """A head with the frozen network below it, whose features it makes each time it is asked."""

    def __init__(self, network: nn.Module, task: int, head: nn.Linear) -> None:
        super().__init__()
        self._network, self.task = (network,), task  # in a tuple, so that only the head is trained
        self.head, self.out_features = head, head.out_features

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self._network[0](images, self.task)
        return self.head(features)


@contextmanager
def _gradients_for(trunk: Trunk) -> Iterator[None]:
    """As if the trunk were trained; its gradients are gone at the end."""
    trunk.model.requires_grad_(True)
    try:
        yield
    finally:
        trunk.model.requires_grad_(False)
        trunk.model.zero_grad(set_to_none=True)


def _distances(features: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    centred = features - mean
    return (centred @ inverse @ centred.T).diagonal().clamp_min(0).sqrt()
