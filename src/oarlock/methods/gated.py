"""What methods with HAT gates share: adapters under gates, and the phase that trains a task's features."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.caches import joined
from oarlock.errors import OarlockError
from oarlock.memory import at_random
from oarlock.methods.base import Method
from oarlock.methods.config import AdapterConfig, option
from oarlock.nets.adapters import Adapters, Protection
from oarlock.nets.gates import anneal
from oarlock.nets.tokens import CHUNK, Tokens
from oarlock.nets.trunk import Trunk
from oarlock.training import Batch, Loss, Optimisation, Step, TaskData, accuracy, shuffled, with_replay

NEARLY_FULL = 0.05  # share of free hidden units


@dataclass(frozen=True)
class GatedConfig(AdapterConfig):
    """How gates are trained, and when adapters grow."""

    gate_lr: float = option(0.03, least=0)  # of the gates' embeddings: a rate of their own, which does not follow lr
    s_max: float = option(400.0, least=1)  # hardness of the gates at the end of an epoch
    lamb: float = option(0.75, least=0)  # λ of the gates' regulariser
    grow_below: float = option(0.1, least=0, most=1)  # a layer with a smaller share of free hidden units grows a wing
    wing: int = option(32, least=1)  # hidden units of a wing


class GatedMethod(Method):
    """A method whose finished tasks keep their features bit for bit."""

    gated = True
    config: GatedConfig

    def __init__(self, trunk: Trunk, memory: int, config: GatedConfig) -> None:
        super().__init__(trunk, memory, config)
        self.adapters = Adapters(trunk, config.width, config.adapt_last, config.bf16)
        self._own: Tensor | None = None
        self._tokens: WeakValueDictionary[int, Tokens] = WeakValueDictionary()  # by the identity of their images

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.adapters.begin_task(task.generator("adapters"), self.config.grow_below, self.config.wing)

    def encode_chunk(self, images: Tensor, views: Sequence[int]) -> Tensor:
        if min(views) >= 0:
            return self._under(self.adapters.below(images), views)
        tokens, bare = self.adapters.below_and_bare(images)
        return torch.stack([bare[:, view] if view < 0 else self.adapters(tokens, view) for view in views], 1)

    def tokens(self, images: Tensor, bare: bool = True) -> Tokens:
        """Those that somebody still holds are not made again: what step 1 trained on is looked at once more when the
        task is over."""
        tokens = self._tokens.get(id(images))
        if tokens is None:
            tokens = self._tokens[id(images)] = Tokens(self.adapters, images, bare and len(self.views(0)) > 0)
        return tokens

    def encode_kept(self, tokens: Tokens, views: Sequence[int], rows: Tensor | None = None) -> Tensor:
        bare, tasks = [view for view in views if view < 0], [view for view in views if view >= 0]
        if bare and tokens.bare is None:
            return self.encode(tokens.images if rows is None else tokens.images[rows], views)
        parts = [tokens.through(lambda chunk: self._under(chunk, tasks), rows)] if tasks else []
        if bare and tokens.bare is not None:
            seen = tokens.bare if rows is None else tokens.bare[rows.to(tokens.bare.device)]
            parts.insert(0, seen[:, bare].to(self.device))
        return torch.cat(parts, 1)

    def _under(self, tokens: Tensor, tasks: Sequence[int]) -> Tensor:
        return torch.stack([self.adapters(tokens, task) for task in tasks], 1)

    def by_task(self, encoded: Tensor) -> list[Tensor]:
        """The features under each task."""
        return list(encoded[:, len(self.views(0)) :].unbind(1))

    def own_views(self, task: TaskData) -> Tensor:
        """The task's images under the bare trunk and its own, now frozen, features: one pass for all that follows
        step 1."""
        if self._own is None:
            tokens, views = self.tokens(task.images), [*self.views(0), task.index]
            chunks = torch.arange(len(task.images)).split(CHUNK)
            encoded = (self.encode_kept(tokens, views, rows) for rows in chunks)
            self._own = joined(encoded, len(task.images)).to(self.device)
            if not all(part.isfinite().all() for part in self._own.split(CHUNK)):
                raise OarlockError("training diverged: its features are no numbers; try a smaller learning rate")
        return self._own

    def remember(self, task: TaskData) -> None:
        """Make room, then take in the task's images, so that memory holds classes of all tasks begun."""
        k, bare = task.index, len(self.views(0))
        kept, chosen = self.memory.choose(task.labels, sum(self.sizes), at_random(task.generator("memory")))
        encoded = self.own_views(task)[chosen.to(self.device)]
        if k:
            replay = self.tokens(self.memory.images, bare=False)
            self.memory.keep(kept)
            self.memory.encoded = torch.cat([self.memory.encoded, self.encode_kept(replay, [k], kept)], 1)
            earlier = self.encode_kept(self.tokens(task.images), range(k), chosen)
            encoded = torch.cat([encoded[:, :bare], earlier, encoded[:, bare:]], 1)
        self.memory.add_images(task.images[chosen], task.labels[chosen] + self.columns(k).start, encoded)
        self._own = None

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        return {"features": self.encode(images, [task])[:, 0]}

    def free_capacity(self) -> list[float]:
        return self.adapters.free_per_layer()

    def wings(self) -> list[int]:
        return [len(layer.bottlenecks) - 1 for layer in self.adapters.layers]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "adapters": self.adapters.describe()}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        self.adapters.rebuild(description["adapters"])


