"""Learning from few images: other looks at them, a trunk tuned to the first of them, and heads that begin as the
discriminant."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from oarlock.caches import joined
from oarlock.data.augmentation import look_again
from oarlock.detectors.pooled import PooledGaussians
from oarlock.nets.adapters import CHUNK
from oarlock.training import Batch, Loss, Optimisation, Step, TaskData, accuracy, shuffled

if TYPE_CHECKING:
    from oarlock.methods.oar import Oar


class TuneTrunk(Optimisation):
    """Tune the trunk to the first task, and a head beside it that begins as the discriminant: after that, training
    has only to improve on what the trunk knows."""

    name = "trunk"
    batch = 32

    def __init__(self, oar: "Oar", task: TaskData) -> None:
        self.oar, self.task, self.config = oar, task, oar.config
        self.head = oar.wp_heads[0]  # which begins anew afterwards
        self.looks = oar.config.looks
        self.epochs = math.ceil(self.config.tune_steps * self.batch / len(task.images))
        self.stages = max(len(oar.trunk_as_given.stages) - self.config.tune_last, 0)
        self.activations: Tensor | None = None

    def start(self) -> None:
        self.oar.tuning.begin(self.oar.trunk_as_given, self.stages)
        self.prepare()
        labels = self.task.labels.to(self.oar.device).repeat(self.looks)
        with torch.no_grad():
            features = torch.cat([self.features(rows) for rows in torch.arange(len(labels)).split(CHUNK)])
            start_as_discriminant(self.head, features, labels, self.looks)

    def prepare(self) -> None:
        if self.activations is None:
            trunk = self.oar.trunk_as_given
            seen = (chunk for look in all_looks(self.task, self.looks) for chunk in look.split(CHUNK))
            with torch.no_grad():
                below = (trunk.below(chunk.to(self.oar.device), self.stages) for chunk in seen)
                self.activations = joined(below, self.looks * len(self.task.images))
            self.trunk = self.oar.tuning.trainable(trunk)

    def features(self, rows: Tensor) -> Tensor:
        """Return features of some of all looks, as the trunk is at the moment."""
        assert self.activations is not None
        activations = self.activations[rows.to(self.activations.device)].to(self.oar.device)
        return self.trunk.adapted(activations, self.stages, lambda _, x: x, None)

    def optimiser(self) -> Optimizer:
        return AdamW([*self.oar.tuning.parameters(), *self.head.parameters()], self.config.tune_lr)

    def rate(self, done: float) -> float:
        """Return a rate that rises for three tenths of the steps and falls for the rest (Smith and Topin, 2019)."""
        return _half_wave(done / 0.3) if done < 0.3 else _half_wave((1 - done) / 0.7)

    def batches(self, random: torch.Generator) -> list[Batch]:
        rows = torch.cat(shuffled(len(self.task.images), self.batch, random))
        look = torch.randint(self.looks, rows.shape, generator=random)
        return [(part,) for part in (look * len(rows) + rows).split(self.batch)]

    def loss(self, step: Step) -> Loss:
        (rows,) = step.batch
        labels = self.task.labels[rows % len(self.task.images)].to(self.oar.device)
        logits = self.head(self.features(rows))
        return Loss(F.cross_entropy(logits, labels, label_smoothing=0.1), accuracy(logits, labels))

    def gradients(self, step: Step) -> Loss:
        loss = super().gradients(step)
        nn.utils.clip_grad_norm_([*self.oar.tuning.parameters(), *self.head.parameters()], 1.0)
        return loss

    def finish(self) -> None:
        self.oar.tuning.finish()
        self.oar.stand_on_tuned()


def all_looks(task: TaskData, looks: int) -> Iterator[Tensor]:
    """Return the task's images, and as often as is wanted another look at them all."""
    yield task.images
    yield from further_looks(task, looks)


def further_looks(task: TaskData, looks: int) -> Iterator[Tensor]:
    for number in range(1, looks):
        yield look_again(task.images, task.generator("look", number))


def start_as_discriminant(head: nn.Linear, features: Tensor, labels: Tensor, looks: int) -> None:
    """Make a head the linear discriminant of some features, as sure of itself as fits their labels best."""
    classes = head.out_features
    gaussians = PooledGaussians(features.shape[1]).to(features.device)
    gaussians.add(features, labels, classes, looks)
    weight = gaussians.directions
    bias = -(weight * (gaussians.means + gaussians.means.mean(0))).sum(1) / 2
    logits = gaussians.discriminants(features)
    scales = [2.0**power for power in range(-10, 1)]
    scale = min(scales, key=lambda scale: float(F.cross_entropy(scale * logits, labels, label_smoothing=0.1)))
    head.weight.copy_(scale * weight)
    head.bias.copy_(scale * bias)


def _half_wave(share: float) -> float:
    """From 0 to 1 and level at both ends."""
    return (1 - math.cos(math.pi * share)) / 2
