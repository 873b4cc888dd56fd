"""The charts with axes, drawn by matplotlib as SVG text that takes its colours from the page.

matplotlib knows no CSS variables, so charts are drawn in stand-in colours, and each stand-in is replaced by
the variable it stands for. That is how one drawing follows the reader's light or dark mode.
"""

import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from oarlock.errors import printable
from oarlock.experiments.result import Array, RunResult
from oarlock.report.wording import count, shorten

INK, QUIET, RULE, KNOWN, NEW = "#010101", "#020202", "#030303", "#040404", "#050505"
LINES = ("#060606", "#070707", "#080808", "#090909", "#0a0a0a", "#0b0b0b")
CSS_VARIABLES = {
    INK: "ink",
    QUIET: "quiet",
    RULE: "rule",
    KNOWN: "known",
    NEW: "new",
    **{stand_in: f"line-{number}" for number, stand_in in enumerate(LINES, 1)},
}

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # real text: small, selectable, in the page's font
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": QUIET,
    "axes.edgecolor": RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
}
PERCENT = FuncFormatter(lambda value, _: f"{value:.0f} %")
DASHES: tuple[Any, ...] = ("--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
# As many as share no factor with the number of colours, so that few pairs come back.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHARE = FuncFormatter(lambda value, _: f"{100 * value:.0f} %")


def accuracy_lines(result: RunResult) -> str:
    """Draw mean accuracy over the tasks seen, after each task: the run's own, task given, and other variants."""
    own, given = _means(result.accuracy), _means(result.til_accuracy)
    variants = {printable(name): _means(variant.accuracy) for name, variant in result.variants.items()}
    after = range(1, len(own) + 1)

    def draw(axes: Axes) -> None:
        marks: dict[str, Any] = {"markersize": 5, "clip_on": False, "zorder": 3}
        axes.plot(after, own, color=KNOWN, linewidth=2.2, marker="o", label="task not given", **marks)
        axes.plot(after, given, color=NEW, linewidth=1.8, marker="s", label="task given (TIL)", **marks)
        for (name, line), dashes in zip(variants.items(), cycle(DASHES), strict=False):
            axes.plot(after, line, color=QUIET, linewidth=1.1, linestyle=dashes, label=name)
        _percent_up_from(axes, min(map(min, (own, given, *variants.values()))))
        number_tasks(axes)

    return svg("Line chart: mean accuracy after each task", draw)


def method_lines(lines: Mapping[str, Sequence[float]]) -> str:
    """Draw mean accuracy over the tasks seen, after each task, of several methods."""

    def draw(axes: Axes) -> None:
        looks = zip(lines.items(), cycle(LINES), cycle(MARKERS), strict=False)
        for number, ((name, line), colour, marker) in enumerate(looks):
            dashes = ("-", *DASHES)[number // len(LINES) % (1 + len(DASHES))]
            look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": dashes, "label": printable(name)}
            axes.plot(range(1, len(line) + 1), line, linewidth=1.5, markersize=4.5, clip_on=False, zorder=3, **look)
        _percent_up_from(axes, min(map(min, lines.values())))
        number_tasks(axes)

    return svg("Line chart: mean accuracy of every method after each task", draw, wide=True)


def score_histogram(known: Array, unknown: Array | None, threshold: float | None) -> str:
    """Draw in-distribution scores of test images of known classes and of classes never learned."""
    everything = known if unknown is None else np.concatenate([known, unknown])
    # A few far outliers would flatten everything else: they are counted in the outermost bars.
    low, high = np.percentile(everything[np.isfinite(everything)], [0.5, 99.5])
    if threshold is not None:
        low, high = min(low, threshold), max(high, threshold)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, 41)

    def stairs(axes: Axes, scores: Array, name: str, **look: Any) -> None:
        counts, _ = np.histogram(np.clip(scores, low, high), edges)
        label = f"{name} ({count(scores.size, 'image')})"
        axes.stairs(counts / scores.size, edges, fill=True, label=label, **look)

    def draw(axes: Axes) -> None:
        stairs(axes, known, "known", facecolor=KNOWN, edgecolor=KNOWN, alpha=0.55)
        if unknown is not None:
            stairs(axes, unknown, "never learned", facecolor="none", edgecolor=NEW, hatch="//////", linewidth=1.3)
        if threshold is not None:
            axes.axvline(threshold, color=INK, linewidth=1.4, linestyle="--", label="threshold")
        axes.set_xlabel("← looks new · score · looks familiar →")
        axes.yaxis.set_major_formatter(SHARE)

    return svg("Histogram: in-distribution scores of known and of never learned images", draw)


def capacity_bars(free: Sequence[float]) -> str:
    """Draw the share of room that no task has claimed yet, after each task."""

    def draw(axes: Axes) -> None:
        bars = axes.bar(range(1, len(free) + 1), free, color=KNOWN, width=0.7)
        if len(free) <= 12:
            axes.bar_label(bars, [f"{100 * share:.0f}" for share in free], padding=2)
        axes.set_ylim(0, 1)
        # A single bar must not fill the chart.
        axes.set_xlim(0.4, max(len(free), 3) + 0.6)
        axes.yaxis.set_major_formatter(SHARE)
        number_tasks(axes)

    return svg("Bar chart: free capacity after each task", draw)


def _means(accuracy: list[list[float]]) -> list[float]:
    return [sum(row) / len(row) for row in accuracy]


def _percent_up_from(axes: Axes, lowest: float) -> None:
    axes.set_ylim(max(0, 10 * ((lowest - 4) // 10)), 100)
    axes.yaxis.set_major_formatter(PERCENT)


def number_tasks(axes: Axes, name: str = "after task") -> None:
    """Put whole numbers along the axis."""
    axes.set_xlabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))


def svg(description: str, draw: Callable[[Axes], None], *, wide: bool = False) -> str:
    """Return a chart as SVG text, its stand-in colours replaced by the page's."""
    # The salt makes ids the same for the same run, and different from those of the page's other charts.
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": description}):
        figure = Figure(figsize=(7.6, 4.0) if wide else (4.7, 3.0), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            where: dict[str, Any] = {"loc": "outside right upper" if wide else "outside upper left"}
            figure.legend(ncols=1 if wide else 2, handlelength=2.4, borderpad=0, **where)
        drawing = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawing, format="svg", transparent=True, metadata=no_metadata)
    _, view_box, content = re.split(r'<svg[^>]*(viewBox="[^"]*")[^>]*>', drawing.getvalue())
    # Ids such as "patch_1" come back in every chart; only the hashed ones are referred to.
    content = re.sub(r' id="[\w.]+_\d+"', "", content)
    content = re.sub(r"font-family: [^;\"]*;? ?", "", content)
    content = re.sub(r"\s*\n\s*", " ", content)
    for stand_in, variable in CSS_VARIABLES.items():
        content = content.replace(stand_in, f"var(--{variable})")
    kind = "chart wide" if wide else "chart"
    return f'<svg class="{kind}" {view_box} role="img" aria-label="{description}">{content}'


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
    """Hold what one side of a heat map says.

    `groups` are the sizes of consecutive blocks (the tasks among the classes); where there are too many
    labels to write, the blocks are numbered instead.
    """

    title: str
    labels: Sequence[str]
    groups: Sequence[int] = ()

    def placed(self) -> list[tuple[float, str]]:
        """Return which texts to write at which positions, counted in cells."""
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