class TrainFeatures(Optimisation):
    """Adapters, norms, gates and a head: cross-entropy on the task's images with their labels and on the memory's
    images as one extra class (Eq. feature_train), plus λ times the gates' regulariser."""

    name = "features"

    def __init__(self, method: GatedMethod, task: TaskData, head: nn.Linear) -> None:
        self.method, self.task, self.head = method, task, head
        self.config = method.config
        self.epochs = self.config.epochs

    def prepare(self) -> None:
        adapters, device = self.method.adapters, self.method.device
        self.protection = Protection(adapters)
        self.current = self.method.tokens(self.task.images)
        self.replay = self.method.tokens(self.method.memory.images, bare=False)
        self.labels = self.task.labels.to(device)
        self.replay_labels = self.labels_of_memory().to(device)

    def labels_of_memory(self) -> Tensor:
        """What the head is to say to each image of the memory: "not mine"."""
        return torch.full_like(self.method.memory.labels, self.task.classes)

    def optimiser(self) -> Optimizer:
        adapters, config = self.method.adapters, self.config
        weights = adapters.task_weights() + list(self.head.parameters())
        gates = {"params": list(adapters.gates[-1].parameters()), "lr": config.gate_lr, "weight_decay": 0.0}
        return config.new_optimiser([{"params": weights}, gates], config.lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return with_replay(shuffled(len(self.labels), self.config.batch, random), len(self.method.memory), random)

    def loss(self, step: Step) -> Loss:
        rows, *replay = step.batch
        tokens, labels = self.current[rows], self.labels[rows.to(self.labels.device)]
        for foreign in replay:
            tokens = torch.cat([tokens, self.replay[foreign]])
            labels = torch.cat([labels, self.replay_labels[foreign.to(labels.device)]])
        s, s_max = anneal(step.fraction, self.config.s_max), self.config.s_max
        logits = self.head(self.method.adapters(tokens, self.task.index, s, s_max))
        sparsity = self.method.adapters.sparsity(s, s_max)
        return Loss(F.cross_entropy(logits, labels) + self.config.lamb * sparsity, accuracy(logits, labels))

    def after_step(self, step: Step) -> None:
        self.protection.restore()
        self.method.adapters.gates[-1].clamp()

    def finish(self) -> None:
        self.method.adapters.finish_task()
        if not self.config.grow_below and min(self.method.free_capacity()) < NEARLY_FULL:
            what = "an adapter has hardly a free unit left for the next task; with grow_below it would grow"
            warnings.warn(what, stacklevel=2)
