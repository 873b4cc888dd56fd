"""One table per measure and size of memory: methods down, protocols across, the paper's numbers beside."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from oarlock.errors import OarlockError
from oarlock.experiments.metrics import Spread
from oarlock.experiments.paper import FROM_TPL, in_paper_order, paper_number
from oarlock.experiments.plan import Plan
from oarlock.experiments.protocols import DEIT, PAPER, PROTOCOLS
from oarlock.report.comparison import MEASURES, Comparison, Measure, MethodSummary, compare, warn_of_orders
from oarlock.report.comparison_page import facts, is_best


@dataclass(frozen=True)
class Column:
    """Hold the runs of one protocol with one size of memory."""

    name: str
    protocol: str | None  # None: a stream that has no name
    memory: str  # "", "half" or "memory-50", as in the directory's name
    comparison: Comparison | None  # None: no run is finished
    planned: dict[str, int]  # class orders by method

    @property
    def methods(self) -> set[str]:
        return {method.name for method in self.summaries} | self.planned.keys()

    @property
    def summaries(self) -> list[MethodSummary]:
        return [] if self.comparison is None else self.comparison.methods

    def summary(self, method: str) -> MethodSummary | None:
        return next((summary for summary in self.summaries if summary.name == method), None)

    @property
    def modelled_on(self) -> str | None:
        """Return the paper's protocol that this one is modelled on, if any."""
        return None if self.protocol is None else next((n for n in PAPER if self.protocol.startswith(n)), None)

    @property
    def as_in_the_paper(self) -> bool:
        """Return whether the paper's number is of the same stream, images and trunk; else it is for orientation."""
        if self.comparison is None or self.protocol != self.modelled_on:
            return False
        setting = self.comparison.setting
        return setting.trunk == DEIT and setting.overlap != "yes" and not setting.partial

    def paper(self, measure: str, method: str) -> Spread | None:
        if self.modelled_on is None or self.memory not in ("", "half"):
            return None
        if measure == "entries" and not self.as_in_the_paper:
            return None  # the size of another trunk is no orientation
        return paper_number(measure, self.modelled_on, method, half_memory=self.memory == "half")


def find_columns(directory: Path) -> list[Column]:
    """Return the columns in a directory of `oarlock bench`, planned or finished; or of the runs of one protocol."""
    if not directory.is_dir():
        raise OarlockError(f"there is no directory {directory}")
    plan = Plan.load(directory)
    if any(directory.glob("order-*/")):
        found, plan = [directory], Plan.load(directory.resolve().parent).only(directory.resolve().name)
    else:
        found = sorted({result.parents[2] for result in directory.glob("*/*/*/result.json")})
    columns = [_finished(place, plan) for place in found]
    waiting = plan.columns.keys() - {column.name for column in columns}
    columns += [_waiting(name, plan) for name in waiting]
    if not columns:
        raise OarlockError(f"there is no finished run in {directory}, and none is planned")
    return sorted(columns, key=_place)


def _finished(place: Path, plan: Plan) -> Column:
    comparison, name = compare([place]), place.resolve().name
    protocol = comparison.setting.protocol
    own = protocol is not None and name.startswith(protocol)
    memory = name.removeprefix(protocol or "").removeprefix("-") if own else ""
    return Column(name, protocol, memory, comparison, plan.orders(name))


def _waiting(name: str, plan: Plan) -> Column:
    settings, _ = plan.columns[name]
    return Column(name, settings.protocol, settings.memory_kind, None, plan.orders(name))


def _place(column: Column) -> tuple[int, str]:
    """The protocols in the order in which they are listed."""
    names = list(PROTOCOLS)
    return names.index(column.protocol) if column.protocol in names else len(names), column.name


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
    """Return the tables of one measure, or of all that were measured."""
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


