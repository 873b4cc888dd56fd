"""Finds finished runs, and refuses those that say nothing about each other."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from oarlock.errors import OarlockError
from oarlock.report.run_files import read_result
from oarlock.report.wording import printable, shorten

LONGEST_VALUE = 80  # characters of a setting shown in a refusal


class Sample(NamedTuple):
    """What may differ between runs that are averaged."""

    order: str
    seed: int


@dataclass(frozen=True)
class FinishedRun:
    directory: Path
    result: dict[str, Any]

    @property
    def sample(self) -> Sample:
        order = self.result["order"]
        return Sample(",".join(map(str, order)) if isinstance(order, list) else str(order), self.result["seed"])

    def setting(self) -> dict[str, Any]:
        """What every compared run must share. The increment is told by the tasks: 2 may mean the same as 2,2,2."""
        result, tasks = self.result, self.result["tasks"]
        return {
            "protocol": result["protocol"],
            "source": result["source"],
            "number of tasks": len(tasks),
            "increment": [len(task) for task in tasks],
            "classes": sorted(str(name) for task in tasks for name in task),
            "validation": result.get("validation", 0.0),
            "memory": result["memory"],
            "trunk": result["trunk"],
            "trunk that saw these classes": result["overlap"],
            "partial data": result.get("partial", False),
        }


def find_runs(directories: Iterable[Path]) -> tuple[list[FinishedRun], list[Path]]:
    """The finished runs in these directories or up to two levels below, and where runs are not finished."""
    finished: dict[Path, FinishedRun] = {}
    unfinished: dict[Path, Path] = {}
    for directory in directories:
        if not directory.is_dir():
            raise OarlockError(f"there is no directory {directory}")
        found = list(_runs_in(directory, "result.json"))
        for run_dir in found:
            if run_dir.resolve() not in finished:
                finished[run_dir.resolve()] = FinishedRun(run_dir, read_result(run_dir))
        started = [run_dir for run_dir in _runs_in(directory, "config.json") if run_dir not in found]
        unfinished |= {run_dir.resolve(): run_dir for run_dir in started}
        if not found:
            started_only = f"; the run in {started[0]} is not finished" if started else ""
            raise OarlockError(f"there is no finished run in {directory}{started_only}")
    return list(finished.values()), list(unfinished.values())


def check_comparable(runs: Sequence[FinishedRun]) -> None:
    """Refuse runs that differ in more than method, order and seed, and a method that comes in two forms."""
    first_of_method: dict[str, FinishedRun] = {}
    first_of_sample: dict[tuple[str, Sample], FinishedRun] = {}
    for run in runs:
        _check_equal(runs[0], run, runs[0].setting(), run.setting())
        method = run.result["method"]
        # The mean over other hyper-parameters would describe no method at all.
        model = first_of_method.setdefault(method, run)
        _check_equal(model, run, model.result["config"], run.result["config"], f" (both are {method})")
        same = first_of_sample.setdefault((method, run.sample), run)
        if same is not run:
            raise OarlockError(
                f"{same.directory} and {run.directory} are the same run: {method}, order {run.sample.order}, "
                f"seed {run.sample.seed}; leave one out"
            )


def _runs_in(directory: Path, mark: str) -> Iterator[Path]:
    """Where a file of this name marks a run; nothing is looked for inside of a run."""
    if (directory / mark).is_file():
        yield directory
    else:
        yield from sorted(file.parent for depth in ("*", "*/*") for file in directory.glob(f"{depth}/{mark}"))


def _check_equal(
    one: FinishedRun, other: FinishedRun, expected: dict[str, Any], actual: dict[str, Any], why: str = ""
) -> None:
    for name in expected | actual:
        values = [json.dumps(part.get(name), ensure_ascii=False) for part in (expected, actual)]
        if values[0] != values[1]:
            first, second = (shorten(printable(value), LONGEST_VALUE) for value in values)
            raise OarlockError(
                f"{one.directory} and {other.directory} cannot be compared{why}: "
                f"{name} is {first} in the one and {second} in the other"
            )
