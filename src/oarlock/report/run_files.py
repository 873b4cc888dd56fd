"""Reads what a finished run left behind, and refuses what a report cannot be drawn from."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oarlock.errors import OarlockError
from oarlock.files import read_json, read_tensors
from oarlock.theory.certificate import THEORY_FILE, Certificate, read_certificate

Array = np.ndarray[Any, Any]

NUMBER = (int, float)
NULL = (type(None),)
FIELDS: dict[str, tuple[type, ...]] = {
    "method": (str,),
    "protocol": (str, *NULL),
    "source": (str,),
    "order": (str, int, list, *NULL),
    "seed": (int,),
    "memory": (int, *NULL),
    "trunk": (str,),
    "config": (dict,),
    "threads": (int, *NULL),
    "tasks": (list,),
    "accuracy": (list,),
    "til_accuracy": (list,),
    "task_id_accuracy": NUMBER,
    "aca": NUMBER,
    "aia": NUMBER,
    "forgetting": (*NUMBER, *NULL),
    "ood_auroc": (*NUMBER, *NULL),
    "ood_fpr95": (*NUMBER, *NULL),
    "entries": (int,),
    "seconds": (dict,),
    "peak_mb": (*NUMBER, *NULL),
    "free_capacity": (list, *NULL),
    "unchanged": (dict, *NULL),
    "readings": (dict,),
    "overlap": (str,),
    "versions": (dict,),
}
OPTIONAL_TENSORS = ("unknown_scores", "threshold")
FINITE_TENSORS = ("known_scores", *OPTIONAL_TENSORS)


@dataclass(frozen=True)
class RunFiles:
    """`result.json`, the tensors of `evaluation.safetensors` and `theory.json`, checked against each other."""

    result: dict[str, Any]
    tensors: dict[str, Array]
    certificate: Certificate | None = None  # where the method has detectors

    @property
    def classes(self) -> list[object]:
        """Every class learned, in the order in which the tensors number them."""
        return [name for task in self.result["tasks"] for name in task]


def read_result(run_dir: Path) -> dict[str, Any]:
    """The content of a run's `result.json`, checked."""
    file = run_dir / "result.json"
    result = read_json(file)
    if problem := _problem_in_result(result):
        raise OarlockError(f"{file}: {problem}; evaluate the run again to rewrite it")
    return result


def read_run_files(run_dir: Path) -> RunFiles:
    result_file, tensor_file = run_dir / "result.json", run_dir / "evaluation.safetensors"
    for file in (result_file, tensor_file):
        if not file.is_file():
            raise OarlockError(f"there is no file {file}; a report needs the directory of a finished run")
    result = read_result(run_dir)
    tensors, _ = read_tensors(tensor_file, "evaluation")
    certificate = read_certificate(run_dir)
    if certificate is not None and certificate.tasks != result["tasks"]:
        raise OarlockError(f"{run_dir / THEORY_FILE} is of other tasks than result.json: remove it")
    files = RunFiles(result, {name: tensor.numpy() for name, tensor in tensors.items()}, certificate)
    if problem := _problem_in_tensors(files):
        raise OarlockError(f"{tensor_file}: {problem}; evaluate the run again to rewrite it")
    return files


def _problem_in_result(result: object) -> str | None:
    if not isinstance(result, dict):
        return "it holds no JSON object"
    for name, types in FIELDS.items():
        if name not in result:
            return f"the field {name!r} is missing"
        if not isinstance(result[name], types):
            return f"the field {name!r} cannot be a {type(result[name]).__name__}"
    tasks = result["tasks"]
    if not tasks or not all(isinstance(task, list) and task for task in tasks):
        return "'tasks' must be a list of lists of class names, none of them empty"
    matrices = {name: result[name] for name in ("accuracy", "til_accuracy")}
    for name, reading in result["readings"].items():
        if not (isinstance(reading, dict) and {"accuracy", "aca", "forgetting"} <= reading.keys()):
            return f"the reading {name!r} must have 'accuracy', 'aca' and 'forgetting'"
        for measure in ("aca", "forgetting"):
            if not isinstance(reading[measure], FIELDS[measure]):
                return f"{measure!r} of the reading {name!r} cannot be a {type(reading[measure]).__name__}"
        matrices[f"readings.{name}"] = reading["accuracy"]
    for name, matrix in matrices.items():
        if not _is_lower_triangular(matrix, len(tasks)):
            return f"{name!r} must have one row per task, and row t must hold t numbers"
    if result["free_capacity"] is not None and not _are_numbers(result["free_capacity"], len(tasks)):
        return "'free_capacity' must hold one number per task"
    for name, keys in (("seconds", ("train", "evaluate")), ("unchanged", ("compared", "changed"))):
        if result[name] is not None and not _are_numbers([result[name].get(key) for key in keys], len(keys)):
            return f"{name!r} must hold the numbers {' and '.join(keys)}"
    return None


def _are_numbers(values: object, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, NUMBER) and math.isfinite(value) for value in values)
    )


def _is_lower_triangular(matrix: object, size: int) -> bool:
    return (
        isinstance(matrix, list)
        and len(matrix) == size
        and all(_are_numbers(row, length) for length, row in enumerate(matrix, 1))
    )


def _problem_in_tensors(files: RunFiles) -> str | None:
    tensors, tasks, classes = files.tensors, len(files.result["tasks"]), len(files.classes)
    examples, *_, side = tensors["example_images"].shape if "example_images" in tensors else (0, 0)
    # The kinds are numpy's letters: f is a float, i and u are integers; None is any length.
    wanted: dict[str, tuple[str, tuple[int | None, ...]]] = {
        "known_scores": ("f", (None,)),
        "unknown_scores": ("f", (None,)),
        "threshold": ("f", (1,)),
        "task_confusion": ("iu", (tasks, tasks)),
        "class_confusion": ("iu", (classes, classes)),
        "example_images": ("u", (examples, 3, side, side)),
        "example_truth": ("i", (examples,)),
        "example_prediction": ("i", (examples,)),
        "example_probability": ("f", (examples,)),
    }
    for name, (kinds, shape) in wanted.items():
        if name not in tensors:
            if name in OPTIONAL_TENSORS:
                continue
            return f"the tensor {name!r} is missing"
        tensor = tensors[name]
        fits = len(tensor.shape) == len(shape) and all(
            length in (None, actual) for length, actual in zip(shape, tensor.shape, strict=True)
        )
        if tensor.dtype.kind not in kinds or not fits:
            return f"{name!r} is {tensor.dtype}{list(tensor.shape)}, which does not fit result.json"
        if name in FINITE_TENSORS and not np.isfinite(tensor).any():
            return f"{name!r} holds no finite number"
    for name in ("example_truth", "example_prediction"):
        if ((tensors[name] < -1) | (tensors[name] >= classes)).any():
            return f"{name!r} names a class that result.json does not have"
    return None
