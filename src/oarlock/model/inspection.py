"""What is in a model file."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oarlock import methods
from oarlock.files import read_tensors
from oarlock.learner import Learner


def inspect(path: Path, weights: str | None = None) -> dict[str, Any]:
    """Facts about a model, for JSON. `weights` is needed only for a large trunk whose weights came from a local
    file."""
    tensors, description = read_tensors(path, "model")
    learner = Learner.from_state(tensors, description, weights=weights)
    method, trunk = learner.method, learner.trunk
    size = path.stat().st_size
    parts = _bytes_by_part(tensors, method.images)
    return {
        "model": str(path),
        "method": method.name,
        "config": methods.describe_config(method.config),
        "seed": learner.seed,
        "trunk": {
            "name": trunk.card.name,
            "source": trunk.card.source,
            "embedded": description["trunk"]["embedded"],
            "overlap": trunk.card.overlap([str(label) for label in learner.classes_]),
        },
        "tasks": _tasks(learner),
        "memory": {"room": method.budget if method.needs_memory else None, "images": len(method.memory)},
        "free_capacity": method.free_capacity(),
        "wings": method.wings(),
        "entries": learner.entries(),
        "bytes": size,
        "bytes_by_part": {**parts, "description": size - sum(parts.values())},
    }


def _tasks(learner: Learner) -> list[dict[str, Any]]:
    classes = len(learner.classes_)
    kept, calibrating = (
        torch.bincount(images.labels.cpu(), minlength=classes).tolist()
        for images in (learner.method.memory, learner.calibration)
    )
    tasks = []
    for index, task in enumerate(learner.history_):
        columns = learner.method.columns(index)
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
