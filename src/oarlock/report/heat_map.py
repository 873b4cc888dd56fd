"""Heat maps as small hand-made SVGs: one colour whose opacity is the value, on light and dark pages alike."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from oarlock.report.run_files import Array
from oarlock.report.wording import shorten

HALF_PAGE, FULL_PAGE = 420.0, 720.0
LARGEST_CELL = 54.0
MOST_LABELS = 40
LABEL_LENGTH = 22
# Below these cell widths, in pixels, a decimal or any number would run into its neighbour.
DECIMAL_FITS, NUMBER_FITS = 36.0, 18.0
# On cells more opaque than this the page's background colour is easier to read than its ink.
INK_TURNS = 0.6
# The width of a letter and the room for an axis title: generous, as we do not know the reader's font.
LETTER, TITLE = 7.0, 26.0
# On a phone a map shrinks only so far, lest its text become illegible; then it scrolls sideways.
SMALLEST_SCALE, LARGEST_SCALE = 0.75, 1.2


@dataclass(frozen=True)
class Axis:
    """What one side of a heat map says.

    `groups` are the sizes of consecutive blocks (the tasks among the classes); where there are too many
    labels to write, the blocks are numbered instead.
    """

    title: str
    labels: Sequence[str]
    groups: Sequence[int] = ()

    def placed(self) -> list[tuple[float, str]]:
        """Which texts to write at which positions, counted in cells."""
        texts = [(index + 0.5, shorten(label, LABEL_LENGTH)) for index, label in enumerate(self.labels)]
        if len(texts) > MOST_LABELS and self.groups:
            middles = np.cumsum(self.groups) - np.array(self.groups) / 2
            texts = [(float(middle), str(number)) for number, middle in enumerate(middles, 1)]
        return texts[:: math.ceil(len(texts) / MOST_LABELS)]


def heat_map(shares: Array, rows: Axis, columns: Axis, *, width: float, root: bool = False) -> str:
    """Draw a square matrix of numbers between 0 and 1; NaN leaves a cell blank.

    With `root`, opacity follows the square root of the value, which makes rare mistakes visible.
    """
    row_texts, column_texts = rows.placed(), columns.placed()
    left = TITLE + LETTER * max(len(text) for _, text in row_texts)
    longest_column = max(len(text) for _, text in column_texts)
    slanted = longest_column > 3
    turn, anchor = ("rotate(-45)", "start") if slanted else ("", "middle")
    overhang = 0.78 * LETTER * longest_column if slanted else 0.0
    top = TITLE + max(overhang, 14)
    cell = min(LARGEST_CELL, (width - left - overhang) / len(shares))
    grid = cell * len(shares)
    full_width = left + max(grid + overhang, LETTER * len(columns.title) + TITLE)
    full_height = top + max(grid, LETTER * len(rows.title) + TITLE) + 4
    boundaries = cell * np.cumsum(rows.groups)[:-1]
    opacities = np.sqrt(shares) if root else shares
    description = escape(f"Heat map: rows are {rows.title}, columns are {columns.title}")
    parts = [
        f'<svg class="heat" viewBox="0 0 {full_width:.0f} {full_height:.0f}" '
        f'role="img" aria-label="{description}" '
        f'style="max-width:{LARGEST_SCALE * full_width:.0f}px;min-width:{SMALLEST_SCALE * full_width:.0f}px">',
        f'<text class="axis" x="{left:.1f}" y="12">{escape(columns.title)} →</text>',
        f'<text class="axis" transform="translate(11 {top:.1f}) rotate(-90)" text-anchor="end">'
        f"← {escape(rows.title)}</text>",
        *(
            f'<text x="{left - 6:.1f}" y="{top + cell * at + 4:.1f}" text-anchor="end">{escape(text)}</text>'
            for at, text in row_texts
        ),
        *(
            f'<text transform="translate({left + cell * at:.1f} {top - 6:.1f}) {turn}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
            for at, text in column_texts
        ),
        f'<g transform="translate({left:.1f} {top:.1f})">',
        f'<rect class="ground" width="{grid:.1f}" height="{grid:.1f}"/>',
        *_squares(opacities, cell),
        *(f'<path class="rule" d="M0 {at:.1f}h{grid:.1f}M{at:.1f} 0v{grid:.1f}"/>' for at in boundaries),
        *(_numbers(shares, opacities, cell) if cell >= NUMBER_FITS else ()),
        "</g></svg>",
    ]
    scale = f'<p class="scale">0 % <i{" class=root" if root else ""}></i> 100 %</p>'
    return f'<div class="scroll">{"".join(parts)}</div>{scale}'


def _squares(opacities: Array, cell: float) -> Iterator[str]:
    """One path per level of opacity: a thousand classes stay a small file."""
    gap = 1.5 if cell >= NUMBER_FITS else 0.0
    side = f"{cell - gap:.2f}"
    levels: dict[int, list[str]] = defaultdict(list)
    for row, column in np.argwhere(np.nan_to_num(opacities) >= 0.005):
        corner = f"M{column * cell + gap / 2:.1f} {row * cell + gap / 2:.1f}"
        levels[round(100 * opacities[row, column])].append(f"{corner}h{side}v{side}h-{side}z")
    for level, squares in sorted(levels.items()):
        yield f'<path fill-opacity="{level / 100:.2f}" d="{"".join(squares)}"/>'


def _numbers(shares: Array, opacities: Array, cell: float) -> Iterator[str]:
    yield f'<g text-anchor="middle" font-size="{min(12.0, 0.5 * cell):.1f}">'
    for row, column in np.argwhere(~np.isnan(shares)):
        value = 100 * float(shares[row, column])
        # "100.0" is a digit too wide, and says no more than "100".
        text = f"{value:.1f}" if cell >= DECIMAL_FITS and value < 99.95 else f"{value:.0f}"
        kind = ' class="on"' if opacities[row, column] > INK_TURNS else ""
        yield f'<text{kind} x="{(column + 0.5) * cell:.1f}" y="{(row + 0.5) * cell + 4:.1f}">{text}</text>'
    yield "</g>"
