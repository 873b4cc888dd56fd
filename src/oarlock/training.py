"""The one training loop. A method lists phases; this runs them, reports, and says when a checkpoint is due."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from oarlock.devices import Devices
from oarlock.errors import OarlockError

ALONE = Devices()
ADAM = {"step", "exp_avg", "exp_avg_sq"}
SLOTS = {SGD: {"momentum_buffer"}, Adam: ADAM, AdamW: ADAM}  # what optimisers keep of each weight

Batch = tuple[Tensor, ...]  # indices into what the phase prepared


@dataclass(frozen=True, eq=False)
class TaskData:
    """Hold one task as a method sees it: prepared images and labels 0..classes−1; nothing of any test set."""

    index: int
    images: Tensor
    labels: Tensor
    classes: int
    seed: int

    def generator(self, *key: int | str) -> torch.Generator:
        return generator(self.seed, self.index, *key)


class Step(NamedTuple):
    """Hold one batch, and where in its epoch it stands (0 at the first batch, 1 at the last or only one)."""

    batch: Batch
    fraction: float
    generator: torch.Generator


class Loss(NamedTuple):
    value: Tensor
    accuracy: float | None = None


class Phase:
    """Do one named part of learning a task: `start` changes the method's state as it begins, `finish` at its end."""

    name: str
    epochs: int = 0

    def start(self) -> None:
        pass

    def finish(self) -> None:
        pass


class Optimisation(Phase, ABC):
    """Train something in a phase. `prepare` only reads the method's state (cached features, say) and runs again
    when a run is resumed in the middle of the phase."""

    mean_over_rows: ClassVar[bool] = False  # the loss, of which processes can then compute a share of the rows each

    def prepare(self) -> None:
        pass

    @abstractmethod
    def optimiser(self) -> Optimizer:
        """Return a new optimiser over what the phase trains."""

    @abstractmethod
    def batches(self, random: torch.Generator) -> list[Batch]:
        """Return the batches of one epoch."""

    @abstractmethod
    def loss(self, step: Step) -> Loss: ...

    def gradients(self, step: Step) -> Loss:
        loss = self.loss(step)
        loss.value.backward()
        return loss

    def after_step(self, step: Step) -> None:
        pass

    def rate(self, done: float) -> float:
        """Return the learning rate as a share of the optimiser's, when a share of all steps is done."""
        return 1.0


class Position(NamedTuple):
    """Name the next thing to do: an epoch of a phase of a task."""

    task: int
    phase: int
    epoch: int


class Callback(Protocol):
    """Look on while a task is learned, as a progress bar does, or a run that writes checkpoints."""

    def on_phase(self, task: int, phase: Phase) -> None: ...

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None: ...

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        """Take note after every epoch, and after every phase (then without an optimiser)."""


class NoCallback:
    """Do nothing: nobody looks on."""

    def on_phase(self, task: int, phase: Phase) -> None:
        pass

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        pass

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        pass


def run_phases(
    phases: list[Phase],
    task: TaskData,
    callback: Callback,
    position: Position,
    optimiser_state: dict[str, Tensor] | None = None,
    devices: Devices = ALONE,
) -> None:
    """Run a task's phases from a position to the end."""
    _check_position(phases, position)
    for number in range(position.phase, len(phases)):
        first_epoch = position.epoch if number == position.phase else 0
        with _solvable():
            _run_phase(phases[number], number, task, callback, first_epoch, optimiser_state, devices)
        optimiser_state = None
        callback.on_checkpoint(Position(task.index, number + 1, 0), None)


@contextmanager
def _solvable() -> Iterator[None]:
    """A model that came from a file may have sums that are none of anything."""
    try:
        yield
    except torch.linalg.LinAlgError as problem:
        what = "the trunk's features of these images, or what the model keeps of earlier ones"
        raise OarlockError(f"{what}, are no numbers that can be computed with") from problem


def _check_position(phases: list[Phase], position: Position) -> None:
    """A position that was read from a file is one where these phases can stand."""
    number, epoch = position.phase, position.epoch
    if number > len(phases) or epoch > (phases[number].epochs if number < len(phases) else 0):
        raise OarlockError(f"phase {number}, epoch {epoch} is not where learning this task can have stopped")


def _run_phase(
    phase: Phase,
    number: int,
    task: TaskData,
    callback: Callback,
    first_epoch: int,
    optimiser_state: dict[str, Tensor] | None,
    devices: Devices,
) -> None:
    callback.on_phase(task.index, phase)
    if first_epoch == 0:
        phase.start()
    if isinstance(phase, Optimisation) and phase.epochs:
        phase.prepare()
        optimiser = phase.optimiser()
        rates = [group["lr"] for group in optimiser.param_groups]
        if optimiser_state:
            load_optimiser(optimiser, optimiser_state)
        for epoch in range(first_epoch, phase.epochs):
            _run_epoch(phase, optimiser, rates, epoch, task, callback, devices)
            callback.on_checkpoint(Position(task.index, number, epoch + 1), optimiser)
        _check_finite(phase, [p for group in optimiser.param_groups for p in group["params"]])
    phase.finish()


