"""What the theory says of one model and its test images: `theory.json`."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from oarlock.errors import OarlockError
from oarlock.files import read_json, write_json

THEORY_FILE = "theory.json"

Numbers = list[float]  # one for every task, or for every k = 1 … T


@dataclass(frozen=True)
class Statement:
    """One construction on the first k tasks, and what its bound is made of."""

    risk: Numbers  # of h̃_k
    bound: Numbers  # for every k; above 1 it is vacuous
    multiplier: float
    detector_risk: Numbers  # R_t, on the mixture that h_t is charged with
    foreign_share: Numbers  # α'_t of that mixture
    bound_share: Numbers  # of the bound for all tasks, spent by h_t


@dataclass(frozen=True)
class ClosedWorld:
    """Theorem 1's counterexample: as good as before inside task k, useless for all tasks before it."""

    newest_before: Numbers  # risk of the method's own scores inside task k, the task given
    newest: Numbers  # risk of σ(z) + i on the images of task k, the first k tasks competing
    older: list[float | None]  # its risk on the images of tasks before k
    risk: Numbers  # its risk on the images of the first k tasks


@dataclass(frozen=True)
class Certificate:
    """Measured risks and bounds of a model's own detectors, as they are after the last task."""

    method: str
    tasks: list[list[str | int]]
    known_images: int
    unknown_images: int
    alpha: float  # the share of unknown images mixed into every task
    weights: Numbers  # π: the tasks' shares of the test images
    own_risk: Numbers  # of the method itself, the first k tasks competing
    own_accept: float | None  # it answers "unknown" below the threshold that accepts this share; None: never
    theorem3: Statement
    printed_bound: Numbers  # the paper's, which need not hold where alpha > 0
    best_multiplier: float  # Theorem 3's, without foreign data, for the best order of these tasks
    worst_multiplier: float
    corollary: Statement  # among several claimants the surest is chosen
    worst_claimant_risk: Numbers  # of the same when a wrong one is chosen
    theorem1: ClosedWorld

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write_certificate(certificate: Certificate, run_dir: Path) -> None:
    write_json(run_dir / THEORY_FILE, certificate.to_json())


def read_certificate(run_dir: Path) -> Certificate | None:
    """The content of a run's `theory.json`, checked; None where there is none."""
    file = run_dir / THEORY_FILE
    if not file.is_file():
        return None
    content = read_json(file)
    try:
        certificate: Certificate = _parse(Certificate, content, len(content["tasks"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise OarlockError(f"{file} is damaged ({problem}); write it again with oarlock theory") from problem
    return certificate


def _parse(kind: Any, content: Mapping[str, Any], tasks: int) -> Any:
    values = {}
    for field in fields(kind):
        value = content[field.name]
        if is_dataclass(field.type):
            value = _parse(field.type, value, tasks)
        elif field.type == Numbers and not (len(value) == tasks and all(map(math.isfinite, value))):
            raise ValueError(f"{field.name!r} must hold {tasks} numbers")
        elif field.type is float and not math.isfinite(value):
            raise ValueError(f"{field.name!r} must be a number")
        values[field.name] = value
    return kind(**values)
