"""What methods share that hold a protector: features of every task, the phase that trains them, and the Gaussians of
classes in them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from oarlock.caches import joined
from oarlock.detectors import EvidenceOf
from oarlock.detectors.gaussians import ClassGaussians
from oarlock.errors import OarlockError
from oarlock.memory import at_random
from oarlock.methods._base import Method, probabilities
from oarlock.methods._options import ProtectedConfig
from oarlock.nets.adapters import CHUNK, CachedActivations
from oarlock.nets.heads import Modules, without_output
from oarlock.nets.protectors import Protector, protectors
from oarlock.nets.trunks import Trunk
from oarlock.options import option
from oarlock.schema import Check, integer, list_of, maybe, plain, record
from oarlock.training import Batch, Loss, Optimisation, Step, TaskData, accuracy, shuffled, with_replay

# What the paper's protocols fix of every such method; our defaults may move.
AS_IN_PAPER: dict[str, Any] = {"lamb": 0.75, "optimiser": "sgd", "momentum": 0.9, "weight_decay": 0.0}


class ProtectedMethod(Method):
    """Hold a protector: finished tasks keep their features, bit for bit or to the protector's tolerance."""

    protected = True
    described: ClassVar[Mapping[str, Check]] = {**Method.described, "protector": plain}
    config: ProtectedConfig
    protector: Protector
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        "own": lambda method, encoded: [scores.amax(1) for scores in method.scores_by_task(encoded)],
        "scores": lambda method, encoded: method.scores_by_task(encoded),
        "probabilities": probabilities,
        "features": lambda method, encoded: method.measured(encoded),
    }

    def __init__(self, trunk: Trunk, memory: int, config: ProtectedConfig) -> None:
        super().__init__(trunk, memory, config)
        self.protector = protectors.find(config.protector)(trunk, config)
        self.features_frozen = self.tolerance == 0
        self._own: Tensor | None = None
        self._cached: WeakValueDictionary[int, CachedActivations] = WeakValueDictionary()  # by their images' identity

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.protector.begin_task(task.generator("adapters"))

    def encode_chunk(self, images: Tensor, sets: Sequence[int]) -> Tensor:
        if min(sets) >= 0:
            return self._under(self.protector.below(images), sets)
        activations, bare = self.protector.below_and_bare(images)
        return torch.stack([bare[:, index] if index < 0 else self.protector(activations, index) for index in sets], 1)

    def activations(self, images: Tensor, bare: bool = True) -> CachedActivations:
        """Return the activations of images, the same object for the same images while anything holds it: those that
        features were trained on are needed again when the task is over."""
        cached = self._cached.get(id(images))
        if cached is None:
            cached = CachedActivations(self.protector, images, bare and len(self.feature_sets(0)) > 0)
            self._cached[id(images)] = cached
        return cached

    def encode_cached(
        self, activations: CachedActivations, sets: Sequence[int], rows: Tensor | None = None
    ) -> Tensor:
        bare, tasks = [index for index in sets if index < 0], [index for index in sets if index >= 0]
        if bare and activations.bare is None:
            return self.encode(activations.images if rows is None else activations.images[rows], sets)
        parts = [activations.through(lambda chunk: self._under(chunk, tasks), rows)] if tasks else []
        if bare and activations.bare is not None:
            seen = activations.bare if rows is None else activations.bare[rows.to(activations.bare.device)]
            parts.insert(0, seen[:, bare].to(self.device))
        return torch.cat(parts, 1)

    def _under(self, activations: Tensor, tasks: Sequence[int]) -> Tensor:
        return torch.stack([self.protector(activations, task) for task in tasks], 1)

    def by_task(self, encoded: Tensor) -> list[Tensor]:
        """Return the features under each task."""
        return list(encoded[:, len(self.feature_sets(0)) :].unbind(1))

    def measured(self, encoded: Tensor) -> list[Tensor]:
        """Return what distances of each task are measured in: its features, where nothing else is said."""
        return self.by_task(encoded)

    def own_sets(self, task: int) -> Sequence[int]:
        """Return the feature sets that came with a task."""
        return self.feature_sets(task + 1)[len(self.feature_sets(task)) :]

    def own_features(self, task: TaskData) -> Tensor:
        """Return the task's images under the bare trunk and its own, now frozen, features: one pass for all that
        follows the training of features."""
        if self._own is None:
            activations, sets = self.activations(task.images), [*self.feature_sets(0), *self.own_sets(task.index)]
            chunks = torch.arange(len(task.images)).split(CHUNK)
            encoded = (self.encode_cached(activations, sets, rows) for rows in chunks)
            self._own = joined(encoded, len(task.images)).to(self.device)
            if not all(part.isfinite().all() for part in self._own.split(CHUNK)):
                raise OarlockError("training diverged: its features are no numbers; try a smaller learning rate")
        return self._own

    def remember(self, task: TaskData) -> None:
        """Make room, then take in the task's images, so that memory holds classes of all tasks begun."""
        k, bare, own = task.index, len(self.feature_sets(0)), self.own_sets(task.index)
        kept, chosen = self.memory.choose(
            task.labels, sum(self.classes_per_task), at_random(task.generator("memory"))
        )
        encoded = self.own_features(task)[chosen.to(self.device)]
        replay = self.activations(self.memory.images, bare=False)
        self.memory.keep(kept)
        if k and own:
            self.memory.encoded = torch.cat([self.memory.encoded, self.encode_cached(replay, own, kept)], 1)
        if before := self.feature_sets(k)[bare:]:
            earlier = self.encode_cached(self.activations(task.images), before, chosen)
            encoded = torch.cat([encoded[:, :bare], earlier, encoded[:, bare:]], 1)
        self.memory.add_images(task.images[chosen], task.labels[chosen] + self.class_slice(k).start, encoded)
        if not self.features_frozen:
            self.memory.refresh(self, k + 1)
        self._own = None

    def forget_class(self, column: int, random: torch.Generator) -> int | None:
        """Forget a class as `forget` does, for a method that says by `parts_of_tasks` all that its tasks have."""
        task, row = int(self.tasks_of(torch.tensor(column))), None
        place = column - self.class_slice(task).start
        if self.classes_per_task[task] > 1:
            for parts in self.parts_of_tasks():
                part = parts[task]
                if isinstance(part, nn.Linear):
                    parts[task] = without_output(part, place)
                else:
                    part.forget(place)
            self.classes_per_task[task] -= 1
        else:
            if own := self.own_sets(task):
                row = self.feature_sets(len(self.classes_per_task)).index(own[0])
            for parts in self.parts_of_tasks():
                del parts[task]
            self.protector.forget_task(task, random)
            del self.classes_per_task[task]
        self.memory.forget(column, row)
        return row

    def parts_of_tasks(self) -> list[Modules[Any]]:
        """Return what has a part for each task, with something in it for each of the task's classes."""
        return []

    def scores_by_task(self, encoded: Tensor) -> list[Tensor]:
        """Return the scores of each task's classes."""
        return list(self.scores(encoded).split(self.classes_per_task, 1))

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        return {"features": self.encode(images, [task])[:, 0]}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "protector": self.protector.describe()}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        check = record(self.protector.described)
        self.protector.rebuild(check(description["protector"], "the protector's description"))


