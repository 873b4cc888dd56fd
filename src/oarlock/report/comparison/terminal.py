"""A comparison in the terminal: the final table, cut where it is too wide."""

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from oarlock.report.comparison import grids
from oarlock.report.comparison.facts import title
from oarlock.report.comparison.grids import Cell, Grid
from oarlock.report.comparison.summary import Comparison
from oarlock.report.tables import GAP, ruled_table
from oarlock.report.wording import printable, shorten

LONGEST_NAME = 24


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the numbers of every method after the last task, best ACA first."""
    for warning in comparison.warnings:
        console.print(Text(f"warning: {printable(warning)}", style="yellow"))
    console.print(Text(f"{printable(title(comparison))}, after the last task"))
    grid = _with_short_names(grids.final(comparison))
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
