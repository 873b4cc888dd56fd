"""What a run comes to: `result.json`, written and read here alone, and the files beside it."""

import math
import types
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from oarlock.data.images import Label
from oarlock.errors import OarlockError
from oarlock.files import read_json, read_tensors, write_json
from oarlock.theory.certificate import THEORY_FILE, Certificate, read_certificate
from oarlock.upgrades import FORMAT, upgrade_result

Array = np.ndarray[Any, Any]
Rows = list[list[float]]  # row t holds tasks 1 … t after task t, in percent

FILE = "result.json"
OPTIONAL_TENSORS = ("unknown_scores", "threshold")
FINITE_TENSORS = ("known_scores", *OPTIONAL_TENSORS)


@dataclass(frozen=True)
class Variant:
    """Hold the numbers of other scores of the same trained model."""

    accuracy: Rows
    aca: float
    forgetting: float | None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Hold all that is reported, compared and tabulated about a finished run. Accuracies are in percent."""

    format: int = FORMAT
    method: str
    protocol: str | None
    partial: bool = False
    images_per_class: dict[str, list[int]] = field(default_factory=dict)
    source: str
    increment: int | list[int] | None = None
    order: str | int | list[str] | None
    validation: float = 0.0
    seed: int
    memory: int | None
    trunk: str
    config: dict[str, Any]
    threads: int | None
    tasks: list[list[Label]]
    accuracy: Rows
    til_accuracy: Rows
    task_id_accuracy: float
    aca: float
    aia: float
    forgetting: float | None  # None with one task
    ood_auroc: float | None  # 0 to 1; None without unknown images
    ood_fpr95: float | None
    variants: dict[str, Variant]
    unchanged: dict[str, int] | None  # values promised bit-identical: how many were compared, how many changed
    entries: int
    seconds: dict[str, float]
    peak_mb: float | None
    free_capacity: list[float] | None  # by task; None where capacity does not run out
    overlap: str
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: object) -> "RunResult":
        """Return the result that `to_json` gave, of this version or an earlier one; refuse anything else, saying
        what is wrong with it."""
        if not isinstance(content, dict):
            raise OarlockError("it holds no JSON object")
        content = upgrade_result(content)
        values = {name: checked(name, kind, content) for name, kind in _kinds().items() if _given(name, content)}
        values["variants"] = {name: _variant(name, variant) for name, variant in values["variants"].items()}
        result = cls(**values)
        if problem := _inconsistency(result):
            raise OarlockError(problem)
        return result

    def write(self, run_dir: Path) -> None:
        write_json(run_dir / FILE, self.to_json())

    @classmethod
    def read(cls, run_dir: Path) -> "RunResult":
        """Return the result of a finished run."""
        content = read_json(run_dir / FILE)
        if isinstance(content, dict) and content.get("format", 1) not in range(1, FORMAT + 1):
            raise OarlockError(f"{run_dir / FILE} was written by a newer Oarlock; please upgrade")
        try:
            return cls.from_json(content)
        except OarlockError as problem:
            raise OarlockError(f"{run_dir / FILE}: {problem}; evaluate the run again to rewrite it") from problem


def _kinds() -> dict[str, Any]:
    return get_type_hints(RunResult)


def _given(name: str, content: dict[str, Any]) -> bool:
    """Whether a value is to be read; what earlier versions did not write has a default."""
    (its,) = [one for one in fields(RunResult) if one.name == name]
    return name in content or (its.default is MISSING and its.default_factory is MISSING)


def checked(name: str, kind: Any, content: dict[str, Any]) -> Any:
    """Return a value of a description if it is of the kind that the field's annotation tells."""
    if name not in content:
        raise OarlockError(f"the field {name!r} is missing")
    value = content[name]
    if not isinstance(value, _classes(kind)):
        raise OarlockError(f"the field {name!r} cannot be a {type(value).__name__}")
    return value


