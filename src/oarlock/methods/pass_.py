"""PASS: prototype augmentation and self-supervision (Zhu et al., CVPR 2021), without exemplars.

Every image is learned in four rotations as four classes, so that features are rich enough for classes to come; only
the upright one's outputs predict. An old class lives on as the mean of its features when it was learned: the head is
trained on such prototypes with Gaussian noise, and features are held near those of the network before the task.

Choices, from the authors' code: temperature 0.1, both weights 10, a batch of images with all its rotations and as
many prototypes as images, drawn with replacement; distillation by one Euclidean norm over the whole batch, neither
squared nor averaged; the noise's radius from the first task only. Ours: no other augmentation, so the earlier network
is asked once per image; a class's prototype is the mean over all its images (the authors drop the last batch); SGD at
0.001 for their Adam (logits divided by 0.1 make the head's steps 100 times larger: with our usual 0.03 training falls
apart); scores are divided by the temperature, as trained, which changes no decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.methods import method
from oarlock.methods._options import SharedConfig
from oarlock.methods._shared import SharedMethod, TrainShared
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Batch, Loss, Phase, Step, TaskData, accuracy

ROTATIONS = 4


@dataclass(frozen=True)
class PassConfig(SharedConfig):
    lr: float = option(0.001, least=0)
    temperature: float = option(0.1, least=1e-3)
    prototype_weight: float = option(10.0, least=0)
    distillation_weight: float = option(10.0, least=0)


@method("pass")
class Pass(SharedMethod):
    """Replay noisy prototypes of old classes, learn rotations as classes, distil features."""

    Config = PassConfig
    needs_pictures = True
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"lr": 0.001}, "c10-5t-mini": {"lr": 0.003}}
    paper = "Zhu et al., CVPR 2021"
    verified = "radius and prototypes by numpy; every term of the loss by hand; rotations turned by hand"
    needs_memory = False
    outputs_per_class = ROTATIONS
    config: PassConfig

    def __init__(self, trunk: Trunk, memory: int, config: PassConfig) -> None:
        super().__init__(trunk, memory, config)
        self.register_buffer("prototypes", torch.zeros(0, trunk.dim))
        self.register_buffer("radius", torch.zeros(()))
        self.prototypes: Tensor
        self.radius: Tensor

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        new = self.prototypes.new_zeros(task.classes, self.trunk.dim)
        self.prototypes = torch.cat([self.prototypes, new])

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainWithPrototypes(self, task), TakePrototypes(self, task)]

    def scores(self, encoded: Tensor) -> Tensor:
        return super().scores(encoded)[:, ::ROTATIONS] / self.config.temperature

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.prototypes = self.prototypes.new_zeros(sum(self.classes_per_task), self.trunk.dim)


class TrainWithPrototypes(TrainShared):
    """Train by cross-entropy over classes × rotations; from the second task on also on prototypes, with features
    held in place."""

    mean_over_rows = False  # prototypes are drawn, whatever the batch
    method: Pass
    config: PassConfig

    def start(self) -> None:
        if self.old:
            self.method.keep_copy("before")

    def training_set(self) -> tuple[Tensor, Tensor]:
        return rotated(*super().training_set())

    def prepare(self) -> None:
        super().prepare()
        if self.old:
            self.features_before = self.activations.through(self.method.copies["before"].adapters)

    def batches(self, random: torch.Generator) -> list[Batch]:
        upright = len(self.labels) // ROTATIONS
        images = torch.randperm(upright, generator=random).split(self.config.batch)
        return [(torch.cat([rows + k * upright for k in range(ROTATIONS)]),) for rows in images]

    def loss(self, step: Step) -> Loss:
        (rows,) = step.batch
        features, rows = self.network.adapters(self.activations[rows]), rows.to(self.labels.device)
        logits, labels = self.network.head(features), self.labels[rows]
        value = self.cross_entropy(logits, labels)
        if self.old:
            noisy, classes = self.noisy_prototypes(len(rows) // ROTATIONS, step.generator)
            recall = self.cross_entropy(self.network.head(noisy), ROTATIONS * classes)
            drift = torch.dist(features, self.features_before[rows])
            value = value + self.config.prototype_weight * recall + self.config.distillation_weight * drift
        return Loss(value, accuracy(logits, labels))

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits / self.config.temperature, labels)

    def noisy_prototypes(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return prototypes of old classes drawn at random, moved by noise, and which classes they are."""
        classes = torch.randint(self.old, (count,), generator=random).to(self.method.device)
        noise = torch.randn(count, self.method.trunk.dim, generator=random).to(self.method.device)
        return self.method.prototypes[classes] + self.method.radius * noise, classes

    def finish(self) -> None:
        self.method.drop_copies()


class TakePrototypes(Phase):
    """Take the means of the task's classes, and after the first task how far features scatter around them."""

    name = "prototypes"

    def __init__(self, method: Pass, task: TaskData) -> None:
        self.method, self.task = method, task

    def start(self) -> None:
        method, labels = self.method, self.task.labels.to(self.method.device)
        features = method.encode(self.task.images, [0])[:, 0]
        classes = [features[labels == label] for label in range(self.task.classes)]
        method.prototypes[method.class_slice(self.task.index)] = torch.stack([own.mean(0) for own in classes])
        if self.task.index == 0:
            method.radius = torch.stack([variance(own) for own in classes]).mean().sqrt()


def rotated(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return all images upright, then all turned once, twice and three times; rotation k of class c is class 4c + k.

    >>> rotated(torch.zeros(2, 3, 8, 8), torch.tensor([0, 5]))[1].tolist()
    [0, 20, 1, 21, 2, 22, 3, 23]
    """
    turned = torch.cat([torch.rot90(images, k, (2, 3)) for k in range(ROTATIONS)])
    return turned, torch.cat([ROTATIONS * labels + k for k in range(ROTATIONS)])


def variance(features: Tensor) -> Tensor:
    """Return the trace of the covariance over the number of dimensions; 0 for a single image."""
    return (features - features.mean(0)).square().sum() / (max(len(features) - 1, 1) * features.shape[1])
