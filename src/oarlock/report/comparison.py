"""Finished runs side by side: found, checked, and one line of numbers per method."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from oarlock.data.images import Label
from oarlock.errors import OarlockError, printable
from oarlock.experiments import metrics
from oarlock.experiments.metrics import Spread
from oarlock.experiments.result import RunResult
from oarlock.markup import card, table
from oarlock.report.wording import NOTHING, mean_and_std, shorten

LONGEST_VALUE = 80  # characters of a setting shown in a refusal


class Sample(NamedTuple):
    """Hold what may differ between runs that are averaged."""

    order: str
    seed: int


@dataclass(frozen=True)
class FinishedRun:
    directory: Path
    result: RunResult

    @property
    def sample(self) -> Sample:
        order = self.result.order
        return Sample(",".join(map(str, order)) if isinstance(order, list) else str(order), self.result.seed)

    def setting(self) -> dict[str, Any]:
        """Return what compared runs must share. The increment is told by the tasks: 2 may mean the same as 2,2,2."""
        result, tasks = self.result, self.result.tasks
        return {
            "protocol": result.protocol,
            "source": result.source,
            "number of tasks": len(tasks),
            "increment": [len(task) for task in tasks],
            "classes": sorted(str(name) for task in tasks for name in task),
            "validation": result.validation,
            "memory": result.memory,
            "trunk": result.trunk,
            "trunk that saw these classes": result.overlap,
            "partial data": result.partial,
        }


def find_runs(directories: Iterable[Path]) -> tuple[list[FinishedRun], list[Path]]:
    """Return the finished runs in these directories or up to two levels below, and where runs are not finished."""
    finished: dict[Path, FinishedRun] = {}
    unfinished: dict[Path, Path] = {}
    for directory in directories:
        if not directory.is_dir():
            raise OarlockError(f"there is no directory {directory}")
        found = list(_runs_in(directory, "result.json"))
        for run_dir in found:
            if run_dir.resolve() not in finished:
                finished[run_dir.resolve()] = FinishedRun(run_dir, RunResult.read(run_dir))
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
        method = run.result.method
        # The mean over other hyper-parameters would describe no method at all.
        model = first_of_method.setdefault(method, run)
        _check_equal(model, run, model.result.config, run.result.config, f" (both are {method})")
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


class Measure(NamedTuple):
    """Describe a number that all runs of a method have, or none of them."""

    name: str  # as in result.json
    heading: str
    digits: int
    best: Callable[[Iterable[float]], float] | None  # None: a cost, which alone makes no method better


ACCURACY = Measure("accuracy", "accuracy, %", 1, max)
MEASURES = (
    Measure("aca", "ACA, %", 1, max),
    Measure("aia", "AIA, %", 1, max),
    Measure("forgetting", "forgetting, points", 1, min),
    Measure("til_accuracy", "TIL accuracy, %", 1, max),
    Measure("task_id_accuracy", "task-id accuracy, %", 1, max),
    Measure("ood_auroc", "open-world AUROC", 3, max),
    Measure("seconds", "time, s", 1, None),
    Measure("entries", "entries", 0, None),
)


class Measured(NamedTuple):
    """Hold the numbers of one method on one stream: a run, or another variant of a run's scores."""

    training: str  # the method that was trained
    numbers: dict[str, float | None]
    accuracy: list[list[float]]


@dataclass(frozen=True)
class MethodSummary:
    """Hold a method's runs, averaged."""

    name: str
    read_from: str | None  # the method whose training it is read from
    samples: list[Sample]
    numbers: dict[str, Spread | None]
    after_each_task: list[Spread]  # ACA
    by_task: list[Spread]  # accuracy on each task after the last one

    def shown(self, measure: Measure) -> str:
        spread = self.numbers[measure.name]
        return NOTHING if spread is None else mean_and_std(*spread, measure.digits)

    @property
    def note(self) -> str:
        return "" if self.read_from is None else f"read from {self.read_from}'s training"

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "read_from": self.read_from,
            "runs": [sample._asdict() for sample in self.samples],
            **{name: spread and spread._asdict() for name, spread in self.numbers.items()},
            "after_each_task": [spread._asdict() for spread in self.after_each_task],
            "by_task": [spread._asdict() for spread in self.by_task],
        }


