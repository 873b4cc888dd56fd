"""What is said about a model in a terminal: facts, promises, and answers as lines, JSON or CSV."""

import json
import sys
from collections.abc import Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oarlock.errors import printable
from oarlock.modelfile.edit import Corrected
from oarlock.modelfile.inspect import TaskCheck, Verification
from oarlock.modelfile.learn import Outcome
from oarlock.modelfile.predict import COLUMNS, Answer
from oarlock.printing import NamesTable, csv_line, put, put_json
from oarlock.report.terminal import ruled_table
from oarlock.report.wording import NOTHING, count, promise_kind, share, shorten
from oarlock.tasks import TOLERANCE

LONGEST_NAMES = 40


def print_outcome(outcome: Outcome, console: Console) -> None:
    if outcome.task is None:
        _line(console, "nothing to do: the model knows every class already")
        return
    images = ", ".join(f"{name} ({count(number, 'image')})" for name, number in outcome.classes.items())
    _line(console, f"learned task {outcome.task}: {images}")
    if outcome.copies:
        show = "1 image is a copy" if outcome.copies == 1 else f"{outcome.copies:,} images are copies"
        _line(console, f"copies: {show} of others, and on the same side of what is kept for thresholds")
    of_all, own = outcome.calibration["of_all"], outcome.calibration["of_this_task"]
    kept = f"{count(of_all, 'image')} kept out of training, {own} of them of this task"
    _line(console, f"thresholds: {kept if of_all else 'none, since no class had images to spare'}")
    if outcome.free_capacity is not None:
        _line(console, f"free capacity: {_capacity(outcome.free_capacity, outcome.wings or [])}")
    _print_model(outcome, console)


def _print_model(outcome: Outcome | Corrected, console: Console) -> None:
    knows = f"{outcome.classes_in_all} class{'' if outcome.classes_in_all == 1 else 'es'}"
    content = f"{knows}, {count(outcome.tasks, 'task')}, {_size(outcome.bytes)}"
    _line(console, f"model: {outcome.model} ({content})")


DONE = {
    "merge": "merged: {1} is now {0}",
    "forget": "forgotten: {0}",
    "rename": "renamed: {0} is now called {1}",
    "undo": "undone: the model is as it was before",
}


def print_correction(corrected: Corrected, console: Console) -> None:
    _line(console, DONE[corrected.edit].format(*corrected.labels))
    if corrected.previous is not None:
        _line(console, f"before: {corrected.previous}, which oarlock undo puts back")
    _print_model(corrected, console)


