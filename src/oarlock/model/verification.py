"""Whether finished tasks still answer as they did when they were learned."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from oarlock.data.images import Label
from oarlock.learner import Learner, load
from oarlock.promises import Check


class TaskCheck(NamedTuple):
    task: int  # from 1
    classes: list[Label]
    recorded_on: dict[str, Any]
    check: Check

    def to_json(self) -> dict[str, Any]:
        difference = self.check.difference
        return {
            "task": self.task,
            "classes": self.classes,
            "recorded_on": self.recorded_on,
            "same_machine": self.check.same_machine,
            "compared": self.check.compared,
            "identical": not self.check.changed,
            "changed": self.check.changed,
            "difference": difference if math.isfinite(difference) else None,
            "holds": self.check.holds,
        }


class Verification(NamedTuple):
    """Of every task that promised something; none where the method makes no promise."""

    model: Path
    method: str
    tasks: list[TaskCheck]

    @property
    def holds(self) -> bool:
        return all(task.check.holds for task in self.tasks)

    def to_json(self) -> dict[str, Any]:
        tasks = [task.to_json() for task in self.tasks]
        return {"model": str(self.model), "method": self.method, "holds": self.holds, "tasks": tasks}


def verify(path: Path, *, weights: str | None = None, device: str = "cpu") -> Verification:
    """Ask every finished task of a model file again what it was asked when it was learned."""
    learner = load(path, weights=weights, device=device)
    return Verification(path, learner.method.name, check_tasks(learner))


def check_tasks(learner: Learner) -> list[TaskCheck]:
    return [
        TaskCheck(index + 1, task.classes, task.promise.machine, task.promise.check(learner.method, index))
        for index, task in enumerate(learner.history_)
        if task.promise is not None
    ]