class TrainFeatures(Optimisation):
    """Train what the protector gives the task, and a head: cross-entropy on the task's images with their labels and
    on the memory's images as one extra class (Eq. feature_train), plus the protector's penalty."""

    name = "features"
    mean_over_rows = True

    def __init__(self, method: ProtectedMethod, task: TaskData, head: nn.Module) -> None:
        self.method, self.task, self.head = method, task, head
        self.config, self.protector = method.config, method.protector
        self.epochs = self.config.epochs

    def prepare(self) -> None:
        self.protector.guard()
        self.current = self.method.activations(self.task.images)
        self.replay = self.method.activations(self.method.memory.images, bare=False)
        self.labels = self.task.labels.to(self.method.device)
        self.replay_labels = self.labels_of_memory().to(self.method.device)

    def labels_of_memory(self) -> Tensor:
        """Return what the head is to say to each image of the memory: "not mine", unless it is of one of the task's
        classes that were known before."""
        return self.method.as_own(self.method.memory.labels, self.task.index)

    def optimiser(self) -> Optimizer:
        weights, *others = self.protector.parameter_groups()
        weights["params"] += list(self.head.parameters())
        return self.config.new_optimiser([weights, *others], self.config.lr)

    def batches(self, random: torch.Generator) -> list[Batch]:
        return with_replay(shuffled(len(self.labels), self.config.batch, random), len(self.method.memory), random)

    def loss(self, step: Step) -> Loss:
        rows, *replay = step.batch
        activations, labels = self.current[rows], self.labels[rows.to(self.labels.device)]
        for foreign in replay:
            activations = torch.cat([activations, self.replay[foreign]])
            labels = torch.cat([labels, self.replay_labels[foreign.to(labels.device)]])
        logits = self.head(self.protector(activations, self.task.index, step.fraction))
        loss, penalty = F.cross_entropy(logits, labels), self.protector.penalty(step.fraction)
        return Loss(loss if penalty is None else loss + penalty, accuracy(logits, labels))

    def after_step(self, step: Step) -> None:
        self.protector.after_step()

    def finish(self) -> None:
        self.protector.finish_task(self._seen())

    def _seen(self) -> Iterator[Tensor]:
        """The activations of the task's images, a chunk at a time, when somebody asks."""
        current = self.method.activations(self.task.images)
        for rows in torch.arange(len(self.task.images)).split(CHUNK):
            yield current[rows]