def print_inspection(facts: dict[str, Any], console: Console) -> None:
    table = ruled_table()
    table.add_column("task", justify="right", no_wrap=True)
    table.add_column("learned", no_wrap=True)
    table.add_column("class", overflow="fold")
    for heading in ("images", "memory", "thresholds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for task in facts["tasks"]:
        first = [str(task["task"]), (task["learned"] or NOTHING)[:10]]
        for row in task["classes"]:
            numbers = (f"{row[key]:,}" for key in ("images", "memory", "calibration"))
            table.add_row(*first, str(row["label"]), *numbers)
            first = ["", ""]
    console.print(table)
    console.print()
    for edit in facts["edits"]:
        _line(console, f"{(edit['when'] or NOTHING)[:10]}  {_noted(edit)}")
    if facts["edits"]:
        console.print()
    console.print(_summary(facts))


def _noted(edit: dict[str, Any]) -> str:
    """One correction of a model's history."""
    first, *others = [*map(str, edit["labels"]), "", ""][:3]
    return {
        "rename": f"{first} renamed to {others[0]}",
        "merge": f"{others[0]} merged into {first}",
        "more": f"task {edit['tasks']}: more photos of {', '.join(map(str, edit['labels']))}",
        "forget": f"a class forgotten, of {count(edit['tasks'], 'task')}",
    }[edit["edit"]]


def _summary(facts: dict[str, Any]) -> Table:
    grid = NamesTable.grid(padding=(0, 2))
    trunk, memory, verifiable = facts["trunk"], facts["memory"], any(task["verifiable"] for task in facts["tasks"])
    where = "in the file" if trunk["embedded"] else "not in the file: by name and sha256"
    rows = {
        "method": facts["method"],
        "trunk": f"{trunk['name']} ({where}); pre-training overlaps with these classes: {trunk['overlap']}",
        "memory": "none" if memory["room"] is None else f"{memory['images']} images, room for {memory['room']}",
        "free capacity": "does not run out"
        if facts["free_capacity"] is None
        else _capacity(facts["free_capacity"], facts["wings"]),
        "promise": promise_kind(facts["tolerance"]) + "; check it: oarlock verify"
        if verifiable
        else "none: finished tasks may change",
        "entries": f"{facts['entries']:,} numbers in trunk and method",
        "size": f"{_size(facts['bytes'])}: "
        + ", ".join(f"{part} {_size(size)}" for part, size in facts["bytes_by_part"].items() if size),
    }
    for name, text in rows.items():
        grid.add_row(name, text)
    return grid


def print_verification(verification: Verification, console: Console) -> None:
    if not verification.tasks:
        _line(console, f"{verification.method} makes no promise that finished tasks stay as they were")
        return
    table = ruled_table()
    for heading in ("task", "classes", "values", "bit-identical", "largest difference"):
        table.add_column(heading, justify="right" if heading in ("task", "values") else "left")
    for task in verification.tasks:
        classes = shorten(", ".join(map(str, task.classes)), LONGEST_NAMES)
        check = task.check
        difference = "0" if not check.changed else f"{check.difference:.1e}"
        table.add_row(str(task.task), classes, f"{check.compared:,}", "no" if check.changed else "yes", difference)
    console.print(table)
    console.print()
    for task in verification.tasks:
        if task.check.changed:
            _line(console, f"task {task.task}: {_explained(task)}")
    _line(console, "every promise holds" if verification.holds else "a promise is broken", bold=True)


def _explained(task: TaskCheck) -> str:
    what = ", ".join(task.check.changed)
    if task.check.tolerance:
        within = "within" if task.check.holds else "beyond"
        return f"{what} moved; promised is {promise_kind(task.check.tolerance)}; {within} that"
    if task.check.same_machine:
        return f"{what} changed, on the kind of machine that they were recorded on"
    elsewhere = f"recorded on {task.recorded_on['cpu']}, torch {task.recorded_on['torch']}"
    within = "within" if task.check.holds else "beyond"
    return f"{elsewhere}: held to {TOLERANCE:g} of the largest value; {what} {within} that"


def _capacity(free: list[float], wings: list[int]) -> str:
    mean = sum(free) / len(free)
    grown = count(sum(wings), "wing") if any(wings) else "no wings"
    of = "hidden units" if wings else "the directions of inputs"  # what does not grow has no list of wings
    return f"{share(mean)} of {of}, {share(min(free))} in the fullest layer" + (f"; {grown}" if wings else "")


def _size(number: int) -> str:
    return f"{number / 2**20:.1f} MB" if number >= 2**20 / 10 else f"{number / 2**10:.1f} KB"


def _line(console: Console, text: str, bold: bool = False) -> None:
    console.print(Text(printable(text), style="bold" if bold else ""))


_WIDEST = 30  # of the column of labels; a longer label moves what follows it


class AnswerPrinter:
    """Print answers at once, with the `top` likeliest classes where that is not 0."""

    def __init__(
        self, console: Console, kind: Literal["text", "json", "csv"], labels: Sequence[object], top: int
    ) -> None:
        self.console, self.top = console, min(top, len(labels))
        self.width = min(_WIDEST, max(cell_len(printable(label)) for label in [*labels, "unknown"]))
        self.print_one = {"text": self._print_text, "json": self._print_json, "csv": self._print_csv}[kind]
        if kind == "csv":
            best = [f"{name}_{place}" for place in range(1, self.top + 1) for name in ("label", "probability")]
            put(csv_line([*COLUMNS, *best]))

    def print(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self.print_one(answer)
        sys.stdout.flush()

    def _print_json(self, answer: Answer) -> None:
        put_json(answer.to_json(self.top))

    def _print_csv(self, answer: Answer) -> None:
        """An unknown image has an empty label. JSON has names exactly; here they are safe to show."""
        best = [value for pair in answer.top for value in pair] if self.top else []
        content = answer.to_json(0) | {"unknown": json.dumps(answer.label is None)}
        put(csv_line([*content.values(), *best]))

    def _print_text(self, answer: Answer) -> None:
        """The label, how probable it is, its task, the score, and the path; an unknown image has only a score."""
        if answer.label is None:
            line, facts = Text().append(self._padded("unknown"), "yellow"), ""
        else:
            line = Text().append(self._padded(answer.label), "green")
            facts = f"{share(answer.probability):>7}  task {answer.task}"
        line.append(f"  {facts:<16}  score {answer.score:8.2f}  ")
        if self.top:
            best = (f"{self._padded(label)} {share(value):>7}  " for label, value in answer.top)
            line.append("".join(best), "dim")
        self.console.print(line.append(printable(answer.path)))

    def _padded(self, label: object) -> str:
        text = printable(label)
        return text + " " * (self.width - cell_len(text))
