"""Answers as lines: for people, as JSON, as CSV. Every image is one line, or in CSV one record, whatever its name."""

import csv
import json
import sys
from collections.abc import Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from oarlock.model.predicting import Answer
from oarlock.report.wording import printable, share

_COLUMNS = ("path", "label", "unknown", "probability", "task", "score")
_WIDEST = 30  # of the column of labels; a longer label moves what follows it


class AnswerPrinter:
    """Prints answers at once, with the `top` likeliest classes where that is not 0."""

    def __init__(
        self, console: Console, kind: Literal["text", "json", "csv"], labels: Sequence[object], top: int
    ) -> None:
        self.console, self.top = console, min(top, len(labels))
        self.width = min(_WIDEST, max(cell_len(printable(label)) for label in [*labels, "unknown"]))
        self.records = csv.writer(sys.stdout, lineterminator="\n")
        self.print_one = {"text": self._print_text, "json": self._print_json, "csv": self._print_csv}[kind]
        if kind == "csv":
            best = [f"{name}_{place}" for place in range(1, self.top + 1) for name in ("label", "probability")]
            self.records.writerow([*_COLUMNS, *best])

    def print(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self.print_one(answer)
        sys.stdout.flush()

    def _print_json(self, answer: Answer) -> None:
        content = _content(answer)
        if self.top:
            content["top"] = [{"label": label, "probability": value} for label, value in answer.top]
        print(json.dumps(content))  # in ASCII: JSON in every terminal and for every file name

    def _print_csv(self, answer: Answer) -> None:
        """An unknown image has an empty label."""
        best = [value for pair in answer.top for value in pair] if self.top else []
        content = _content(answer) | {"unknown": json.dumps(answer.label is None)}
        self.records.writerow([*content.values(), *best])

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


def _content(answer: Answer) -> dict[str, Any]:
    values = (str(answer.path), answer.label, answer.label is None, answer.probability, answer.task, answer.score)
    return dict(zip(_COLUMNS, values, strict=True))
