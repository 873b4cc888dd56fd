"""A task before it is learned, and what is kept of it afterwards."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock.data.images import Label
from oarlock.memory import fair_quota
from oarlock.promises import Promise
from oarlock.rng import generator
from oarlock.training import TaskData

CALIBRATE_FROM = 5  # images of a class; of fewer none can be spared
CALIBRATION_LIMIT = 1000  # images of all tasks together, so that calibrating costs a late task no more than others


class Lesson(NamedTuple):
    """A task that was found good: what it trains on, and known images kept out of training for calibration."""

    classes: list[Label]
    images: list[int]  # of each class, both parts together
    task: TaskData
    calibration: Tensor
    calibration_labels: Tensor
    learned: str | None  # date and time, if they are to be kept


class FinishedTask(NamedTuple):
    """What a learner knows about a task it has learned.

    >>> FinishedTask(["ant", "bee"], [12, 9], learned=None, promise=None).describe()
    {'classes': ['ant', 'bee'], 'images': [12, 9], 'learned': None, 'promise': None}
    """

    classes: list[Label]
    images: list[int]
    learned: str | None
    promise: Promise | None

    def describe(self) -> dict[str, Any]:
        return {**self._asdict(), "promise": None if self.promise is None else self.promise.describe()}

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.promise is None else self.promise.tensors()

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], description: dict[str, Any]) -> "FinishedTask":
        promise = description["promise"] and Promise.from_state(tensors, description["promise"])
        return cls(list(description["classes"]), list(description["images"]), description["learned"], promise)


def hold_out(labels: Tensor, share: float, seed: int, task: int, before: Tensor | None = None) -> Tensor:
    """Which images calibration gets: a share of each class, drawn at random; where that would be more than
    CALIBRATION_LIMIT together with what it has `before` of earlier classes, as many of each class as fit.

    >>> hold_out(torch.tensor([0] * 10 + [1] * 4), 0.2, seed=0, task=0).nonzero().flatten().tolist()
    [2, 6]
    """
    counts = labels.bincount().tolist()
    wanted = torch.tensor([max(int(share * n + 1e-9), int(share > 0 and n >= CALIBRATE_FROM)) for n in counts])
    quota = fair_quota(wanted if before is None else torch.cat([before, wanted]), CALIBRATION_LIMIT)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        rows = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(rows), generator=generator(seed, task, "calibration", int(label)))
        held[rows[order[: min(int(wanted[label]), quota)]]] = True
    return held
