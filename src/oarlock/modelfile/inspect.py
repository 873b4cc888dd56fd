"""What is in a model file, and whether finished tasks still answer as they did."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oarlock.data.images import Label
from oarlock.learner import Learner, load
from oarlock.loading import read_model
from oarlock.options import describe
from oarlock.schema import of_file
from oarlock.tasks import Check


def inspect(path: Path, weights: str | None = None) -> dict[str, Any]:
    """Return facts about a model, for JSON. `weights` is needed only for a large trunk whose weights came from a
    local file."""
    tensors, description = read_model(path)
    with of_file(path):
        learner = Learner.from_state(tensors, description, weights=weights)
    method, trunk = learner.method, learner.trunk
    size, capacity = path.stat().st_size, method.capacity()
    parts = _bytes_by_part(tensors, method.images)
    return {
        "model": str(path),
        "method": method.name,
        "config": describe(method.config),
        "seed": learner.seed,
        "trunk": {
            "name": trunk.card.name,
            "source": trunk.card.source,
            "embedded": description["trunk"]["embedded"],
            "overlap": trunk.card.overlap([str(label) for label in learner.classes_]),
        },
        "tasks": tasks_of(learner),
        "tolerance": method.tolerance,
        "edits": [edit.describe() for edit in learner.edits_],
        "memory": {"room": method.budget if method.needs_memory else None, "images": len(method.memory)},
        "free_capacity": None if capacity is None else capacity.free,
        "wings": None if capacity is None else capacity.wings,
        "entries": learner.entries(),
        "bytes": size,
        "bytes_by_part": {**parts, "description": size - sum(parts.values())},
    }


def tasks_of(learner: Learner) -> list[dict[str, Any]]:
    """Return what a model keeps of each task and class."""
    method = learner.method
    classes = sum(method.classes_per_task)
    kept, calibrating = (
        torch.bincount(images.labels.cpu(), minlength=classes).tolist()
        for images in (method.memory, learner.calibration)
    )
    tasks = []
    for index, task in enumerate(learner.history_):
        columns = method.class_slice(index)
        rows = zip(task.classes, task.images, kept[columns], calibrating[columns], strict=True)
        tasks.append(
            {
                "task": index + 1,
                "learned": task.learned,
                "classes": [
                    {"label": label, "images": images, "memory": memory, "calibration": calibration}
                    for label, images, memory, calibration in rows
                ],
                "verifiable": task.promise is not None,
            }
        )
    return tasks


def _bytes_by_part(tensors: dict[str, Tensor], images: tuple[str, ...]) -> dict[str, int]:
    """Images that a method keeps are counted apart from what it has learned."""
    parts = dict.fromkeys(("trunk", "method", "memory", "calibration", "probes"), 0)
    names = {"known_scores": "calibration", "tasks": "probes"}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        if part == "method" and rest.partition(".")[0] in images:
            part = "memory"
        parts[names.get(part, part)] += value.numel() * value.element_size()
    return parts


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
            "tolerance": self.check.tolerance,
            "holds": self.check.holds,
        }


class Verification(NamedTuple):
    """Hold the check of every task that promised something; none where the method makes no promise."""

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
    """Ask every finished task of a model file again what it was asked when learned; return how it answered."""
    learner = load(path, weights=weights, device=device)
    return Verification(path, learner.method.name, check_tasks(learner))


def check_tasks(learner: Learner) -> list[TaskCheck]:
    return [
        TaskCheck(index + 1, task.classes, task.promise.machine, task.promise.check(learner.method, index))
        for index, task in enumerate(learner.history_)
        if task.promise is not None
    ]
