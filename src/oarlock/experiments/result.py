"""What a run comes to: `result.json`, written and read here alone, and the files beside it."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oarlock.data.images import Label
from oarlock.errors import OarlockError
from oarlock.files import read_json, read_tensors, write_json
from oarlock.markup import card, table
from oarlock.schema import (
    boolean,
    either,
    integer,
    list_of,
    mapping,
    maybe,
    number,
    plain,
    record,
    text,
    understood,
)
from oarlock.tasks import LABEL, MOST_TASKS
from oarlock.theory.certificate import THEORY_FILE, Certificate, read_certificate
from oarlock.upgrades import FORMAT, is_newer, upgrade_result

Array = np.ndarray[Any, Any]
Rows = list[list[float]]  # row t holds tasks 1 … t after task t, in percent

FILE = "result.json"
OPTIONAL_TENSORS = ("unknown_scores", "threshold")
FINITE_TENSORS = ("known_scores", *OPTIONAL_TENSORS)
NUMPYS = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)
AGAIN = "evaluate the run again to rewrite it"


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
    # Promised values: how many were compared, how many are not bit for bit what they were; and where that is not the
    # promise, its tolerance and the largest difference (None: not a number).
    unchanged: dict[str, Any] | None
    entries: int
    seconds: dict[str, float]
    peak_mb: float | None
    free_capacity: list[float] | None  # by task; None where capacity does not run out
    overlap: str
    versions: dict[str, str]

    def _repr_html_(self) -> str:
        """Return a card for notebooks."""
        measured = {
            "ACA, %": (self.aca, 1),
            "forgetting": (self.forgetting, 1),
            "open-world AUROC": (self.ood_auroc, 3),
        }
        facts: dict[str, object] = {
            name: f"{value:.{digits}f}" for name, (value, digits) in measured.items() if value is not None
        }
        facts |= {"classes": sum(map(len, self.tasks)), "tasks": len(self.tasks), "seconds": self.seconds["train"]}
        if self.free_capacity:
            facts["free capacity"] = f"{100 * self.free_capacity[-1]:.0f} %"
        rows = ((after, *(f"{value:.1f}" for value in row)) for after, row in enumerate(self.accuracy, 1))
        heads = ("after task", *(f"{task}, %" for task in range(1, len(self.tasks) + 1)))
        return card(f"{self.method} on {self.source}, trunk {self.trunk}", facts, table(rows, heads))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: object) -> "RunResult":
        """Return the result that `to_json` gave, of this version or an earlier one; refuse anything else, saying
        what is wrong with it."""
        with understood("it"):
            written = record({}, {"format": integer(1, FORMAT)})(content, "")
            values = RESULT(upgrade_result(written), "")
        values = {name: value for name, value in values.items() if name in _FIELDS}
        values["variants"] = {name: Variant(**variant) for name, variant in values["variants"].items()}
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
        if is_newer(content):
            raise OarlockError(f"{run_dir / FILE} was written by a newer Oarlock; please upgrade")
        try:
            return cls.from_json(content)
        except OarlockError as problem:
            raise OarlockError(f"{run_dir / FILE}: {problem}; {AGAIN}") from problem


def _inconsistency(result: RunResult) -> str | None:
    tasks = len(result.tasks)
    matrices = {"accuracy": result.accuracy, "til_accuracy": result.til_accuracy}
    matrices |= {f"variants.{name}": variant.accuracy for name, variant in result.variants.items()}
    for name, matrix in matrices.items():
        if [len(row) for row in matrix] != list(range(1, tasks + 1)):
            return f"{name!r} must have one row per task, and row t must hold t numbers"
    if result.free_capacity is not None and len(result.free_capacity) != tasks:
        return "'free_capacity' must hold one number per task"
    return None


NAMES = list_of(text())
PERCENT, SHARE = number(-1e4, 1e4), number(-1, 2)  # some further than they can be, for what rounding does
ROWS = list_of(list_of(PERCENT))
RESULT = record(
    {
        "method": text(100),
        "protocol": maybe(text(100)),
        "source": text(),
        "order": maybe(either(integer(), text(), NAMES)),
        "seed": integer(),
        "memory": maybe(integer(0)),
        "trunk": text(200),
        "config": mapping(plain),
        "threads": maybe(integer(0)),
        "tasks": list_of(list_of(LABEL, least=1), least=1, most=MOST_TASKS),
        "accuracy": ROWS,
        "til_accuracy": ROWS,
        "task_id_accuracy": PERCENT,
        "aca": PERCENT,
        "aia": PERCENT,
        "forgetting": maybe(PERCENT),
        "ood_auroc": maybe(SHARE),
        "ood_fpr95": maybe(SHARE),
        "variants": mapping(
            record({"accuracy": ROWS, "aca": PERCENT, "forgetting": maybe(PERCENT)}, others=False), most=100
        ),
        "unchanged": maybe(
            record(
                {"compared": integer(0), "changed": integer(0)},
                {"tolerance": number(0), "difference": maybe(number(0))},
            )
        ),
        "entries": integer(0),
        "seconds": record({"train": number(0, 1e12), "evaluate": number(0, 1e12)}),
        "peak_mb": maybe(number(0, 1e12)),
        "free_capacity": maybe(list_of(SHARE)),
        "overlap": text(100),
        "versions": mapping(text()),
    },
    {
        "format": integer(1, FORMAT),
        "partial": boolean,
        "images_per_class": mapping(list_of(integer(0), 2, 2)),
        "increment": maybe(either(integer(), list_of(integer()))),
        "validation": SHARE,
    },
)
_FIELDS = {one.name for one in fields(RunResult)}


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
    if strange := [name for name, tensor in tensors.items() if tensor.dtype not in NUMPYS]:
        raise OarlockError(f"{tensor_file}: {strange[0]!r} is {tensors[strange[0]].dtype}; {AGAIN}")
    files = RunFiles(result, {name: tensor.numpy() for name, tensor in tensors.items()}, certificate)
    if problem := _problem_in_tensors(files):
        raise OarlockError(f"{tensor_file}: {problem}; {AGAIN}")
    return files


def _problem_in_tensors(files: RunFiles) -> str | None:
    tensors, tasks, classes = files.tensors, len(files.result.tasks), len(files.classes)
    examples, *_, side = (0, 0, *(tensors["example_images"].shape if "example_images" in tensors else ()))[-4:]
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
