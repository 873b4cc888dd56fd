"""What methods with one network for all tasks share: training it, teachers, and filling the memory."""

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from oarlock.caches import joined
from oarlock.memory import at_random, herding
from oarlock.methods.base import Method
from oarlock.methods.config import AdapterConfig
from oarlock.nets.modules import NamedModules
from oarlock.nets.network import Network
from oarlock.nets.tokens import Tokens
from oarlock.nets.trunk import Trunk
from oarlock.training import Batch, Loss, Optimisation, Phase, Step, TaskData, accuracy, shuffled, with_replay


class SharedMethod(Method):
    """One network: what is learned later moves what was learned before, so no features are kept."""

    lasting = False
    outputs_per_class: ClassVar[int] = 1
    config: AdapterConfig

    def __init__(self, trunk: Trunk, memory: int, config: AdapterConfig) -> None:
        super().__init__(trunk, memory, config)
        self.network = Network(trunk, config.width, config.adapt_last, config.bf16)
        self.copies: NamedModules[Network] = NamedModules()  # earlier states of the network, while a task needs them

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        if task.index == 0:
            self.network.adapters.reset(task.generator("adapters"))
        self.network.head.grow(task.classes * self.outputs_per_class, task.generator("head"))

    def views(self, tasks: int) -> range:
        return range(1)

    def encode_chunk(self, images: Tensor, views: Sequence[int]) -> Tensor:
        adapters = self.network.adapters
        return adapters(adapters.below(images))[:, None]

    def tokens(self, images: Tensor) -> Tokens:
        return Tokens(self.network.adapters, images)

    def encode_kept(self, tokens: Tokens, views: Sequence[int]) -> Tensor:
        return tokens.through(self.network.adapters)[:, None]

    def scores(self, encoded: Tensor) -> Tensor:
        return self.network.head(encoded[:, 0])

    def keep_copy(self, name: str) -> None:
        """The network as it is now, until `drop_copies`; it is part of checkpoints."""
        self.copies[name] = copy.deepcopy(self.network).requires_grad_(False)

    def drop_copies(self) -> None:
        self.copies = NamedModules()

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "copies": list(self.copies)}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.network.head.grow(sum(self.sizes) * self.outputs_per_class, torch.Generator())
        for name in description["copies"]:
            self.keep_copy(name)


class TrainShared(Optimisation):
    """Adapters and head by cross-entropy over all classes seen, on the task's own images; a method with other images
    or another objective says so."""

    name = "training"

    def __init__(self, method: SharedMethod, task: TaskData) -> None:
        self.method, self.task, self.config = method, task, method.config
        self.network = method.network
        self.epochs = self.config.epochs
        self.old = method.columns(task.index).start  # classes before the task's

    def training_set(self) -> tuple[Tensor, Tensor]:
        """Images with their numbers among all classes."""
        return self.task.images, self.task.labels + self.old

    def prepare(self) -> None:
        images, labels = self.training_set()
        self.tokens, self.labels = Tokens(self.network.adapters, images), labels.to(self.method.device)

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
        return self.network(self.tokens[rows])

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)


class TrainWithMemory(TrainShared):
    """On the task's images and the memory's, pooled."""

    def training_set(self) -> tuple[Tensor, Tensor]:
        images, labels = super().training_set()
        memory = self.method.memory
        pooled = torch.cat([labels, memory.labels.cpu()])
        return joined([images, memory.images.cpu()], len(pooled)), pooled


class TrainWithTeacher(TrainWithMemory):
    """Pooled, and with a teacher: the network as it was before the task."""

    def start(self) -> None:
        self.method.keep_copy("before")

    def prepare(self) -> None:
        super().prepare()
        self.taught = self.tokens.through(self.method.copies["before"])


class TrainBesideMemory(TrainShared):
    """On batches of the task's images, each with a batch of the memory's beside it."""

    def prepare(self) -> None:
        super().prepare()
        memory = self.method.memory
        self.replay, self.replay_labels = Tokens(self.network.adapters, memory.images), memory.labels

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
        kept, chosen = method.memory.choose(task.labels, sum(method.sizes), order)
        method.memory.keep(kept)
        method.memory.add_images(task.images[chosen], task.labels[chosen] + method.columns(task.index).start)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of softened answers with a teacher's, mean over the batch.

    >>> same = torch.tensor([[1.0, 0.0]])
    >>> torch.isclose(distillation(same, same, 1.0), torch.distributions.Categorical(logits=same).entropy())
    tensor([True])
    """
    return F.cross_entropy(student / temperature, (teacher / temperature).softmax(1))
