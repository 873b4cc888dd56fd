"""A comparison as Markdown."""

import re

from oarlock.report.comparison import captions, grids
from oarlock.report.comparison.captions import Caption
from oarlock.report.comparison.facts import facts, title
from oarlock.report.comparison.grids import Cell, Grid
from oarlock.report.comparison.summary import Comparison
from oarlock.report.wording import printable


def markdown(comparison: Comparison) -> str:
    blocks = [
        f"# {escape(title(comparison))}",
        "\n".join(f"- {name}: {escape(fact)}" for name, fact in facts(comparison).items()),
        *(f"**Warning:** {escape(warning)}" for warning in comparison.warnings),
        *_section(captions.FINAL, grids.final(comparison)),
        *_section(captions.AFTER_EACH_TASK, grids.after_each_task(comparison)),
        *_section(captions.BY_TASK, grids.by_task(comparison)),
    ]
    return "\n\n".join(blocks) + "\n"


def _section(caption: Caption, grid: Grid) -> tuple[str, str, str]:
    return f"## {caption.heading}", caption.how_to_read, _table(grid)


def _table(grid: Grid) -> str:
    sides = ["---", *["---:"] * (len(grid.headings) - 1)]
    lines = [grid.headings, sides, *([_cell(cell) for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(cell: Cell) -> str:
    return f"**{escape(cell.text)}**" if cell.best else escape(cell.text)


def escape(value: str) -> str:
    """
    >>> escape("a|b <i>")
    'a\\\\|b \\\\<i\\\\>'
    """
    return re.sub(r"([\\`*_<>\[\]|&])", r"\\\1", printable(value))