@dataclass(frozen=True)
class Comparison:
    """Hold methods on the same stream or streams, best ACA first."""

    methods: list[MethodSummary]
    setting: RunResult  # the result of one run, for what all of them share
    orders: dict[str, list[list[Label]]]  # the tasks under each class order
    seeds: list[int]
    runs: int
    warnings: list[str]

    def _repr_html_(self) -> str:
        """Return a card for notebooks."""
        shared = {"runs": self.runs, "class orders": len(self.orders), "tasks": len(self.setting.tasks)}
        facts = shared | ({"warnings": " ".join(self.warnings)} if self.warnings else {})
        heads = ("method", *(measure.heading for measure in MEASURES))
        rows = ((method.name, *(method.shown(measure) for measure in MEASURES)) for method in self.methods)
        return card(f"Methods on {self.setting.source}, trunk {self.setting.trunk}", facts, table(rows, heads))


def compare(directories: Iterable[Path]) -> Comparison:
    """Compare the finished runs in these directories or up to two levels below."""
    runs, unfinished = find_runs(directories)
    check_comparable(runs)
    methods = [_summary(name, measured) for name, measured in _by_method(runs).items()]
    methods.sort(key=lambda method: (-_aca(method), method.name))
    warnings = warn_of_orders(methods)
    if unfinished:
        warnings.append(f"Not finished, so left out: {', '.join(map(str, unfinished))}.")
    return Comparison(
        methods=methods,
        setting=runs[0].result,
        orders={run.sample.order: run.result.tasks for run in sorted(runs, key=lambda run: run.sample)},
        seeds=sorted({run.sample.seed for run in runs}),
        runs=len(runs),
        warnings=warnings,
    )


def _by_method(runs: Sequence[FinishedRun]) -> dict[str, dict[Sample, Measured]]:
    methods: dict[str, dict[Sample, Measured]] = {}
    for run in runs:
        methods.setdefault(run.result.method, {})[run.sample] = _own(run.result)
    for run in runs:
        for name in run.result.variants:  # a method's own run says more about it
            methods.setdefault(name, {}).setdefault(run.sample, _read(run.result, name))
    return methods


def _own(result: RunResult) -> Measured:
    names = ("aca", "aia", "forgetting", "task_id_accuracy", "ood_auroc")
    numbers = {name: getattr(result, name) for name in names} | {"til_accuracy": metrics.aca(result.til_accuracy)}
    return Measured(result.method, numbers | _costs(result), result.accuracy)


def _read(result: RunResult, name: str) -> Measured:
    variant = result.variants[name]
    numbers = {"aca": variant.aca, "aia": metrics.aia(variant.accuracy), "forgetting": variant.forgetting}
    return Measured(result.method, numbers | _costs(result), variant.accuracy)


def _costs(result: RunResult) -> dict[str, float | None]:
    return {"seconds": result.seconds["train"] + result.seconds["evaluate"], "entries": result.entries}


def _summary(name: str, measured: dict[Sample, Measured]) -> MethodSummary:
    matrices = [one.accuracy for one in measured.values()]
    trainings = sorted({one.training for one in measured.values()})
    return MethodSummary(
        name=name,
        read_from=None if trainings == [name] else " and ".join(trainings),
        samples=sorted(measured),
        numbers={name: _spread([one.numbers.get(name) for one in measured.values()]) for name, *_ in MEASURES},
        after_each_task=[Spread.of([fmean(row) for row in rows]) for rows in zip(*matrices, strict=True)],
        by_task=[Spread.of(values) for values in zip(*(matrix[-1] for matrix in matrices), strict=True)],
    )


def _spread(values: list[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread.of(known) if len(known) == len(values) else None


def _aca(method: MethodSummary) -> float:
    spread = method.numbers["aca"]
    assert spread is not None, "every run has an ACA"
    return spread.mean


def warn_of_orders(methods: list[MethodSummary]) -> list[str]:
    """Return a warning where means are over different class orders, so that they are not quite comparable."""
    by_orders: dict[tuple[str, ...], list[str]] = {}
    for method in methods:
        by_orders.setdefault(tuple(sorted({sample.order for sample in method.samples})), []).append(method.name)
    if len(by_orders) == 1:
        return []
    groups = (f"{', '.join(names)} on {_named(orders)}" for orders, names in by_orders.items())
    return [f"The methods were measured on different class orders: {'; '.join(groups)}."]


def _named(orders: Sequence[str]) -> str:
    return ("order " if len(orders) == 1 else "orders ") + ", ".join(shorten(order, 30) for order in orders)
