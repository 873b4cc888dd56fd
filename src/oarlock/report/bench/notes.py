"""What a reader must know to read a table rightly: one sentence each, and one line per column."""

from collections.abc import Iterator

from oarlock.report.bench.paper import FROM_TPL
from oarlock.report.bench.tables import UPPER_BOUND, Table
from oarlock.report.comparison.facts import facts
from oarlock.report.comparison.summary import warn_of_orders

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
    """
    >>> from oarlock.report.comparison.summary import MEASURES
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
                *([known["Protocol"]] if column.comparison.setting.get("partial") else []),
            )
        ) + "."  # fmt: skip
        for warning in warn_of_orders(column.summaries):
            yield f"{column.name}: {warning}"
