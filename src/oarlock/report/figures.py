"""One figure per protocol: accuracy after each task, forgetting, and accuracy against cost.

With many methods a colour each would tell nobody apart. The best few have a colour that colour-blind readers can
tell from the others; the rest is grey; and every line and point has its name beside it.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

from oarlock.errors import printable
from oarlock.files import make_directory, replacing
from oarlock.report.charts import MARKERS, PERCENT
from oarlock.report.comparison import Comparison, MethodSummary
from oarlock.report.comparison_page import facts
from oarlock.report.tables import UPPER_BOUND, Column

MARKER = 4.0  # points from the middle of a marker to its edge
NEAR = 8.0  # points; a name further away has a line to its marker


class NamedPoint(NamedTuple):
    name: str
    x: float
    y: float
    colour: str


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Return the heights moved as little as it takes to be `gap` apart, in the same order.

    >>> spread_out([1.0, 1.0, 5.0], gap=2.0)
    [0.0, 2.0, 5.0]
    """
    groups: list[list[int]] = []  # neighbours that touch share a group, centred where they want to be
    for index in sorted(range(len(heights)), key=lambda index: heights[index]):
        groups.append([index])
        while len(groups) > 1 and _low(heights, groups[-1], gap) < _high(heights, groups[-2], gap) + gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    places = [0.0] * len(heights)
    for group in groups:
        for number, index in enumerate(group):
            places[index] = _low(heights, group, gap) + number * gap
    return places


