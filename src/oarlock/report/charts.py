"""The charts with axes, drawn by matplotlib as SVG text that takes its colours from the page.

matplotlib knows no CSS variables, so charts are drawn in stand-in colours, and each stand-in is replaced by
the variable it stands for. That is how one drawing follows the reader's light or dark mode.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from oarlock.report.run_files import Array
from oarlock.report.wording import means, printable

INK, QUIET, RULE, KNOWN, NEW = "#010101", "#020202", "#030303", "#040404", "#050505"
CSS_VARIABLES = {INK: "ink", QUIET: "quiet", RULE: "rule", KNOWN: "known", NEW: "new"}

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # real text: small, selectable, in the page's font
    "svg.hashsalt": "oarlock",  # the same run gives the same bytes
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
SHARE = FuncFormatter(lambda value, _: f"{100 * value:.0f} %")


class _Chart:
    """A figure with one pair of axes; `svg` is the drawing once its `with` block has ended."""

    def __init__(self, description: str) -> None:
        self.description = description
        self.figure = Figure(figsize=(4.7, 3.0), layout="constrained")
        self.axes: Any = self.figure.add_subplot()
        self.svg = ""

    def legend(self, columns: int) -> None:
        self.figure.legend(loc="outside upper left", ncols=columns, handlelength=2.4, borderpad=0)

    def render(self) -> str:
        buffer = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        self.figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
        svg = buffer.getvalue()
        svg = svg[svg.index("<svg") :]
        view_box = re.search(r'viewBox="[^"]*"', svg)
        assert view_box is not None
        opening = f'<svg class="chart" {view_box[0]} role="img" aria-label="{self.description}">'
        svg = re.sub(r"<svg[^>]*>", opening, svg, count=1)
        # Ids such as "patch_1" come back in every chart; only the hashed ones are referred to.
        svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
        svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
        svg = re.sub(r"\s*\n\s*", " ", svg)
        for stand_in, variable in CSS_VARIABLES.items():
            svg = svg.replace(stand_in, f"var(--{variable})")
        return svg


@contextmanager
def _chart(description: str) -> Iterator[_Chart]:
    with matplotlib.rc_context(STYLE):
        chart = _Chart(description)
        yield chart
        chart.svg = chart.render()


def accuracy_lines(result: dict[str, Any]) -> str:
    """Mean accuracy over the tasks seen, after each task: the run's own, task given, and other readings."""
    own, given = means(result["accuracy"]), means(result["til_accuracy"])
    readings = {printable(name): means(reading["accuracy"]) for name, reading in result["readings"].items()}
    after = range(1, len(own) + 1)
    with _chart("Line chart: mean accuracy after each task") as chart:
        axes = chart.axes
        marks = {"markersize": 5, "clip_on": False, "zorder": 3}
        axes.plot(after, own, color=KNOWN, linewidth=2.2, marker="o", label="task not given", **marks)
        axes.plot(after, given, color=NEW, linewidth=1.8, marker="s", label="task given (TIL)", **marks)
        for (name, line), dashes in zip(readings.items(), cycle(("--", ":", "-.", (0, (6, 1, 1, 1, 1, 1))))):
            axes.plot(after, line, color=QUIET, linewidth=1.1, linestyle=dashes, label=name)
        lowest = min(map(min, (own, given, *readings.values())))
        axes.set_ylim(max(0, 10 * ((lowest - 4) // 10)), 100)
        axes.set_xlabel("after task")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(PERCENT)
        chart.legend(columns=2)
    return chart.svg


def score_histogram(known: Array, unknown: Array | None, threshold: float | None) -> str:
    """In-distribution scores of test images of known classes and of classes never learned."""
    groups = {"known": known, **({} if unknown is None else {"never learned": unknown})}
    finite = np.concatenate([scores[np.isfinite(scores)] for scores in groups.values()])
    # A few far outliers would flatten everything else: they are counted in the outermost bars.
    low, high = (float(edge) for edge in np.percentile(finite, [0.5, 99.5]))
    if threshold is not None:
        low, high = min(low, threshold), max(high, threshold)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, 41)
    looks = (
        {"facecolor": KNOWN, "edgecolor": KNOWN, "alpha": 0.55},
        {"facecolor": "none", "edgecolor": NEW, "hatch": "//////", "linewidth": 1.3},
    )
    with _chart("Histogram: in-distribution scores of known and of never learned images") as chart:
        axes = chart.axes
        for (name, scores), look in zip(groups.items(), looks, strict=False):
            counts, _ = np.histogram(np.clip(scores, low, high), edges)
            label = f"{name} ({scores.size:,} images)"
            axes.stairs(counts / scores.size, edges, fill=True, label=label, **look)
        if threshold is not None:
            axes.axvline(threshold, color=INK, linewidth=1.4, linestyle=(0, (4, 2)), label="threshold")
        axes.set_xlabel("← looks new · score · looks familiar →")
        axes.yaxis.set_major_formatter(SHARE)
        chart.legend(columns=2)
    return chart.svg


def capacity_bars(free: Sequence[float]) -> str:
    """The share of units that no task has claimed yet, after each task."""
    with _chart("Bar chart: free capacity after each task") as chart:
        axes = chart.axes
        bars = axes.bar(range(1, len(free) + 1), free, color=KNOWN, width=min(0.7, 0.12 * len(free) + 0.1))
        if len(free) <= 12:
            axes.bar_label(bars, [f"{100 * value:.0f}" for value in free], padding=2, color=INK)
        axes.set_ylim(0, 1)
        axes.set_xlim(0.4, len(free) + 0.6)
        axes.set_xlabel("after task")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(SHARE)
    return chart.svg
