"""HAL: hindsight anchor learning (Chaudhry et al., AAAI 2021).

Replay, and one anchor per class: an image of it on which much would be forgotten. A step first asks what it would do
to the answers at the anchors (a virtual step, to θ̃) and is then taken with that change as a penalty:
CE(θ; batch and memory) + λ · mean over anchors of ‖f_θ(anchor) − f_θ̃(anchor)‖².
A class's anchor e is found once its task is learned, by ascending ℓ(θ_M; e) − ℓ(θ; e) − γ‖φ(e) − φ_y‖²: θ_M is θ
fine-tuned on the memory of earlier tasks, which is forgetting in small; φ_y is the class's running mean of features.

Choices: θ_M by plain SGD on the memory before the new task enters it (paper; in Mammoth it has entered); in the
first task θ_M = θ and only φ_y pulls. φ_y is the class's (authors' code; Mammoth: the task's), the distance squared
(paper; authors' code: cosine). Anchors begin at the class's mean image, move by Adam, 1/1000 of a pixel's range per
step (authors' code; Mammoth: SGD from noise), and stay images, 0 to 255. The penalty is the authors' whole: λ =
0.1, a sum over outputs and a mean over anchors, differentiated through the virtual step; only that all anchors are
asked in every step, where their code draws ten. Mammoth takes the mean over outputs too and holds θ̃ fixed, which
asks θ to follow the step at the anchors instead of avoiding it; its λ belongs to that. β = 0.5 and γ = 0.1 are the
same in both. Anchors come on top of the memory's budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD, Adam, Optimizer

from oarlock.methods import method
from oarlock.methods._options import SharedConfig
from oarlock.methods._shared import Remember, SharedMethod, TrainBesideMemory, TrainShared
from oarlock.nets.adapters import CachedActivations
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.training import Batch, Loss, Phase, Step, TaskData, accuracy

WHITE = 255


@dataclass(frozen=True)
class HalConfig(SharedConfig):
    lamb: float = option(0.1, least=0)  # λ, weight of what changes at the anchors
    beta: float = option(0.5, least=0, most=1)  # decay of the classes' mean features, by batch
    gamma: float = option(0.1, least=0)  # weight of an anchor's distance to them
    hindsight_epochs: int = option(1, least=0)  # of fine-tuning on the memory
    anchor_epochs: int = option(100, least=0)  # steps of all new anchors
    anchor_lr: float = option(0.001, least=0)  # of a pixel's range


@method("hal")
class Hal(SharedMethod):
    """Replay, and hold anchors: images whose answers a step must not change."""

    Config = HalConfig
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"c10-5t-mini": {"lr": 0.01}}
    paper = "Chaudhry et al., AAAI 2021"
    verified = "gradient by finite differences; plain replay bit for bit at λ = 0; anchors raise the forgetting loss"
    images = ("memory", "anchors")
    needs_pictures = True
    config: HalConfig

    def __init__(self, trunk: Trunk, memory: int, config: HalConfig) -> None:
        super().__init__(trunk, memory, config)
        self.register_buffer("anchors", trunk.blank(0).float())  # of all classes
        self.register_buffer("mean_features", torch.zeros(0, trunk.dim))  # of the newest task's classes
        self.anchors: Tensor
        self.mean_features: Tensor

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self._make_room()

    def phases(self, task: TaskData) -> list[Phase]:
        return [TrainAnchored(self, task), TuneOnMemory(self, task), FindAnchors(self, task), Remember(self, task)]

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self._make_room()

    def _make_room(self) -> None:
        new = self.anchors.new_zeros(sum(self.classes_per_task) - len(self.anchors), *self.anchors.shape[1:])
        self.anchors = torch.cat([self.anchors, new])
        self.mean_features = self.mean_features.new_zeros(
            sum(self.classes_per_task[-1:]), self.mean_features.shape[1]
        )


class TrainAnchored(TrainBesideMemory):
    """Train on the task's images and the memory's, with the answers to anchors held in place."""

    mean_over_rows = False  # what anchors are held against is a step with the whole batch
    method: Hal
    config: HalConfig

    def prepare(self) -> None:
        super().prepare()
        self.anchors = CachedActivations(self.network.adapters, self.method.anchors[: self.old])

    def loss(self, step: Step) -> Loss:
        rows, *others = step.batch
        activations, labels = self.activations[rows], self.labels[rows.to(self.labels.device)]
        for replay in others:
            activations = torch.cat([activations, self.replay[replay]])
            labels = torch.cat([labels, self.replay_labels[replay.to(labels.device)]])
        features = self.network.adapters(activations)
        own, classes = features[: len(rows)].detach(), labels[: len(rows)] - self.old
        for y in classes.unique():
            self.method.mean_features[y].lerp_(own[classes == y].mean(0), 1 - self.config.beta)
        logits = self.network.head(features)
        return Loss(F.cross_entropy(logits, labels), accuracy(logits, labels))

    def gradients(self, step: Step) -> Loss:
        if not self.old:
            return super().gradients(step)
        names, theta = zip(*self.network.named_parameters(), strict=True)
        anchors = self.anchors[torch.arange(self.old)]
        with sdpa_kernel(SDPBackend.MATH):  # the other kinds of attention cannot be differentiated twice
            loss = self.loss(step)
            slopes = torch.autograd.grad(loss.value, theta, create_graph=True)
            stepped = [p - self.config.lr * slope for p, slope in zip(theta, slopes, strict=True)]
            after_step = functional_call(self.network, dict(zip(names, stepped, strict=True)), (anchors,))
            total = loss.value + self.config.lamb * change(self.network(anchors), after_step)
            total.backward()
        return loss._replace(value=total)


class TuneOnMemory(TrainShared):
    """Train θ_M: a copy of the network, fine-tuned on what the memory holds of earlier tasks."""

    name = "hindsight"
    method: Hal

    def __init__(self, hal: Hal, task: TaskData) -> None:
        super().__init__(hal, task)
        self.epochs = hal.config.hindsight_epochs if task.index else 0

    def start(self) -> None:
        self.method.keep_copy("hindsight")

    def training_set(self) -> tuple[Tensor, Tensor]:
        return self.method.memory.images, self.method.memory.labels

    def prepare(self) -> None:
        super().prepare()
        self.network = self.method.copies["hindsight"].requires_grad_()

    def optimiser(self) -> Optimizer:
        return SGD(self.network.parameters(), self.config.lr)


class FindAnchors(TrainShared):
    """Find the anchors of the task's classes, while networks stay as they are."""

    name = "anchors"
    mean_over_rows = False  # what is trained are images
    method: Hal
    config: HalConfig

    def __init__(self, hal: Hal, task: TaskData) -> None:
        super().__init__(hal, task)
        self.epochs = hal.config.anchor_epochs

    def start(self) -> None:
        images, labels = self.task.images.float(), self.task.labels
        self.method.anchors[self.old :] = torch.stack([images[labels == y].mean(0) for y in range(self.task.classes)])

    def prepare(self) -> None:
        self.anchors = nn.Parameter(self.method.anchors[self.old :])  # the same memory, so checkpoints have it
        self.labels = torch.arange(self.old, len(self.method.anchors), device=self.anchors.device)

    def optimiser(self) -> Optimizer:
        return Adam([self.anchors], WHITE * self.config.anchor_lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [(torch.arange(len(self.labels)),)]

    def loss(self, step: Step) -> Loss:
        """Return what is ascended, with its sign turned; anchors have no influence on each other."""
        activations = self.network.adapters.below(self.anchors)
        features = self.network.adapters(activations)
        now, later = self.network.head(features), self.method.copies["hindsight"](activations)
        lost, kept = (F.cross_entropy(logits, self.labels, reduction="sum") for logits in (later, now))
        distance = (features - self.method.mean_features).square().sum()
        return Loss(kept - lost + self.config.gamma * distance, accuracy(now, self.labels))

    def gradients(self, step: Step) -> Loss:
        loss = self.loss(step)
        (self.anchors.grad,) = torch.autograd.grad(loss.value, self.anchors)
        return loss

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        self.anchors.clamp_(0, WHITE)

    def finish(self) -> None:
        self.method.drop_copies()


def change(before: Tensor, after: Tensor) -> Tensor:
    """Return the squared length of what changes in the answers, on average over anchors.

    >>> change(torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 2.0]]), torch.zeros(2, 3))
    tensor(4.5000)
    """
    return (before - after).square().sum(1).mean()
