"""The one way a task is learned: begun or gone on with, checkpointed on the way, finished.

`Learner.learn`, `oarlock learn` and `oarlock run` differ in what they do before and after; what happens to a task in
between is here.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from oarlock.devices import Devices
from oarlock.errors import OarlockError
from oarlock.files import by_part, read_tensors, write_tensors
from oarlock.loading import check_position
from oarlock.nets.skeleton import check_finite
from oarlock.schema import integer, list_of, mapping, of_file, plain, record
from oarlock.tasks import PreparedTask
from oarlock.training import ALONE, Callback, Loss, Phase, Position, dump_optimiser, run_phases

if TYPE_CHECKING:
    from oarlock.learner import Learner

DESCRIPTION = record({"position": list_of(integer(0, 10**9), 3, 3), "learner": plain, "facts": mapping(plain)})
CHECKPOINT_SECONDS = 5.0  # epochs shorter than this share a checkpoint


class Kept(NamedTuple):
    """Hold what a session's owner wants to find again in a checkpoint, besides the learner."""

    facts: Mapping[str, Any] = {}  # as JSON has them
    tensors: Mapping[str, Tensor] = {}


class Checkpoint(NamedTuple):
    """Hold what was read back; `state` is what `Learner.from_state` takes."""

    position: Position
    optimiser: dict[str, Tensor] | None
    state: tuple[dict[str, Tensor], dict[str, Any]]
    kept: Kept


class Session:
    """Learn tasks with a learner, one after the other, so that each can be stopped at any moment and goes on as if
    nothing had happened. Without a file nothing is written, and only what is in memory goes on.

    >>> import numpy
    >>> from oarlock import Learner
    >>> from oarlock.training import NoCallback
    >>> learner, images = Learner("slda"), numpy.zeros((4, 32, 32, 3), "uint8")
    >>> session = Session(learner)
    >>> session.learn(learner.prepare_task(images, ["dark"] * 4), NoCallback())
    >>> session.position, learner.tasks_
    (Position(task=1, phase=0, epoch=0), [['dark']])
    """

    def __init__(
        self,
        learner: "Learner",
        file: Path | None = None,
        saved: Checkpoint | None = None,
        keep: Callable[[], Kept] = Kept,
        mode_of: Path | None = None,
        devices: Devices = ALONE,
    ) -> None:
        self.learner, self.file, self.keep, self.devices = learner, file, keep, devices
        self.mode_of = mode_of  # the file that who may not read it may not read the checkpoint of either
        self.position = Position(len(learner.tasks_), 0, 0) if saved is None else saved.position
        self.optimiser_state = None if saved is None else saved.optimiser

    def learn(self, prepared: PreparedTask, callback: Callback) -> None:
        """Learn the task, or what is left of it."""
        task, method = prepared.task, self.learner.method
        self.learner.tell_columns(prepared.classes)
        if self.position == (task.index, 0, 0):
            method.begin(task)
        watched = callback if self.file is None else Checkpointing(callback, self.save)
        run_phases(method.phases(task), task, watched, self.position, self.optimiser_state, self.devices)
        self.learner.finish_task(prepared)
        self.position, self.optimiser_state = Position(task.index + 1, 0, 0), None

    def save(self, position: Position, optimiser: Optimizer | None = None) -> None:
        """Write the checkpoint from which all goes on at this position."""
        assert self.file is not None
        tensors, description = self.learner.state()
        kept = self.keep()
        parts: dict[str, Mapping[str, Tensor]] = {"learner": tensors, "kept": kept.tensors}
        if optimiser is not None:
            parts["optimiser"] = dump_optimiser(optimiser)
        flat = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        facts = {"learner": description, "position": list(position), "facts": dict(kept.facts)}
        write_tensors(self.file, "checkpoint", flat, facts, self.mode_of)


def read_checkpoint(file: Path) -> Checkpoint:
    """Return what `Session.save` wrote."""
    tensors, description = read_tensors(file, "checkpoint")
    parts = by_part(tensors)
    with of_file(file):
        found = DESCRIPTION(description, "")
        position = Position(*found["position"])
        check_position(found["learner"], begun=position[1:] != (0, 0))
        if position.task != len(found["learner"]["tasks"]):
            raise OarlockError(f"task {position.task + 1} cannot be what comes next in it")
        if strange := parts.keys() - {"learner", "optimiser", "kept"}:
            raise OarlockError(f"it holds {min(strange)!r}, which is no part of a checkpoint")
        for part in ("optimiser", "kept"):
            check_finite(parts.get(part, {}), f"its {part}")
    return Checkpoint(
        position,
        parts.get("optimiser"),
        (parts.get("learner", {}), found["learner"]),
        Kept(found["facts"], parts.get("kept", {})),
    )


class Checkpointing:
    """Pass news on, and have a checkpoint written after every phase and every long enough epoch."""

    def __init__(self, callback: Callback, save: Callable[[Position, Optimizer | None], None]) -> None:
        self.callback, self.save = callback, save
        self.saved = time.perf_counter()

    def on_phase(self, task: int, phase: Phase) -> None:
        self.callback.on_phase(task, phase)

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        self.callback.on_step(epoch, fraction, loss)

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        self.callback.on_checkpoint(position, optimiser)
        if optimiser is None or time.perf_counter() - self.saved >= CHECKPOINT_SECONDS:
            self.save(position, optimiser)
            self.saved = time.perf_counter()
