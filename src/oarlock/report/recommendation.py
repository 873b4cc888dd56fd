"""What was tried on somebody's photographs, the best first."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from oarlock.experiments.recommend import Split, Trial
from oarlock.report.terminal import ruled_table
from oarlock.report.wording import count


def print_trials(trials: Sequence[Trial], split: Split, wanted: int, console: Console) -> None:
    """Print a line for every trial, and what it was measured on."""
    table = ruled_table()
    for head in ("trunk", "method", "right", "AUROC", "detector", "learned in", "ms an answer"):
        table.add_column(head, justify="left" if head in ("trunk", "method", "detector") else "right")
    for one in trials:
        auroc = "" if one.auroc is None else f"{one.auroc:.3f}"
        cells = (*one.candidate, f"{100 * one.accuracy:.1f} %", auroc, one.detector)
        table.add_row(*map(Text, cells), f"{one.seconds:.0f} s", f"{one.milliseconds:.0f}")
    console.print(table)
    photos, best = len(split.held_out.files), trials[0].accuracy
    error = 100 * math.sqrt(best * (1 - best) / photos)
    classes, tasks = len(set(split.held_out.labels)), len(split.tasks)
    told = f"Right: of {count(photos, 'photo')} held out, {classes} classes learned in {count(tasks, 'task')}; "
    told += f"a standard error of {error:.1f} points. "
    if split.left_out:
        told += f"AUROC: against {count(len(split.left_out), 'photo')} of classes that were not learned. "
    console.print(Text(f"{told}Tried: {len(trials)} of {count(wanted, 'candidate')}."))
