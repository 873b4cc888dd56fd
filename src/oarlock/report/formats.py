"""Tables as Markdown, LaTeX, CSV and JSON."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from oarlock.errors import OarlockError, printable
from oarlock.printing import csv_line
from oarlock.report.comparison_page import escape
from oarlock.report.tables import Cell, Row, Table, heading, notes
from oarlock.report.wording import NOTHING, mean_and_std

AVERAGE, PENDING = "average", "pending"
Style = Callable[[str], str]


def render(tables: Sequence[Table], style: str = "markdown") -> str:
    """Return the tables one after the other, as text that ends with a line break."""
    if style not in FORMATS:
        raise OarlockError(f"there is no format {style!r}; choose one of {', '.join(FORMATS)}")
    return FORMATS[style](tables)


def _markdown(tables: Sequence[Table]) -> str:
    blocks: list[str] = []
    told: set[str] = set()  # what was said under one table is not said again under the next
    for table in tables:
        headings, rows = _grid(table, escape, lambda text: f"**{text}**")
        lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
        blocks += [f"## {escape(heading(table))}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
        new = [note for note in notes(table) if note not in told]
        blocks += ["\n".join(f"- {escape(note)}" for note in new)] if new else []
        told.update(new)
    return "\n\n".join(blocks) + "\n"


def _latex(tables: Sequence[Table]) -> str:
    """With booktabs' rules."""
    blocks = []
    for table in tables:
        headings, rows = _grid(table, _tex, lambda text: rf"\textbf{{{text}}}")
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(heading(table))}. {' '.join(map(_tex, notes(table)))}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
            r"\toprule",
            " & ".join(headings) + r" \\",
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _csv(tables: Sequence[Table]) -> str:
    """One line per cell, numbers unrounded, so that any program can make any table of it."""
    records = [record for table in tables for record in _records(table)]
    lines = [list(records[0]), *(list(record.values()) for record in records)] if records else [[]]
    return "".join(map(csv_line, lines))


def _json(tables: Sequence[Table]) -> str:
    """One object per line and cell."""
    return "".join(json.dumps(record) + "\n" for table in tables for record in _records(table))


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
}


def _grid(table: Table, escape: Style, bold: Style) -> tuple[list[str], list[list[str]]]:
    """Headings, and rows of text."""
    averaged = len(table.columns) > 1
    headings = ["method", *map(str, _column_headings(table)), *([AVERAGE] if averaged else [])]
    ranked = table.ranked and any(row.rank for row in table.rows)
    compared = ranked and any(row.paper_rank for row in table.rows)
    headings += [*(["rank"] if ranked else []), *(["paper's rank"] if compared else [])]
    rows = []
    for row in table.rows:
        shown = [*row.cells, *([row.average] if averaged else [])]
        line = [escape(printable(row.method)), *(_text(table, cell, escape, bold) for cell in shown)]
        line += [str(row.rank or NOTHING)] if ranked else []
        line += [str(row.paper_rank or NOTHING)] if compared else []
        rows.append(line)
    return [headings[0], *map(escape, headings[1:])], rows


def _column_headings(table: Table) -> Iterator[str]:
    for index, column in enumerate(table.columns):
        beside = any(row.cells[index].paper for row in table.rows)
        star = "" if column.as_in_the_paper else ", for orientation"
        yield column.name + (f" · paper's {str(column.modelled_on).upper()}{star}" if beside else "")


def _text(table: Table, cell: Cell, escape: Style, bold: Style) -> str:
    digits = table.measure.digits
    if cell.ours is None:
        ours = PENDING if cell.pending else NOTHING
    else:
        ours = escape(mean_and_std(*cell.ours, digits))
        ours = bold(ours) if cell.best else ours
        if cell.pending and cell.finished:
            ours += f" ({cell.finished} of {cell.planned})"
    if cell.paper is None:
        return ours
    paper = f"{cell.paper.mean:,.{0 if table.measure.name == 'entries' else 2}f}"
    signed = "" if cell.difference is None else f" ({cell.difference:+,.{digits}f})".replace("-", "−")
    return ours + escape(f" · {paper}{signed}")


def _records(table: Table) -> Iterator[dict[str, Any]]:
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            yield _record(table, row, column.name, column.protocol, not column.as_in_the_paper, cell)
        if len(table.columns) > 1:
            orientation = not all(column.as_in_the_paper for column in table.columns)
            yield _record(table, row, AVERAGE, None, orientation, row.average)


def _record(
    table: Table, row: Row, column: str, protocol: str | None, orientation: bool, cell: Cell
) -> dict[str, Any]:
    ours, paper = cell.ours, cell.paper
    return {
        "measure": table.measure.name,
        "memory": table.memory or "full",
        "column": column,
        "protocol": protocol,
        "method": row.method,
        "mean": ours and ours.mean,
        "std": ours and ours.std,
        "orders": cell.finished,
        "pending": max(0, cell.planned - cell.finished),
        "best": cell.best,
        "rank": cell.rank,
        "paper_mean": paper and paper.mean,
        "paper_std": paper and paper.std,
        "difference": cell.difference,
        "orientation_only": None if paper is None else orientation,
    }


def _tex(text: str) -> str:
    r"""
    >>> _tex("50 % of a_b ± 1 − 2")
    '50 \\% of a\\_b $\\pm$ 1 $-$ 2'
    """
    escaped = re.sub(
        r"[\\{}]", lambda found: {"\\": r"\textbackslash{}"}.get(found[0], "\\" + found[0]), printable(text)
    )
    escaped = re.sub(r"([%&#$_])", r"\\\1", escaped)
    names = {"±": r"$\pm$", "−": "$-$", "·": r"$\cdot$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    for character, command in names.items():
        escaped = escaped.replace(character, command)
    return escaped
