"""Small learners of any method, and ways to stop and compare them."""

import copy
import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from conftest import CARD
from oarlock import Learner
from oarlock.learner import PreparedTask
from oarlock.methods import config_class, methods
from oarlock.nets.trunks import Trunk
from oarlock.nets.trunks.vit import Transformer
from oarlock.session import Checkpoint, Kept, Session
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


def small_learner(
    trunk: Trunk, name: str, *, memory: int = 12, seed: int = 0, calibration: float = 0.1, **wanted: Any
) -> Learner:
    return Learner(
        name, trunk=trunk, memory=memory, seed=seed, calibration=calibration, **small_options(name, **wanted)
    )


@pytest.fixture
def new_learner(tiny_trunk: Trunk) -> NewLearner:
    return partial(small_learner, tiny_trunk)


@pytest.fixture(autouse=True)
def tiny_card_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what a learner takes to be rebuilt is a look at an image, for cards that could be anybody's
    (tests/test_loading.py has some)."""
    is_ours = Transformer.is_ours
    monkeypatch.setattr(Transformer, "is_ours", lambda card: card == CARD or is_ours(card))


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


class Checkpoints(NoCallback):
    """Keeps what each checkpoint would hold."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.seen: list[Checkpoint] = []

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        dumped = None if optimiser is None else {k: value.clone() for k, value in dump_optimiser(optimiser).items()}
        self.seen.append(Checkpoint(position, dumped, snapshot(self.learner), Kept()))


def resumed(saved: Checkpoint, task: tuple[np.ndarray, list]) -> Learner:
    """A learner that stopped there in the middle of the task, and went on."""
    learner = rebuilt(saved.state)
    Session(learner, saved=saved).learn(learner.prepare_task(*task), NoCallback())
    return learner


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
