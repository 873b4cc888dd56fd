"""Small learners of any method, and ways to stop and compare them."""

import copy
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from oarlock import Learner
from oarlock.learner import PreparedTask
from oarlock.methods import config_class, methods
from oarlock.nets.trunks import Trunk
from oarlock.session import Session
from oarlock.training import Callback, Loss, NoCallback, Phase, Position, dump_optimiser

# With adapters, however few the images; what closes them has tests of its own (tests/methods/test_oar.py).
SMALL = {"width": 8, "adapt_last": 2, "batch": 8, "head_batch": 8, "few": 0, "random_features": 32}

State = tuple[dict[str, Tensor], dict[str, Any]]
NewLearner = Callable[..., Learner]


def options_of(name: str, protector: str | None = None) -> set[str]:
    return {field.name for field in dataclasses.fields(config_class(methods.find(name), protector))}


def small_options(name: str, **wanted: Any) -> dict[str, Any]:
    """Two epochs of everything, and of the other options those which the method has."""
    known = options_of(name, wanted.get("protector"))
    epochs = {option: 2 for option in known if option.endswith("epochs")}
    return epochs | {option: value for option, value in (SMALL | wanted).items() if option in known}


@pytest.fixture
def new_learner(tiny_trunk: Trunk) -> NewLearner:
    def make(name: str, *, memory: int = 12, seed: int = 0, calibration: float = 0.1, **wanted: Any) -> Learner:
        options = small_options(name, **wanted)
        return Learner(name, trunk=tiny_trunk, memory=memory, seed=seed, calibration=calibration, **options)

    return make


def snapshot(learner: Learner) -> State:
    """A copy of all there is in a learner, through JSON as a file would."""
    tensors, description = learner.state()
    return {name: value.detach().clone() for name, value in tensors.items()}, json.loads(json.dumps(description))


def rebuilt(state: State) -> Learner:
    return Learner.from_state(*copy.deepcopy(state))


def assert_same(one: State, other: State) -> None:
    assert one[1] == other[1]
    assert one[0].keys() == other[0].keys()
    different = [name for name, value in one[0].items() if not torch.equal(value, other[0][name])]
    assert not different


def differs(one: State, other: State) -> bool:
    return any(not torch.equal(value, other[0][name]) for name, value in one[0].items())


class Stopped(Exception):
    """Raised by watchers."""


class StopAt(NoCallback):
    """Keeps what a checkpoint would hold at the n-th one, and stops there."""

    def __init__(self, learner: Learner, number: int) -> None:
        self.learner, self.left = learner, number

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        if self.left == 0:
            dumped = {} if optimiser is None else dump_optimiser(optimiser)
            self.optimiser = {name: value.clone() for name, value in dumped.items()}
            self.state, self.position = snapshot(self.learner), position
            raise Stopped
        self.left -= 1


class Positions(NoCallback):
    """Where a checkpoint could be written."""

    def __init__(self) -> None:
        self.seen: list[Position] = []

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        self.seen.append(position)


class RaiseAt(NoCallback):
    """Raises when an event happens for the n-th time."""

    def __init__(self, event: str, number: int, error: type[BaseException]) -> None:
        self.event, self.left, self.error = event, number, error

    def _happened(self, event: str) -> None:
        if event == self.event:
            self.left -= 1
            if self.left < 0:
                raise self.error

    def on_phase(self, task: int, phase: Phase) -> None:
        self._happened("phase")

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        self._happened("step")

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        self._happened("checkpoint")


def teach(learner: Learner, task: tuple[np.ndarray, list], callback: Callback) -> PreparedTask:
    """`learn` without its draft, as a run does it."""
    prepared = learner.prepare_task(*task)
    Session(learner).learn(prepared, callback)
    return prepared