def _run_epoch(
    phase: Optimisation,
    optimiser: Optimizer,
    rates: list[float],
    epoch: int,
    task: TaskData,
    callback: Callback,
    devices: Devices,
) -> None:
    random = task.generator(phase.name, epoch)
    batches = phase.batches(random)
    for index, batch in enumerate(batches):
        optimiser.zero_grad(set_to_none=True)
        share = phase.rate((epoch + index / len(batches)) / phase.epochs)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * share
        step = Step(batch, index / (len(batches) - 1) if len(batches) > 1 else 1.0, random)
        loss = _gradients(phase, optimiser, step, devices)
        _check_finite(phase, [loss.value])
        optimiser.step()
        phase.after_step(step)
        callback.on_step(epoch, (index + 1) / len(batches), loss)


def _gradients(phase: Optimisation, optimiser: Optimizer, step: Step, devices: Devices) -> Loss:
    """The loss of a whole batch and its gradients, whichever process computes which of its rows."""
    if devices.count == 1 or not phase.mean_over_rows:
        return phase.gradients(step)
    mine, share = devices.share(step.batch)
    loss = phase.gradients(step._replace(batch=mine)) if share else Loss(torch.zeros(()), 0.0)
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    told = devices.add_up(weights, share, torch.stack([loss.value.detach(), torch.tensor(loss.accuracy or 0.0)]))
    return Loss(told[0], told[1].item())


def _check_finite(phase: Phase, tensors: list[Tensor]) -> None:
    """What is not a number would pass even through closed gates, into finished tasks."""
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise OarlockError(f"training diverged in phase {phase.name!r}: try a smaller learning rate")


def shuffled(count: int, size: int, random: torch.Generator) -> list[Tensor]:
    """Return all of `count` indices in random order, in batches.

    >>> [len(batch) for batch in shuffled(10, 4, generator(0))]
    [4, 4, 2]
    """
    return list(torch.randperm(count, generator=random).split(size))


def cycled(count: int, sizes: list[int], random: torch.Generator) -> list[Tensor]:
    """Return batches of the given sizes from permutations of `count` indices, one permutation after the other.

    >>> sorted(torch.cat(cycled(3, [2, 2, 2], generator(0))).tolist())
    [0, 0, 1, 1, 2, 2]
    """
    rounds = -(-sum(sizes) // count)
    order = torch.cat([torch.randperm(count, generator=random) for _ in range(rounds)])
    return list(order[: sum(sizes)].split(sizes))


def balanced(labels: Tensor, size: int, random: torch.Generator) -> list[Tensor]:
    """Return batches in which all classes are equally frequent, to within one; about as many indices as labels.

    >>> [batch.tolist() for batch in balanced(torch.tensor([7, 7, 7, 9]), 2, generator(0))]
    [[2, 3], [1, 3]]
    """
    groups = [torch.nonzero(labels.cpu() == label).flatten() for label in labels.unique().cpu()]
    turns = -(-len(labels) // len(groups))
    columns = [group[cycled(len(group), [turns], random)[0]] for group in groups]
    return list(torch.stack(columns, 1).flatten().split(size))


def with_replay(current: list[Tensor], memory: int, random: torch.Generator) -> list[Batch]:
    """Return batches joined by as many indices into a memory, which is upsampled by cycling through permutations.

    >>> [[len(rows) for rows in batch] for batch in with_replay(shuffled(5, 3, generator(0)), 2, generator(0))]
    [[3, 3], [2, 2]]
    """
    if not memory:
        return [(rows,) for rows in current]
    return list(zip(current, cycled(memory, [len(rows) for rows in current], random), strict=True))


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(1) == labels).float().mean().item()


def dump_optimiser(optimiser: Optimizer) -> dict[str, Tensor]:
    """Return an optimiser's tensors by name; its settings come from the phase."""
    state = optimiser.state_dict()["state"]
    return {f"{index}.{name}": value for index, slots in state.items() for name, value in slots.items()}


def load_optimiser(optimiser: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Take what `dump_optimiser` gave of an optimiser of the same kind over the same weights."""
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    slots = SLOTS.get(type(optimiser))
    state: dict[int, dict[str, Tensor]] = {}
    numbers = set(map(str, range(len(weights))))
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        known = index in numbers and (slots is None or name in slots)
        if not known or value.shape not in ((), weights[int(index)].shape):
            raise OarlockError(f"the checkpoint's optimiser keeps {key!r}, which the one that goes on does not")
        state.setdefault(int(index), {})[name] = value
    if slots is not None and any(kept.keys() != slots for kept in state.values()):
        raise OarlockError("the checkpoint's optimiser keeps less than the one that goes on needs")
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def generator(*key: int | str) -> torch.Generator:
    """Return a fresh generator for (seed, task, phase, epoch) or any other key; the same key draws the same numbers.

    >>> a, b = generator(0, "task", 1), generator(0, "task", 1)
    >>> torch.equal(torch.randperm(9, generator=a), torch.randperm(9, generator=b))
    True
    """
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
