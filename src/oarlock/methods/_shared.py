"""What methods with one network for all tasks share: training it, teachers, and filling the memory."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.caches import joined
from oarlock.memory import at_random, herding
from oarlock.methods._base import Method
from oarlock.methods._options import SharedConfig
from oarlock.nets.adapters import Adapters, CachedActivations
from oarlock.nets.heads import GrowingHead, NamedModules
from oarlock.nets.trunks import Trunk
from oarlock.schema import Check, list_of, text
from oarlock.training import Batch, Loss, Optimisation, Phase, Step, TaskData, accuracy, shuffled, with_replay


class SharedMethod(Method):
    """Share one network: what is learned later moves what was learned before, so no features are kept."""

    features_frozen = False
    outputs_per_class: ClassVar[int] = 1
    described: ClassVar[Mapping[str, Check]] = {**Method.described, "copies": list_of(text(100), most=10)}
    config: SharedConfig

    def __init__(self, trunk: Trunk, memory: int, config: SharedConfig) -> None:
        super().__init__(trunk, memory, config)
        self.network = Network(trunk, config)
        self.copies: NamedModules[Network] = NamedModules()  # earlier states of the network, while a task needs them

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        if task.index == 0:
            self.network.adapters.reset(task.generator("adapters"))
        self.network.head.grow(task.classes * self.outputs_per_class, task.generator("head"))

    def feature_sets(self, tasks: int) -> range:
        return range(1)

    def encode_chunk(self, images: Tensor, sets: Sequence[int]) -> Tensor:
        adapters = self.network.adapters
        return adapters(adapters.below(images))[:, None]

    def activations(self, images: Tensor) -> CachedActivations:
        return CachedActivations(self.network.adapters, images)

    def encode_cached(self, activations: CachedActivations, sets: Sequence[int]) -> Tensor:
        return activations.through(self.network.adapters)[:, None]

    def scores(self, encoded: Tensor) -> Tensor:
        return self.network.head(encoded[:, 0])

    def keep_copy(self, name: str) -> None:
        """Keep a copy of the network as it is now, until `drop_copies`; it is part of checkpoints."""
        self.copies[name] = copy.deepcopy(self.network).requires_grad_(False)

    def drop_copies(self) -> None:
        self.copies = NamedModules()

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "copies": list(self.copies)}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.network.head.grow(sum(self.classes_per_task) * self.outputs_per_class, torch.Generator())
        for name in description["copies"]:
            self.keep_copy(name)


class TrainShared(Optimisation):
    """Train adapters and head by cross-entropy over all classes seen, on the task's own images; subclasses may
    choose other images or another objective."""

    name = "training"
    mean_over_rows = True

    def __init__(self, method: SharedMethod, task: TaskData) -> None:
        self.method, self.task, self.config = method, task, method.config
        self.network = method.network
        self.epochs = self.config.epochs
        self.old = method.class_slice(task.index).start  # classes before the task's

    def training_set(self) -> tuple[Tensor, Tensor]:
        """Return images, and the numbers of their classes among all classes."""
        return self.task.images, self.task.labels + self.old

    def prepare(self) -> None:
        images, labels = self.training_set()
        self.activations, self.labels = (
            CachedActivations(self.network.adapters, images),
            labels.to(self.method.device),
        )

    def optimiser(self) -> Optimizer:
        return self.config.new_optimiser(self.network.parameters(), self.config.lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return [(rows,) for rows in shuffled(len(self.labels), self.config.batch, random)]

    def loss(self, step: Step) -> Loss:
        rows = step.batch[0]
        logits, rows = self.logits(rows), rows.to(self.labels.device)
        labels = self.labels[rows]
        return Loss(self.objective(logits, labels, rows), accuracy(logits, labels))

    def logits(self, rows: Tensor) -> Tensor:
        return self.network(self.activations[rows])

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)


class TrainWithMemory(TrainShared):
    """Train on the task's images and the memory's, pooled."""

    def training_set(self) -> tuple[Tensor, Tensor]:
        images, labels = super().training_set()
        memory = self.method.memory
        pooled = torch.cat([labels, memory.labels.cpu()])
        return joined([images, memory.images.cpu()], len(pooled)), pooled


class TrainWithTeacher(TrainWithMemory):
    """Train on the pooled images with a teacher: the network as it was before the task."""

    def start(self) -> None:
        self.method.keep_copy("before")

    def prepare(self) -> None:
        super().prepare()
        self.taught = self.activations.through(self.method.copies["before"])


class TrainBesideMemory(TrainShared):
    """Train on batches of the task's images, each with a batch of the memory's beside it."""

    def prepare(self) -> None:
        super().prepare()
        memory = self.method.memory
        self.replay, self.replay_labels = CachedActivations(self.network.adapters, memory.images), memory.labels

    def batches(self, random: torch.Generator) -> list[Batch]:
        return with_replay(shuffled(len(self.labels), self.config.batch, random), len(self.method.memory), random)


class Remember(Phase):
    """Make room in the memory and take in the task's images, at random or by herding on the network's features."""

    name = "memory"

    def __init__(self, method: SharedMethod, task: TaskData, herd: bool = False) -> None:
        self.method, self.task, self.herd = method, task, herd

    def start(self) -> None:
        method, task = self.method, self.task
        order = herding(method.encode(task.images, [0])[:, 0]) if self.herd else at_random(task.generator("memory"))
        kept, chosen = method.memory.choose(task.labels, sum(method.classes_per_task), order)
        method.memory.keep(kept)
        method.memory.add_images(task.images[chosen], task.labels[chosen] + method.class_slice(task.index).start)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of softened answers with a teacher's, mean over the batch.

    >>> same = torch.tensor([[1.0, 0.0]])
    >>> torch.isclose(distillation(same, same, 1.0), torch.distributions.Categorical(logits=same).entropy())
    tensor([True])
    """
    return F.cross_entropy(student / temperature, (teacher / temperature).softmax(1))


class Network(nn.Module):
    """Hold what methods train whose tasks share everything: adapters on the trunk's own norms, and one head that
    grows. A teacher is a copy of it.

    >>> from oarlock.nets.trunks import load_trunk
    >>> network = Network(load_trunk("vit_pico"), SharedConfig(width=8, adapt_last=1))
    >>> network.head.grow(3, torch.Generator().manual_seed(0))
    >>> network(network.adapters.below(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))).shape
    torch.Size([2, 3])
    """

    def __init__(self, trunk: Trunk, config: SharedConfig) -> None:
        super().__init__()
        self.adapters = Adapters(trunk, config)
        self.head = GrowingHead(trunk.dim)

    def forward(self, activations: Tensor) -> Tensor:
        """Return logits from the activations below the first adapter."""
        return self.head(self.adapters(activations))

    def reset(self, generator: torch.Generator) -> None:
        """Give everything its initial values."""
        self.adapters.reset(generator)
        self.head.reset(generator)
