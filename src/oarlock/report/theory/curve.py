"""The curve of risks against samples: a table, a figure (SVG and PNG) and a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from rich.console import Console

from oarlock.files import make_directory, write_text
from oarlock.report import charts
from oarlock.report.bench.figures import BOUND, COLOURS, REST, STYLE, save
from oarlock.report.markup import panel, row, table
from oarlock.report.page import PAGE
from oarlock.report.style import CSS
from oarlock.report.tables import ruled_table
from oarlock.theory.curve import CLASSES, DRAWS, TASKS, TESTED, Point

NAME = "theory-curve"
TITLE = "Risk against the number of samples"
HOW_TO_READ = (
    f"{TASKS} tasks of {CLASSES} Gaussian classes; means over {DRAWS} draws, {TESTED} test samples of a class. "
    "As detectors learn, the learners built of them learn too. Theorem 1's learner is built of classifiers that "
    "learn their own tasks as well and never see another: its risk stays where it is."
)
COLUMNS = {
    "detector_risk": "worst detector",
    "theorem3_risk": "Theorem 3",
    "theorem3_bound": "bound",
    "corollary_risk": "Corollary",
    "corollary_bound": "bound",
    "within_task_risk": "task given",
    "theorem1_risk": "Theorem 1",
}
HEADS = ("samples", *COLUMNS.values())


class Line(NamedTuple):
    label: str
    field: str  # of a point
    colour: str
    marker: str
    dashes: str = "-"


LINES = (
    Line("worst detector", "detector_risk", "detector", "D"),
    Line("Theorem 3's learner", "theorem3_risk", "first", "o"),
    Line("Corollary's learner", "corollary_risk", "second", "s"),
    Line("Corollary's bound", "corollary_bound", "second", "s", "--"),
    Line("classifiers, task given", "within_task_risk", "closed", "X", ":"),
    Line("Theorem 1's learner", "theorem1_risk", "closed", "X"),
)
ON_PAGE = {"detector": charts.INK, "first": charts.KNOWN, "second": charts.NEW, "closed": charts.QUIET}
ON_WHITE = {"detector": BOUND, "first": COLOURS[1], "second": COLOURS[0], "closed": REST}


def print_curve(points: Sequence[Point], console: Console) -> None:
    shown = ruled_table()
    for head in HEADS:
        shown.add_column(head, justify="right", vertical="bottom")
    for cells in _rows(points):
        shown.add_row(*cells)
    console.print(shown)


def write_curve(points: Sequence[Point], out: Path) -> list[Path]:
    """`theory-curve.svg`, `.png` and `.html` in the directory `out`."""
    make_directory(out)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(7.6, 4.6), layout="constrained")
        axes = figure.add_subplot(title=TITLE)
        _draw(axes, points, ON_WHITE)
        figure.legend(loc="outside right upper", frameon=False)
        written = save(figure, out, NAME)
    chart = charts.svg("Line chart: risks against the number of samples", lambda axes: _draw(axes, points, ON_PAGE))
    body = row(panel(TITLE, HOW_TO_READ, chart + f'<div class="scroll">{table(_rows(points), HEADS)}</div>'))
    page = out / f"{NAME}.html"
    write_text(page, PAGE.format(title=TITLE, css=CSS, body=f"<h1>{TITLE}</h1>{body}"))
    return [*written, page]


def _rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    return [(str(point.samples), *(f"{getattr(point, field):.4f}" for field in COLUMNS)) for point in points]


def _draw(axes: Axes, points: Sequence[Point], colours: Mapping[str, str]) -> None:
    samples = [point.samples for point in points]
    for line in LINES:
        risks = [getattr(point, line.field) for point in points]
        look: dict[str, Any] = {"color": colours[line.colour], "marker": line.marker, "markersize": 4.5}
        axes.plot(samples, risks, linestyle=line.dashes, linewidth=1.5, label=line.label, **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(samples, [str(count) for count in samples])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("samples of a class")
    axes.set_ylabel("risk")