def _classes(kind: Any) -> tuple[type, ...]:
    """Return what a value may be an instance of: an annotation without what stands in brackets."""
    if isinstance(kind, types.UnionType) or get_origin(kind) is Union:
        return tuple(one for part in get_args(kind) for one in _classes(part))
    kind = get_origin(kind) or kind
    return (int, float) if kind is float else (kind,)


def _variant(name: str, content: Any) -> Variant:
    kinds = get_type_hints(Variant)
    if not (isinstance(content, dict) and kinds.keys() <= content.keys()):
        raise OarlockError(f"the variant {name!r} must have 'accuracy', 'aca' and 'forgetting'")
    for measure, kind in kinds.items():
        if measure != "accuracy" and not isinstance(content[measure], _classes(kind)):
            said = type(content[measure]).__name__
            raise OarlockError(f"{measure!r} of the variant {name!r} cannot be a {said}")
    return Variant(**{measure: content[measure] for measure in kinds})


def _inconsistency(result: RunResult) -> str | None:
    tasks = result.tasks
    if not tasks or not all(isinstance(task, list) and task for task in tasks):
        return "'tasks' must be a list of lists of class names, none of them empty"
    matrices = {"accuracy": result.accuracy, "til_accuracy": result.til_accuracy}
    matrices |= {f"variants.{name}": variant.accuracy for name, variant in result.variants.items()}
    for name, matrix in matrices.items():
        if not _is_lower_triangular(matrix, len(tasks)):
            return f"{name!r} must have one row per task, and row t must hold t numbers"
    if result.free_capacity is not None and not _are_numbers(result.free_capacity, len(tasks)):
        return "'free_capacity' must hold one number per task"
    for name, keys in (("seconds", ("train", "evaluate")), ("unchanged", ("compared", "changed"))):
        numbers = getattr(result, name)
        if numbers is not None and not _are_numbers([numbers.get(key) for key in keys], len(keys)):
            return f"{name!r} must hold the numbers {' and '.join(keys)}"
    return None


def _are_numbers(values: object, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
    )


def _is_lower_triangular(matrix: object, size: int) -> bool:
    return (
        isinstance(matrix, list)
        and len(matrix) == size
        and all(_are_numbers(row, length) for length, row in enumerate(matrix, 1))
    )


@dataclass(frozen=True)
class RunFiles:
    """Hold `result.json`, the tensors of `evaluation.safetensors` and `theory.json`, checked against each other."""

    result: RunResult
    tensors: dict[str, Array]
    certificate: Certificate | None = None  # where the method has detectors

    @property
    def classes(self) -> list[Label]:
        """Return every class learned, in the order in which the tensors number them."""
        return [name for task in self.result.tasks for name in task]


def read_run_files(run_dir: Path) -> RunFiles:
    """Return what a finished run left behind; refuse what a report cannot be drawn from."""
    tensor_file = run_dir / "evaluation.safetensors"
    for file in (run_dir / FILE, tensor_file):
        if not file.is_file():
            raise OarlockError(f"there is no file {file}; a report needs the directory of a finished run")
    result = RunResult.read(run_dir)
    tensors, _ = read_tensors(tensor_file, "evaluation")
    certificate = read_certificate(run_dir)
    if certificate is not None and certificate.tasks != result.tasks:
        raise OarlockError(f"{run_dir / THEORY_FILE} is of other tasks than {FILE}: remove it")
    if certificate is not None:
        certificate = replace(certificate, method=result.method)  # as it is called today
    files = RunFiles(result, {name: tensor.numpy() for name, tensor in tensors.items()}, certificate)
    if problem := _problem_in_tensors(files):
        raise OarlockError(f"{tensor_file}: {problem}; evaluate the run again to rewrite it")
    return files


def _problem_in_tensors(files: RunFiles) -> str | None:
    tensors, tasks, classes = files.tensors, len(files.result.tasks), len(files.classes)
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