@dataclass(frozen=True)
class GaussianConfig(ProtectedConfig):
    """Say how distances are measured."""

    shrinkage: float = option(0.2, least=1e-6, most=1)  # of a task's covariance towards the identity


class GaussianMethod(ProtectedMethod):
    """Give every task the Gaussians of its classes, in its own features, which never change again."""

    config: GaussianConfig
    evidence: ClassVar[dict[str, EvidenceOf]] = {
        **ProtectedMethod.evidence,
        "gaussians": lambda method, encoded: method.gaussians,
        "memory": lambda method, encoded: method.measured(method.memory.encoded),
        "own_in_memory": lambda method, encoded: method.own_in_memory(),
    }
    constants: ClassVar[tuple[str, ...]] = ("means", "whitening")
    described: ClassVar[Mapping[str, Check]] = {**ProtectedMethod.described, "ranks": list_of(maybe(integer(0)))}

    def __init__(self, trunk: Trunk, memory: int, config: GaussianConfig) -> None:
        super().__init__(trunk, memory, config)
        self.gaussians: Modules[Any] = Modules()  # of each task's classes

    def begin(self, task: TaskData) -> None:
        super().begin(task)
        self.add_heads(task.classes, task.generator("heads"))

    def add_heads(self, classes: int, random: torch.Generator) -> None:
        """Add what a task brings besides the protector's part; a method with heads adds them."""
        self.gaussians.append(self.new_gaussians(classes))

    def new_gaussians(self, classes: int) -> nn.Module:
        return ClassGaussians(classes, self.trunk.dim, self.config.shrinkage).to(self.device)

    def parts_of_tasks(self) -> list[Modules[Any]]:
        return [self.gaussians]

    def fit_gaussians(self, task: TaskData) -> None:
        """Take class means and covariance of the task's own features."""
        features, labels = self.own_features(task)[:, -1], task.labels.to(self.device)
        self.gaussians[task.index].fit(features, labels)

    def own_in_memory(self) -> list[Tensor]:
        """Return for each task which images of the memory are of its classes."""
        return [self.as_own(self.memory.labels, k) < size for k, size in enumerate(self.classes_per_task)]

    def promised(self, images: Tensor, task: int) -> dict[str, Tensor]:
        promised, gaussians = super().promised(images, task), self.gaussians[task]
        return {
            **promised,
            "distances": gaussians.distances(promised["features"]),
            "means": gaussians.means,
            "whitening": gaussians.whitening,
        }

    def describe(self) -> dict[str, Any]:
        ranks = [part.rank if isinstance(part, ClassGaussians) else None for part in self.gaussians]
        return {**super().describe(), "ranks": ranks}

    def rebuild(self, description: dict[str, Any]) -> None:
        super().rebuild(description)
        for classes in self.classes_per_task:
            self.add_heads(classes, torch.Generator())
        for gaussians, rank in zip(self.gaussians, description["ranks"], strict=True):
            if rank is not None:
                gaussians.rebuild(rank)