HEADINGS = {
    "aca": "Average accuracy after the last task (ACA), %",
    "aia": "Average of the accuracies after each task (AIA), %",
    "forgetting": "Forgetting, points",
    "til_accuracy": "Accuracy with the task given (TIL), %",
    "task_id_accuracy": "Share of images whose task was recognised, %",
    "ood_auroc": "Known against never-learned classes, AUROC",
    "seconds": "Time of training and evaluation, s",
    "entries": "Entries of the model, images of the memory not counted",
}


def heading(table: Table) -> str:
    """Return what stands above a table.

    >>> from oarlock.report.comparison import MEASURES
    >>> heading(Table(MEASURES[2], "half", [], []))
    'Forgetting, points: half memory'
    """
    memory = {"": "", "half": ": half memory"}.get(table.memory, f": {table.memory.replace('-', ' ')}")
    return HEADINGS[table.measure.name] + memory


def notes(table: Table) -> list[str]:
    return [*_on_cells(table), *_on_the_paper(table), *_on_methods(table), *_on_columns(table)]


def _on_cells(table: Table) -> Iterator[str]:
    judged = "" if table.measure.best is None else "; the best of a column is bold"
    yield f"Mean ± standard deviation over class orders{judged}."
    cells = [cell for row in table.rows for cell in row.cells]
    if any(cell.pending and not cell.finished for cell in cells):
        yield "pending: planned, not finished."
    if any(cell.pending and cell.finished for cell in cells):
        yield "(1 of 3): class orders finished of those planned; the rest is pending."
    if len(table.columns) > 1:
        paper = "; the paper's is over the columns shown" if any(row.average.paper for row in table.rows) else ""
        yield f"The average is that of a row's means, where every protocol has one{paper}."
    if table.ranked and any(row.rank for row in table.rows):
        by = "the average" if len(table.columns) > 1 else "ACA"
        paper = "; the paper's by its own numbers" if any(row.paper_rank for row in table.rows) else ""
        yield f"The rank is by {by}{paper}, among the methods here."


def _on_the_paper(table: Table) -> Iterator[str]:
    if not any(cell.paper for row in table.rows for cell in row.cells):
        return
    yield "After the dot, the paper's number and, in brackets, ours minus the paper's."
    orientation = [column for column in table.columns if not column.as_in_the_paper and column.modelled_on]
    if orientation:
        pairs = ", ".join(f"{column.name} beside {str(column.modelled_on).upper()}" for column in orientation)
        yield (
            f"For orientation only ({pairs}): the paper's numbers are of the whole data set on DeiT-S/16, "
            "so a difference from them says little."
        )
    shown = {row.method for row in table.rows if any(cell.paper for cell in row.cells)}
    if others := [name for name in FROM_TPL if name in shown]:
        yield f"The numbers beside {' and '.join(others)} are from TPL's paper (ICLR 2024)."


def _on_methods(table: Table) -> Iterator[str]:
    if UPPER_BOUND in (row.method for row in table.rows) and table.measure.best is not None:
        yield f"{UPPER_BOUND} learns all classes at once: an upper bound, neither bold nor ranked."
    for note in dict.fromkeys(s.note for column in table.columns for s in column.summaries if s.note):
        names = {s.name for column in table.columns for s in column.summaries if s.note == note}
        yield f"{', '.join(sorted(names))}: {note}, and so with its costs."


def _on_columns(table: Table) -> Iterator[str]:
    for column in table.columns:
        if column.comparison is None:
            continue
        known = facts(column.comparison)
        yield f"{column.name}: " + "; ".join(
            (
                known["Stream"],
                f"class orders {', '.join(column.comparison.orders)}",
                f"memory of {known['Memory']}",
                f"trunk {known['Trunk']}, whose pre-training saw {known['Pre-training saw']}",
                *([f"tested on {known['Tested on']}"] if "Tested on" in known else []),
                *([known["Protocol"]] if column.comparison.setting.partial else []),
            )
        ) + "."  # fmt: skip
        for warning in warn_of_orders(column.summaries):
            yield f"{column.name}: {warning}"
