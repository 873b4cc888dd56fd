"""One table per measure and size of memory: methods down, protocols across, the paper's numbers beside."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from oarlock.errors import OarlockError
from oarlock.report.bench.columns import Column
from oarlock.report.bench.paper import in_paper_order
from oarlock.report.comparison.grids import is_best
from oarlock.report.comparison.summary import MEASURES, Measure, Spread

MEASURE_NAMES = tuple(measure.name for measure in MEASURES)
UPPER_BOUND = "joint"  # learns all classes at once, so it does not compete


class Cell(NamedTuple):
    ours: Spread | None = None
    paper: Spread | None = None
    finished: int = 0  # class orders
    planned: int = 0
    best: bool = False
    rank: int | None = None  # by ACA, among those who compete

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper.mean

    @property
    def pending(self) -> bool:
        return self.finished < self.planned


class Row(NamedTuple):
    method: str
    cells: list[Cell]
    average: Cell
    paper_rank: int | None  # by the paper's average, among the rows that have one

    @property
    def rank(self) -> int | None:
        return self.average.rank


@dataclass(frozen=True)
class Table:
    measure: Measure
    memory: str  # "", "half", "memory-50"
    columns: list[Column]
    rows: list[Row]

    @property
    def has_numbers(self) -> bool:
        return any(cell.ours for row in self.rows for cell in row.cells)

    @property
    def ranked(self) -> bool:
        return self.measure.name == "aca"


def tabulate(columns: Sequence[Column], measure: str | None = None) -> list[Table]:
    """The tables of one measure, or of all that were measured."""
    if measure is not None and measure not in MEASURE_NAMES:
        raise OarlockError(f"there is no measure {measure!r}; choose one of {', '.join(MEASURE_NAMES)}")
    memories = list(dict.fromkeys(sorted((column.memory for column in columns), key=len)))
    tables = [
        _table(one, memory, [column for column in columns if column.memory == memory])
        for one in MEASURES
        if measure in (None, one.name)
        for memory in memories
    ]
    # A table of pending cells is worth showing once, not for every measure.
    return [table for table in tables if table.has_numbers or measure or table.ranked]


def _table(measure: Measure, memory: str, columns: list[Column]) -> Table:
    methods = in_paper_order({method for column in columns for method in column.methods})
    competing = [method != UPPER_BOUND for method in methods]
    cells = [[_cell(measure, column, name) for name in methods] for column in columns]
    by_method = [list(row) for row in zip(*(_judged(measure, column, competing) for column in cells), strict=True)]
    # Two columns beside the same one of the paper's would count that twice.
    beside = len({column.modelled_on for column in columns}) == len(columns)
    averages = _judged(measure, [_average(row, beside) for row in by_method], competing)
    paper_means = [cell.paper and cell.paper.mean for cell in averages]
    papers = _ranks(measure, [mean if ours else None for mean, ours in zip(paper_means, competing, strict=True)])
    rows = zip(methods, by_method, averages, papers, strict=True)
    return Table(measure, memory, columns, [Row(*row) for row in rows])


def _cell(measure: Measure, column: Column, method: str) -> Cell:
    summary = column.summary(method)
    return Cell(
        None if summary is None else summary.numbers[measure.name],
        column.paper(measure.name, method),
        finished=0 if summary is None else len(summary.samples),
        planned=column.planned.get(method, 0),
    )


def _average(cells: list[Cell], with_paper: bool) -> Cell:
    """Only of a whole row: a mean over fewer protocols is another number."""
    # As far as the cell that is farthest behind; one that is not even planned will never be there.
    last = min(cells, key=lambda cell: (max(cell.planned, cell.finished) > 0, cell.finished - cell.planned))
    return Cell(
        _mean([cell.ours for cell in cells]),
        _mean([cell.paper for cell in cells]) if with_paper else None,
        last.finished,
        last.planned,
    )


def _mean(spreads: Sequence[Spread | None]) -> Spread | None:
    known = [spread for spread in spreads if spread is not None]
    if len(known) < len(spreads):
        return None
    return known[0] if len(known) == 1 else Spread(fmean(spread.mean for spread in known), None)


def _judged(measure: Measure, cells: list[Cell], competing: list[bool]) -> list[Cell]:
    ours = [cell.ours if competes else None for cell, competes in zip(cells, competing, strict=True)]
    best = is_best(measure, ours)
    ranks = _ranks(measure, [spread and spread.mean for spread in ours])
    return [cell._replace(best=b, rank=r) for cell, b, r in zip(cells, best, ranks, strict=True)]


def _ranks(measure: Measure, means: Sequence[float | None]) -> list[int | None]:
    """1 for the highest; those that look the same share a rank."""
    if measure.name != "aca":
        return [None] * len(means)
    shown = [None if mean is None else round(mean, measure.digits) for mean in means]
    return [
        None if mine is None else 1 + sum(other is not None and other > mine for other in shown) for mine in shown
    ]
