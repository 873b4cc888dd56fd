"""The tables of a comparison, before they become HTML, Markdown or lines in a terminal."""

from collections.abc import Sequence
from typing import NamedTuple

from oarlock.report.comparison.summary import ACCURACY, MEASURES, Comparison, Measure, MethodSummary, Spread
from oarlock.report.wording import NOTHING, mean_and_std, printable


class Cell(NamedTuple):
    text: str
    best: bool = False
    words: bool = False  # may be broken into lines, where a number may not


class Grid(NamedTuple):
    """One row per method, whose name is the first cell."""

    headings: list[str]
    rows: list[list[Cell]]


def final(comparison: Comparison) -> Grid:
    """Every measure after the last task, and what it cost."""
    methods = comparison.methods
    columns = {"runs": [Cell(str(len(method.samples))) for method in methods]}
    for measure in MEASURES:
        columns[measure.heading] = _column(measure, [method.numbers[measure.name] for method in methods])
    if any(method.note for method in methods):
        columns["note"] = [Cell(printable(method.note), words=True) for method in methods]
    return _grid(methods, columns)


def after_each_task(comparison: Comparison) -> Grid:
    """Mean accuracy over the tasks seen so far."""
    return _task_grid(comparison.methods, [method.after_each_task for method in comparison.methods])


def by_task(comparison: Comparison) -> Grid:
    """Accuracy on each task after the last one."""
    return _task_grid(comparison.methods, [method.by_task for method in comparison.methods])


def _task_grid(methods: list[MethodSummary], spreads: list[list[Spread]]) -> Grid:
    columns = zip(*spreads, strict=True)
    return _grid(methods, {str(task): _column(ACCURACY, column) for task, column in enumerate(columns, 1)})


def _grid(methods: list[MethodSummary], columns: dict[str, list[Cell]]) -> Grid:
    names = [Cell(printable(method.name)) for method in methods]
    return Grid(["method", *columns], [list(row) for row in zip(names, *columns.values(), strict=True)])


def is_best(measure: Measure, spreads: Sequence[Spread | None]) -> list[bool]:
    """Which of these means are the best; those that look the same are equally good."""
    shown = [None if spread is None else f"{spread.mean:.{measure.digits}f}" for spread in spreads]
    means = [spread.mean for spread in spreads if spread is not None]
    best = f"{measure.best(means):.{measure.digits}f}" if measure.best and means else None
    return [best is not None and mean == best for mean in shown]


def _column(measure: Measure, spreads: Sequence[Spread | None]) -> list[Cell]:
    return [
        Cell(NOTHING) if spread is None else Cell(mean_and_std(*spread, measure.digits), best)
        for spread, best in zip(spreads, is_best(measure, spreads), strict=True)
    ]
