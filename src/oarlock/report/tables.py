"""A finished run in the terminal: the accuracy matrix and the numbers drawn from it, 80 columns wide."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oarlock.metrics import aca
from oarlock.report import wording

AFTER, NARROWEST, WIDEST, GAP = 5, 5, 11, 2
MOST_NAMES = 2


def print_summary(result: dict[str, Any], console: Console) -> None:
    """Print what `result.json` says about a run."""
    console.print("Accuracy on each task, %")
    for table in _accuracy_tables(result, console.width):
        console.print(table)
        console.print()
    console.print(_measures(result))
    console.print()
    if result["readings"]:
        console.print(_readings(result["readings"]))
        console.print()
    console.print(_costs(result))
    broken = result["unchanged"] is not None and result["unchanged"]["changed"] > 0
    console.print(Text(wording.promise(result["unchanged"]), style="bold red" if broken else "bold"))


def ruled_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))


def _accuracy_tables(result: dict[str, Any], width: int) -> list[Table]:
    """The matrix, cut into as many tables as it takes to keep every number whole."""
    tasks, space = result["tasks"], width - AFTER - GAP
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
            row = result["accuracy"][after]
            table.add_row(str(after + 1), *(f"{row[task]:.1f}" if task <= after else "" for task in shown))
        tables.append(table)
    return tables


def _task_heading(task: int, classes: list[object], width: int) -> Text:
    names = [Text(wording.printable(name)) for name in classes[:MOST_NAMES]]
    if len(classes) > MOST_NAMES:
        names[-1] = Text(f"+{len(classes) - MOST_NAMES + 1}")
    for name in names:
        name.truncate(width, overflow="ellipsis")
    return Text("\n").join([Text(str(task + 1)), *names])


def _measures(result: dict[str, Any]) -> Table:
    fpr95 = result["ood_fpr95"]
    grid = Table.grid(padding=(0, GAP))
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_column(style="dim")
    grid.add_row("ACA", wording.percent(result["aca"]), "mean over tasks after the last one")
    grid.add_row("AIA", wording.percent(result["aia"]), "mean of the ACAs after each task")
    lost = "needs a second task" if result["forgetting"] is None else "lost since each task was learned"
    grid.add_row("forgetting", wording.points(result["forgetting"]), lost)
    grid.add_row("TIL accuracy", wording.percent(aca(result["til_accuracy"])), "the task is given")
    grid.add_row("task-id accuracy", wording.percent(result["task_id_accuracy"]), "the right task is chosen")
    grid.add_row(
        "open-world AUROC",
        wording.ratio(result["ood_auroc"]),
        "no unknowns tested" if fpr95 is None else f"FPR@95 {wording.share(fpr95)}",
    )
    return grid


def _readings(readings: dict[str, Any]) -> Table:
    table = ruled_table()
    table.add_column("read as")
    table.add_column("ACA", justify="right", no_wrap=True)
    table.add_column("forgetting", justify="right", no_wrap=True)
    for name, reading in readings.items():
        percent, points = wording.percent(reading["aca"]), wording.points(reading["forgetting"])
        table.add_row(Text(wording.printable(name)), percent, points)
    return table


def _costs(result: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, GAP))
    if result["free_capacity"] is not None:
        shares = " ".join(f"{100 * free:.0f}" for free in result["free_capacity"])
        grid.add_row("free capacity", f"{shares} % after each task")
    train, evaluate = (wording.duration(result["seconds"][part]) for part in ("train", "evaluate"))
    grid.add_row("time", f"{train} to train, {evaluate} to evaluate")
    return grid
