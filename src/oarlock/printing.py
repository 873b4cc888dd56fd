"""The one way to a terminal. What is printed may hold names from files of strangers: nothing in it is obeyed by a
terminal, read as markup, or taken for a formula, and only our own lines are lines."""

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from oarlock.errors import printable


class SafeConsole(Console):
    """Print text as it is; control characters in it are replaced, whatever it stands in.

    >>> SafeConsole(file=sys.stdout).print("[red]caf\\x1b[31m")
    [red]caf�[31m
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(soft_wrap=True, markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_printable_lines(segment.text))


class NamesTable(Table):
    """Hold cells of one line each, whatever names are in them."""

    def add_row(self, *cells: RenderableType | None, **looks: Any) -> None:
        super().add_row(*map(_one_line, cells), **looks)


def _one_line(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, Text):
        return Text(printable(cell.plain), style=cell.style)
    return printable(cell) if isinstance(cell, str) else cell


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


console = SafeConsole()


def say(*lines: object, to: Console = console) -> None:
    """Print each argument as one line."""
    to.print("\n".join(map(printable, lines)))


def complain(*sentences: object) -> None:
    """Print each argument as one line to standard error."""
    for sentence in sentences:
        print(f"oarlock: {printable(sentence)}", file=sys.stderr)


def put(text: str) -> None:
    """Print text that has line breaks of ours, for programs and terminals alike."""
    sys.stdout.write(_printable_lines(text))


def put_json(content: object) -> None:
    """Print an object on one line, exactly and in ASCII; a number that is none is null.

    >>> put_json({"name": "caf\\x9b", "score": float("nan")})
    {"name": "caf\\u009b", "score": null}
    """
    put(json_line(content))


def json_line(content: object) -> str:
    """Return the line that `put_json` prints."""
    return json.dumps(_finite(content)) + "\n"


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


_FORMULA = ("=", "+", "-", "@")


def csv_line(values: Sequence[object]) -> str:
    """Return a record of comma-separated values. Text that a spreadsheet would run gets an apostrophe before it.

    >>> csv_line(["=1+1", -0.5, "a,b", "two\\nlines", None])
    '\\'=1+1,-0.5,"a,b",two�lines,\\n'
    """
    record = io.StringIO()
    csv.writer(record, lineterminator="\n").writerow(map(_cell, values))
    return record.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
