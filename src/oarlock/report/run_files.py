"""Reads what a finished run left behind, and refuses what a report cannot be drawn from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from oarlock.errors import OarlockError

Array = np.ndarray[Any, Any]

Optional = type(None)
Number = (int, float)

FIELDS: dict[str, tuple[type, ...]] = {
    "method": (str,),
    "protocol": (str, Optional),
    "source": (str,),
    "order": (str, int, list, Optional),
    "seed": (int,),
    "memory": (int, Optional),
    "trunk": (str,),
    "config": (dict,),
    "threads": (int, Optional),
    "tasks": (list,),
    "accuracy": (list,),
    "til_accuracy": (list,),
    "task_id_accuracy": Number,
    "aca": Number,
    "aia": Number,
    "forgetting": (*Number, Optional),
    "ood_auroc": (*Number, Optional),
    "ood_fpr95": (*Number, Optional),
    "entries": (int,),
    "seconds": (dict,),
    "peak_mb": (*Number, Optional),
    "free_capacity": (list, Optional),
    "unchanged": (dict, Optional),
    "readings": (dict,),
    "overlap": (str,),
    "versions": (dict,),
}


@dataclass(frozen=True)
class RunFiles:
    """`result.json` and the tensors of `evaluation.safetensors`, checked against each other."""

    result: dict[str, Any]
    tensors: dict[str, Array]

    @property
    def classes(self) -> list[str]:
        """Every class learned, in the order in which the tensors number them."""
        return [name for task in self.result["tasks"] for name in task]


def read_run_files(run_dir: Path) -> RunFiles:
    if not run_dir.is_dir():
        raise OarlockError(f"{run_dir} is not a folder; give the run directory that holds result.json.")
    result_file, tensor_file = run_dir / "result.json", run_dir / "evaluation.safetensors"
    for file in (result_file, tensor_file):
        if not file.is_file():
            raise OarlockError(f"{file} does not exist; let the run finish, then ask for the report again.")
    files = RunFiles(_read_json(result_file), _read_tensors(tensor_file))
    if problem := _problem_in_result(files.result):
        raise OarlockError(f"{result_file}: {problem}; repeat the run's evaluation to write it again.")
    if problem := _problem_in_tensors(files):
        raise OarlockError(f"{tensor_file}: {problem}; repeat the run's evaluation to write it again.")
    return files


def _read_json(file: Path) -> dict[str, Any]:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OarlockError(f"{file} is not valid JSON ({error}); repeat the run's evaluation.") from error
    if not isinstance(result, dict):
        raise OarlockError(f"{file} holds no JSON object; repeat the run's evaluation.")
    return result


def _read_tensors(file: Path) -> dict[str, Array]:
    try:
        return load_file(file)
    except (SafetensorError, ValueError, KeyError) as error:
        raise OarlockError(f"{file} is damaged ({error}); repeat the run's evaluation.") from error


def _problem_in_result(result: dict[str, Any]) -> str | None:
    for name, types in FIELDS.items():
        if name not in result:
            return f"the field {name!r} is missing"
        if not isinstance(result[name], types):
            return f"the field {name!r} is a {type(result[name]).__name__}"
    tasks = result["tasks"]
    if not tasks or not all(isinstance(task, list) and task for task in tasks):
        return "'tasks' must be a list of lists of class names, none of them empty"
    readings = result["readings"].items()
    matrices = {name: result[name] for name in ("accuracy", "til_accuracy")}
    matrices |= {
        f"readings.{name}": reading.get("accuracy") if isinstance(reading, dict) else None
        for name, reading in readings
    }
    for name, matrix in matrices.items():
        if not _is_lower_triangular(matrix, len(tasks)):
            return f"{name!r} must have one row per task, and row t must hold t numbers"
    for name, reading in readings:
        if not _is_number(reading.get("aca")) or "forgetting" not in reading:
            return f"'readings.{name}' must have 'aca' and 'forgetting'"
    free = result["free_capacity"]
    if free is not None and not (len(free) == len(tasks) and all(map(_is_number, free))):
        return "'free_capacity' must hold one number per task"
    for name, keys in (("seconds", ("train", "evaluate")), ("unchanged", ("compared", "changed"))):
        if result[name] is not None and not all(_is_number(result[name].get(key)) for key in keys):
            return f"{name!r} must hold the numbers {' and '.join(keys)}"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, Number)


def _is_lower_triangular(matrix: object, size: int) -> bool:
    return (
        isinstance(matrix, list)
        and all(isinstance(row, list) and all(map(_is_number, row)) for row in matrix)
        and [len(row) for row in matrix] == list(range(1, size + 1))
    )


def _problem_in_tensors(files: RunFiles) -> str | None:
    tensors, tasks, classes = files.tensors, len(files.result["tasks"]), len(files.classes)
    examples = len(tensors.get("example_images", ()))
    size = tensors["example_images"].shape[-1] if examples else 0
    shapes = {
        "known_scores": (tensors.get("known_scores", np.empty(0)).size,),
        "task_confusion": (tasks, tasks),
        "class_confusion": (classes, classes),
        "example_images": (examples, 3, size, size),
        "example_truth": (examples,),
        "example_prediction": (examples,),
        "example_probability": (examples,),
    }
    for name, shape in shapes.items():
        if name not in tensors:
            return f"the tensor {name!r} is missing"
        if examples == 0 and name == "example_images":
            continue
        if tensors[name].shape != shape:
            return f"{name!r} has shape {list(tensors[name].shape)} where {list(shape)} is needed"
    if not np.isfinite(tensors["known_scores"]).any():
        return "'known_scores' holds no finite number"
    for name in ("example_truth", "example_prediction"):
        if ((tensors[name] < -1) | (tensors[name] >= classes)).any():
            return f"{name!r} names a class that 'tasks' in result.json does not have"
    return None
