"""The charts with axes, drawn by matplotlib as SVG text that takes its colours from the page.

matplotlib knows no CSS variables, so charts are drawn in stand-in colours, and each stand-in is replaced by
the variable it stands for. That is how one drawing follows the reader's light or dark mode.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from oarlock.report.run_files import Array
from oarlock.report.wording import count, printable

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


def accuracy_lines(result: dict[str, Any]) -> str:
    """Mean accuracy over the tasks seen, after each task: the run's own, task given, and other readings."""
    own, given = _means(result["accuracy"]), _means(result["til_accuracy"])
    readings = {printable(name): _means(reading["accuracy"]) for name, reading in result["readings"].items()}
    after = range(1, len(own) + 1)

    def draw(axes: Axes) -> None:
        marks: dict[str, Any] = {"markersize": 5, "clip_on": False, "zorder": 3}
        axes.plot(after, own, color=KNOWN, linewidth=2.2, marker="o", label="task not given", **marks)
        axes.plot(after, given, color=NEW, linewidth=1.8, marker="s", label="task given (TIL)", **marks)
        for (name, line), dashes in zip(readings.items(), cycle(DASHES), strict=False):
            axes.plot(after, line, color=QUIET, linewidth=1.1, linestyle=dashes, label=name)
        _percent_up_from(axes, min(map(min, (own, given, *readings.values()))))
        number_tasks(axes)

    return svg("Line chart: mean accuracy after each task", draw)


def method_lines(lines: Mapping[str, Sequence[float]]) -> str:
    """Mean accuracy over the tasks seen, after each task, of several methods."""

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
    """In-distribution scores of test images of known classes and of classes never learned."""
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
    """The share of units that no task has claimed yet, after each task."""

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
    """Whole numbers along the axis."""
    axes.set_xlabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))


def svg(description: str, draw: Callable[[Axes], None], *, wide: bool = False) -> str:
    """A chart as SVG text, its stand-in colours replaced by the page's."""
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
