"""Checkpoints: a learner in the middle of a task, and all that is needed to go on as if nothing had happened."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from oarlock.files import read_tensors, write_tensors
from oarlock.learner import Learner
from oarlock.training import Loss, Phase, Position, Watcher, dump_optimiser

CHECKPOINT_SECONDS = 5.0  # epochs shorter than this share a checkpoint


class Checkpoint(NamedTuple):
    """What was read back; `facts` and `kept` are what the writer wanted to keep besides the learner."""

    position: Position
    optimiser: dict[str, Tensor] | None
    facts: dict[str, Any]
    kept: dict[str, Tensor]
    state: tuple[dict[str, Tensor], dict[str, Any]]

    def learner(self, weights: str | Path | None, device: str | torch.device) -> Learner:
        return Learner.from_state(*self.state, weights=weights, device=device)


def write_checkpoint(
    path: Path,
    learner: Learner,
    position: Position,
    optimiser: Optimizer | None,
    facts: Mapping[str, Any],
    kept: Mapping[str, Tensor] | None = None,
) -> None:
    tensors, description = learner.state()
    parts = {"learner": tensors, "kept": kept or {}}
    if optimiser is not None:
        parts["optimiser"] = dump_optimiser(optimiser)
    flat = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    write_tensors(path, "checkpoint", flat, {"learner": description, "position": list(position), "facts": facts})


def read_checkpoint(path: Path) -> Checkpoint:
    tensors, description = read_tensors(path, "checkpoint")
    parts: dict[str, dict[str, Tensor]] = {"optimiser": {}, "kept": {}, "learner": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = value
    position, state = Position(*description["position"]), (parts["learner"], description["learner"])
    return Checkpoint(position, parts["optimiser"] or None, description["facts"], parts["kept"], state)


class Checkpointing:
    """Passes news on to a display, and has a checkpoint written after every phase and every long enough epoch."""

    def __init__(self, display: Watcher, save: Callable[[Position, Optimizer | None], None]) -> None:
        self.display, self.save = display, save
        self.saved = time.perf_counter()

    def on_phase(self, task: int, phase: Phase) -> None:
        self.display.on_phase(task, phase)

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        self.display.on_step(epoch, fraction, loss)

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        self.display.on_checkpoint(position, optimiser)
        if optimiser is None or time.perf_counter() - self.saved >= CHECKPOINT_SECONDS:
            self.save(position, optimiser)
            self.saved = time.perf_counter()