def name_points(axes: Axes, points: Sequence[NamedPoint]) -> None:
    """Write a name beside each point, at the nearest place where it covers no other name and no point."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()  # the axes know their size only now
    scale = figure.dpi / 72
    size = 2 * MARKER * scale
    middles = axes.transData.transform([(point.x, point.y) for point in points])
    taken = [Bbox.from_bounds(x - size / 2, y - size / 2, size, size) for x, y in middles]
    for point in points:
        tried: list[tuple[float, Annotation, Bbox]] = []
        for x, y in _places():
            text = _name(axes, point, x, y)
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # without its line
            covered = sum(_overlap(box, other) for other in taken) + _area(box) - _overlap(box, axes.bbox)
            tried.append((covered, text, box))
            if covered == 0:
                break
        _, kept, box = min(tried, key=lambda attempt: attempt[0])
        for _, text, _ in tried:
            if text is not kept:
                text.remove()
        taken.append(box)


def _name(axes: Axes, point: NamedPoint, x: float, y: float) -> Annotation:
    """The point's name, so many points of print away from it."""
    line = {"arrowstyle": "-", "color": point.colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": MARKER}
    side = "center" if abs(x) < 1 else "left" if x > 0 else "right"
    text = axes.annotate(
        point.name,
        (point.x, point.y),
        (x, y),
        textcoords="offset points",
        color=point.colour,
        fontsize=8,
        ha=side,
        va="center",
        arrowprops=line if math.hypot(x, y) > 1.2 * NEAR else None,
    )
    text.set_in_layout(False)  # the layout must not move what was placed in view of it
    return text


def _places() -> Iterator[tuple[float, float]]:
    for far in (1.0, 1.8, 2.7, 3.6, 5.0, 7.0, 9.0):
        for angle in (0, 180, 90, 270, 40, 320, 140, 220, 20, 340, 160, 200, 65, 295, 115, 245):
            yield far * NEAR * math.cos(math.radians(angle)), far * NEAR * math.sin(math.radians(angle))


def _low(heights: Sequence[float], group: list[int], gap: float) -> float:
    return sum(heights[index] for index in group) / len(group) - (len(group) - 1) * gap / 2


def _high(heights: Sequence[float], group: list[int], gap: float) -> float:
    return _low(heights, group, gap) + (len(group) - 1) * gap


def _overlap(one: Bbox, other: Bbox) -> float:
    common = Bbox.intersection(one, other)
    return 0.0 if common is None else _area(common)


def _area(box: Bbox) -> float:
    return float(box.width * box.height)


OURS, LOWER_BOUND = "oar", "finetune"
# Okabe and Ito's colours without yellow, which is too pale for a line; the first is for ROW.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
BOUND, REST, INK, QUIET, RULE = "#333333", "#7d7d7d", "#14202b", "#566573", "#d5dce3"
STYLE = {
    "svg.fonttype": "none",  # real text: it can be searched and read aloud
    "svg.hashsalt": "oarlock",  # the same numbers give the same file
    "font.family": "sans-serif",
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": QUIET,
    "axes.edgecolor": RULE,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
}
COST = FuncFormatter(lambda value, _: f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,g}")
KINDS = ("svg", "png")


def write_figures(columns: Sequence[Column], out: Path) -> list[Path]:
    """Write `<column>.svg` and `<column>.png` for every column with finished runs; return their paths."""
    make_directory(out)
    written: list[Path] = []
    for column in columns:
        if column.comparison is None:
            continue
        with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
            written += save(_draw(column.name, column.comparison), out, column.name)
    return written


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write `<name>.svg` and `<name>.png`; return their paths."""
    paths = [out / f"{name}.{kind}" for kind in KINDS]
    for path, kind in zip(paths, KINDS, strict=True):
        with replacing(path) as file:
            nameless = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(file, format=kind, dpi=150, facecolor="white", metadata=nameless)
    return paths


def looks(methods: Sequence[MethodSummary]) -> dict[str, str]:
    """Return a colour for every method, best ACA first: ROW and the five best have one of their own."""
    own = [method.name for method in methods if method.name not in (UPPER_BOUND, LOWER_BOUND, OURS)]
    coloured = dict(zip(own, COLOURS[1:], strict=False)) | {OURS: COLOURS[0]}
    bounds = {UPPER_BOUND: BOUND, LOWER_BOUND: BOUND}
    return {method.name: (coloured | bounds).get(method.name, REST) for method in methods}


def _draw(name: str, comparison: Comparison) -> Figure:
    figure = Figure(figsize=(12, 9.5), layout="constrained")
    halves = figure.add_gridspec(2, 1, height_ratios=(1.15, 1))
    upper, lower = halves[0].subgridspec(1, 2, width_ratios=(1.5, 1)), halves[1].subgridspec(1, 2)
    lines, bars, times, sizes = (figure.add_subplot(half[side]) for half in (upper, lower) for side in (0, 1))
    shared = facts(comparison)
    title = f"{printable(name)}: {shared['Stream']}, memory of {shared['Memory']}, trunk {shared['Trunk']}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    colours = looks(comparison.methods)
    _accuracy_lines(lines, comparison.methods, colours)
    _forgetting_bars(bars, comparison.methods, colours)
    points = {
        times: _against_cost(times, comparison.methods, colours, "seconds"),
        sizes: _against_cost(sizes, comparison.methods, colours, "entries"),
    }
    times.set(title="Accuracy against time", xlabel="training and evaluation, s")
    sizes.set(title="Accuracy against size", xlabel="entries of the model")
    for axes, named in points.items():
        name_points(axes, named)
    return figure


def _accuracy_lines(axes: Axes, methods: Sequence[MethodSummary], colours: dict[str, str]) -> None:
    tasks = len(methods[0].after_each_task)
    for number, (method, marker) in enumerate(zip(methods, cycle(MARKERS), strict=False)):
        means = [spread.mean for spread in method.after_each_task]
        colour, after = colours[method.name], range(1, tasks + 1)
        dashes = "--" if colour == BOUND else "-"
        shown: dict[str, Any] = {"color": colour, "zorder": 2 if colour == REST else 30 - number}
        axes.plot(after, means, dashes, marker=marker, markersize=4, linewidth=1 if colour == REST else 2, **shown)
        stds = [spread.std or 0.0 for spread in method.after_each_task]
        low, high = ([m + s * d for m, d in zip(means, stds, strict=True)] for s in (-1, 1))
        axes.fill_between(after, low, high, color=colour, alpha=0.06 if colour == REST else 0.15, linewidth=0)
    ends = [method.after_each_task[-1].mean for method in methods]
    bottom, top = axes.get_ylim()
    gap = 0.042 * (top - bottom)
    for method, end, place in zip(methods, ends, spread_out(ends, gap), strict=True):
        colour = colours[method.name]
        axes.annotate(
            f"{printable(method.name)} {end:.1f}",
            (tasks, end),
            (1.03, place),
            textcoords=axes.get_yaxis_transform(),
            color=colour,
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 1},
            annotation_clip=False,
        )
    axes.set_title("Mean accuracy over the tasks seen (band: ± one standard deviation over class orders)")
    axes.set_xlabel("after task")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PERCENT)


def _forgetting_bars(axes: Axes, methods: Sequence[MethodSummary], colours: dict[str, str]) -> None:
    measured = [(method, spread) for method in methods if (spread := method.numbers["forgetting"])]
    measured.sort(key=lambda pair: pair[1].mean, reverse=True)  # the least on top
    names = [printable(method.name) for method, _ in measured]
    bars = axes.barh(
        range(len(measured)),
        [spread.mean for _, spread in measured],
        xerr=[spread.std or 0.0 for _, spread in measured],
        color=[colours[method.name] for method, _ in measured],
        error_kw={"ecolor": QUIET, "linewidth": 1},
    )
    axes.bar_label(bars, [f"{spread.mean:.1f}" for _, spread in measured], padding=4, fontsize=8)
    axes.set_yticks(range(len(measured)), names, color=INK)
    axes.grid(visible=False, axis="y")
    axes.set_title("Forgetting after the last task")
    axes.set_xlabel("points, mean over tasks")


def _against_cost(
    axes: Axes, methods: Sequence[MethodSummary], colours: dict[str, str], cost: str
) -> list[NamedPoint]:
    """The points, to be named when all else is in its place."""
    points = []
    for method, marker in zip(methods, cycle(MARKERS), strict=False):
        price, accuracy, colour = method.numbers[cost], method.numbers["aca"], colours[method.name]
        if price is None or accuracy is None:
            continue
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6, "elinewidth": 0.8, "zorder": 3}
        axes.errorbar(price.mean, accuracy.mean, yerr=accuracy.std, **look)
        points.append(NamedPoint(printable(method.name), price.mean, accuracy.mean, colour))
    if cost == "seconds":
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(COST)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.margins(0.12)
    return points
