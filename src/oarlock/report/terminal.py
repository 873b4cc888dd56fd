"""Runs and comparisons in a terminal, 80 columns wide."""

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oarlock.data.images import Label
from oarlock.errors import printable
from oarlock.experiments.metrics import aca
from oarlock.experiments.result import RunResult
from oarlock.printing import NamesTable, say
from oarlock.report import comparison_page, wording
from oarlock.report.comparison import Comparison
from oarlock.report.comparison_page import Cell, Grid, title
from oarlock.report.wording import shorten

AFTER, NARROWEST, WIDEST, GAP = 5, 5, 11, 2
MOST_NAMES = 2


def print_summary(result: RunResult, console: Console) -> None:
    """Print what `result.json` says about a run."""
    say("Accuracy on each task, %", to=console)
    for table in _accuracy_tables(result, console.width):
        console.print(table)
        console.print()
    console.print(_measures(result))
    console.print()
    if result.variants:
        console.print(_variants(result.variants))
        console.print()
    console.print(_costs(result))
    broken = result.unchanged is not None and not wording.is_kept(result.unchanged)
    console.print(Text(wording.promise(result.unchanged), style="bold red" if broken else "bold"))


def ruled_table() -> Table:
    return NamesTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))


def _accuracy_tables(result: RunResult, width: int) -> list[Table]:
    """The matrix, cut into as many tables as it takes to keep every number whole."""
    tasks, space = result.tasks, width - AFTER - GAP
    per_table = max(1, space // (NARROWEST + GAP))
    column_width = max(NARROWEST, min(WIDEST, space // min(per_table, len(tasks)) - GAP))
    tables = []
    for start in range(0, len(tasks), per_table):
        shown = range(start, min(start + per_table, len(tasks)))
        table = ruled_table()
        table.add_column("after\ntask", justify="right", width=AFTER)
        for task in shown:
            table.add_column(_task_heading(task, tasks[task], column_width), justify="right", width=column_width)
        # Rows before the table's first task would be blank.
        for after in range(start, len(tasks)):
            row = result.accuracy[after]
            table.add_row(str(after + 1), *(f"{row[task]:.1f}" if task <= after else "" for task in shown))
        tables.append(table)
    return tables


def _task_heading(task: int, classes: list[Label], width: int) -> Text:
    names = [Text(printable(name)) for name in classes[:MOST_NAMES]]
    if len(classes) > MOST_NAMES:
        names[-1] = Text(f"+{len(classes) - MOST_NAMES + 1}")
    for name in names:
        name.truncate(width, overflow="ellipsis")
    return Text("\n").join([Text(str(task + 1)), *names])


def _measures(result: RunResult) -> Table:
    fpr95 = result.ood_fpr95
    grid = NamesTable.grid(padding=(0, GAP))
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_column(style="dim")
    grid.add_row("ACA", wording.percent(result.aca), "mean over tasks after the last one")
    grid.add_row("AIA", wording.percent(result.aia), "mean of the ACAs after each task")
    lost = "needs a second task" if result.forgetting is None else "lost since each task was learned"
    grid.add_row("forgetting", wording.points(result.forgetting), lost)
    grid.add_row("TIL accuracy", wording.percent(aca(result.til_accuracy)), "the task is given")
    grid.add_row("task-id accuracy", wording.percent(result.task_id_accuracy), "the right task is chosen")
    grid.add_row(
        "open-world AUROC",
        wording.ratio(result.ood_auroc),
        "no unknowns tested" if fpr95 is None else f"FPR@95 {wording.share(fpr95)}",
    )
    return grid


def _variants(variants: dict[str, Any]) -> Table:
    table = ruled_table()
    table.add_column("variant")
    table.add_column("ACA", justify="right", no_wrap=True)
    table.add_column("forgetting", justify="right", no_wrap=True)
    for name, variant in variants.items():
        percent, points = wording.percent(variant.aca), wording.points(variant.forgetting)
        table.add_row(name, percent, points)
    return table


def _costs(result: RunResult) -> Table:
    grid = NamesTable.grid(padding=(0, GAP))
    if result.free_capacity is not None:
        shares = " ".join(f"{100 * free:.0f}" for free in result.free_capacity)
        grid.add_row("free capacity", f"{shares} % after each task")
    train, evaluate = (wording.duration(result.seconds[part]) for part in ("train", "evaluate"))
    grid.add_row("time", f"{train} to train, {evaluate} to evaluate")
    return grid


LONGEST_NAME = 24


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the numbers of every method after the last task, best ACA first."""
    for warning in comparison.warnings:
        console.print(Text(printable(f"warning: {warning}"), style="yellow"))
    say(f"{title(comparison)}, after the last task", to=console)
    grid = _with_short_names(comparison_page.final(comparison))
    widths = _widths(grid)
    for columns in _cut(widths, console.width):
        table = ruled_table()
        for column in columns:
            left = column == 0 or grid.rows[0][column].words
            table.add_column(grid.headings[column], justify="left" if left else "right", width=widths[column])
        for row in grid.rows:
            table.add_row(*(_text(row[column]) for column in columns))
        console.print(table)
        console.print()


def _with_short_names(grid: Grid) -> Grid:
    return grid._replace(rows=[[Cell(shorten(name.text, LONGEST_NAME)), *cells] for name, *cells in grid.rows])


def _widths(grid: Grid) -> list[int]:
    """Numbers stay whole; headings may break between words."""
    columns = zip(grid.headings, *grid.rows, strict=True)
    parts = ((*heading.split(), *(cell.text for cell in cells)) for heading, *cells in columns)
    return [max(map(cell_len, column)) for column in parts]


def _cut(widths: list[int], space: int) -> Iterator[list[int]]:
    """Columns of as many tables as it takes, the first column leading each."""
    shown, used = [0], widths[0]
    for column, width in enumerate(widths[1:], 1):
        if len(shown) > 1 and used + GAP + width > space:
            yield shown
            shown, used = [0], widths[0]
        shown.append(column)
        used += GAP + width
    yield shown


def _text(cell: Cell) -> Text:
    return Text(cell.text, style="bold" if cell.best else "")
