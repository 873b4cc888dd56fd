"""From the results of runs to one line of numbers per method: means and standard deviations over its runs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from oarlock import metrics
from oarlock.report.comparison.finished import FinishedRun, Sample, check_comparable, find_runs
from oarlock.report.wording import shorten


class Measure(NamedTuple):
    """A number that every run has, or none of a method's runs."""

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


class Spread(NamedTuple):
    """A mean over runs and the sample's standard deviation; a single run has none."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """
        >>> Spread.of([1.0, 3.0]), Spread.of([2.0])
        (Spread(mean=2.0, std=1.4142135623730951), Spread(mean=2.0, std=None))
        """
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


class Measured(NamedTuple):
    """One method on one stream: a run, or another reading of a run's scores."""

    training: str  # the method that was trained
    numbers: dict[str, float | None]
    accuracy: list[list[float]]


@dataclass(frozen=True)
class MethodSummary:
    """A method's runs, averaged."""

    name: str
    read_from: str | None  # the method whose training it is read from
    samples: list[Sample]
    numbers: dict[str, Spread | None]
    after_each_task: list[Spread]  # ACA
    by_task: list[Spread]  # accuracy on each task after the last one

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
    """Methods on the same stream or streams, best ACA first."""

    methods: list[MethodSummary]
    setting: dict[str, Any]  # the result of one run, for what all of them share
    orders: dict[str, list[list[object]]]  # the tasks under each class order
    seeds: list[int]
    runs: int
    warnings: list[str]


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
        orders={run.sample.order: run.result["tasks"] for run in sorted(runs, key=lambda run: run.sample)},
        seeds=sorted({run.sample.seed for run in runs}),
        runs=len(runs),
        warnings=warnings,
    )


def _by_method(runs: Sequence[FinishedRun]) -> dict[str, dict[Sample, Measured]]:
    methods: dict[str, dict[Sample, Measured]] = {}
    for run in runs:
        methods.setdefault(run.result["method"], {})[run.sample] = _own(run.result)
    for run in runs:
        for name in run.result["readings"]:  # a method's own run says more about it
            methods.setdefault(name, {}).setdefault(run.sample, _read(run.result, name))
    return methods


def _own(result: dict[str, Any]) -> Measured:
    names = ("aca", "aia", "forgetting", "task_id_accuracy", "ood_auroc")
    numbers = {name: result[name] for name in names} | {"til_accuracy": metrics.aca(result["til_accuracy"])}
    return Measured(result["method"], numbers | _costs(result), result["accuracy"])


def _read(result: dict[str, Any], name: str) -> Measured:
    reading = result["readings"][name]
    numbers = {"aca": reading["aca"], "aia": metrics.aia(reading["accuracy"]), "forgetting": reading["forgetting"]}
    return Measured(result["method"], numbers | _costs(result), reading["accuracy"])


def _costs(result: dict[str, Any]) -> dict[str, float | None]:
    return {"seconds": result["seconds"]["train"] + result["seconds"]["evaluate"], "entries": result["entries"]}


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
    """Means over different class orders are not quite comparable."""
    by_orders: dict[tuple[str, ...], list[str]] = {}
    for method in methods:
        by_orders.setdefault(tuple(sorted({sample.order for sample in method.samples})), []).append(method.name)
    if len(by_orders) == 1:
        return []
    groups = (f"{', '.join(names)} on {_named(orders)}" for orders, names in by_orders.items())
    return [f"The methods were measured on different class orders: {'; '.join(groups)}."]


def _named(orders: Sequence[str]) -> str:
    return ("order " if len(orders) == 1 else "orders ") + ", ".join(shorten(order, 30) for order in orders)
