"""Certificates and curves of the theory: on a run's page, in a terminal, as a page of their own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from rich.console import Console
from rich.text import Text

from oarlock.errors import printable
from oarlock.files import make_directory, write_text
from oarlock.markup import table, text
from oarlock.report import charts
from oarlock.report.charts import INK, KNOWN, NEW, QUIET, number_tasks, svg
from oarlock.report.figures import BOUND, COLOURS, REST, STYLE, save
from oarlock.report.html import CSS, PAGE, panel, row
from oarlock.report.terminal import ruled_table
from oarlock.report.wording import count, share, shorten
from oarlock.theory.certificate import Certificate, Statement
from oarlock.theory.curve import CLASSES, DRAWS, TASKS, TESTED, Point

# A head breaks at the line's end in the terminal; on the page that is a space.
RISK_HEADS = ("k", "own\nrisk", "Theorem 3:\nrisk", "bound", "Corollary:\nrisk", "bound", "Theorem 1:\nrisk")
DETECTOR_HEADS = ("task", "Theorem 3:\nrisk", "foreign", "spends", "Corollary:\nrisk", "foreign", "spends")
ROUNDING = 1e-6
LONGEST_NAMES = 24


def number(value: float) -> str:
    """Return a risk as text.

    >>> number(0.5)
    '0.500'
    """
    return f"{value:.3f}"


def bound(value: float) -> str:
    """Return a bound as text; no risk is above 1, so that a bound above it says nothing.

    >>> bound(0.904), bound(1.44)
    ('0.904', '1.440 vacuous')
    """
    return f"{number(value)} vacuous" if value > 1 else number(value)


def risk_rows(certificate: Certificate) -> Iterator[tuple[str, ...]]:
    """Yield a row for the first k tasks, for every k: what was measured, and what it is bounded by."""
    theorem3, corollary = certificate.theorem3, certificate.corollary
    for k, own in enumerate(certificate.own_risk):
        yield (
            str(k + 1),
            number(own),
            number(theorem3.risk[k]),
            bound(theorem3.bound[k]),
            number(corollary.risk[k]),
            bound(corollary.bound[k]),
            number(certificate.theorem1.risk[k]),
        )


def detector_rows(certificate: Certificate) -> Iterator[tuple[str, ...]]:
    """Yield a row for every task's detector: its risk, on which mixture, and how much of the bound it spends."""
    for t, classes in enumerate(certificate.tasks):
        cells = [f"{t + 1} {shorten(printable(', '.join(map(str, classes))), LONGEST_NAMES)}"]
        for statement in (certificate.theorem3, certificate.corollary):
            risk, foreign, spent = statement.detector_risk[t], statement.foreign_share[t], statement.bound_share[t]
            cells += [number(risk), share(foreign), share(spent)]
        yield tuple(cells)


def data_sentence(certificate: Certificate) -> str:
    known = f"Measured on {count(certificate.known_images, 'test image')}, each task weighing its share of them"
    if not certificate.alpha:
        return f"{known}; no foreign data (α = 0)."
    unknown = count(certificate.unknown_images, "unknown image")
    return f"{known}; α = {certificate.alpha:g} of every task are {unknown}, to which the right answer is “o”."


def sentences(certificate: Certificate) -> Iterator[str]:
    """Yield sentences on what the tables show, and on what stands in neither."""
    first, free = certificate.theorem3, certificate.corollary
    bounds = {"Theorem 3's bound": first, "the Corollary's": free}
    broken = [name for name, statement in bounds.items() if not _holds(statement.risk, statement.bound)]
    yield f"Broken: {' and '.join(broken)}!" if broken else "Both bounds hold for every k."
    if certificate.alpha:
        as_printed = bound(certificate.printed_bound[-1])
        kept = "does" if _holds(first.risk, certificate.printed_bound) else "does not"
        yield f"As printed, Theorem 3's bound is {as_printed}; with foreign data it need not hold; here it {kept}."
    yield (
        f"If every detector's risk is below ε, the learner's is below {first.multiplier:.2f} ε by Theorem 3 and "
        f"below {free.multiplier:.2f} ε by the Corollary. Without foreign data Theorem 3 has "
        f"{certificate.best_multiplier:.2f} ε for the best order of these tasks and "
        f"{certificate.worst_multiplier:.2f} ε for the worst."
    )
    yield f"Most of Theorem 3's bound is spent by {_biggest(first)}, most of the Corollary's by {_biggest(free)}."
    worst = certificate.worst_claimant_risk[-1]
    yield (
        "Of several tasks that claim an image the Corollary's learner takes the surest; if it always took a wrong "
        f"one, its risk would be {number(worst)}, and the bound holds for that too."
    )
    closed = certificate.theorem1
    yield (
        f"Theorem 1's scores, without foreign data, are wrong on {share(closed.newest[-1])} of the newest task's "
        f"images, as are the method's own with the task given ({share(closed.newest_before[-1])})"
        + (f", and on {share(closed.older[-1])} of older tasks' images." if closed.older[-1] is not None else ".")
    )
    yield f"Own risk is that of {certificate.method} as it is, {_rejection(certificate.own_accept)}."


def _holds(risk: list[float], values: list[float]) -> bool:
    return all(measured <= value + ROUNDING for measured, value in zip(risk, values, strict=True))


def _rejection(accept: float | None) -> str:
    if accept is None:
        return "which always answers with a class"
    return f"which says unknown below the threshold that accepts {share(accept)} of known images"


def _biggest(statement: Statement) -> str:
    t = int(np.argmax(statement.bound_share))
    return f"task {t + 1} ({share(statement.bound_share[t])})"


def theory_section(certificate: Certificate | None) -> str:
    """Return two panels; nothing where the run's method has no OOD heads."""
    if certificate is None:
        return ""
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences(certificate))
    return row(
        panel(
            "The theory on this model",
            "Risk is the share of wrong answers. Solid lines were measured; a dashed line is the bound of the solid "
            "one with the same mark, which stays below it. Above 1 a bound says nothing.",
            _risk_lines(certificate) + _scrolling(table(risk_rows(certificate), RISK_HEADS)),
        )
    ) + row(
        panel(
            "Which detector spends the bound?",
            f"{text(data_sentence(certificate))} A detector's risk is taken on its own task and on the share "
            "of foreign images that the theorem charges it with.",
            _scrolling(table(detector_rows(certificate), DETECTOR_HEADS)) + f"<ul>{items}</ul>",
        )
    )


def _scrolling(content: str) -> str:
    return f'<div class="scroll">{content}</div>'


def _risk_lines(certificate: Certificate) -> str:
    theorem3, corollary, closed = certificate.theorem3, certificate.corollary, certificate.theorem1
    first = range(1, len(certificate.tasks) + 1)

    def draw(axes: Axes) -> None:
        marks: dict[str, Any] = {"markersize": 4.5, "clip_on": False, "zorder": 3}
        for name, statement, colour, marker in (
            ("Theorem 3", theorem3, KNOWN, "o"),
            ("Corollary", corollary, NEW, "s"),
        ):
            look = {"color": colour, "marker": marker, **marks}
            axes.plot(first, statement.risk, label=name, **look)
            axes.plot(first, statement.bound, linestyle="--", label=f"{name}'s bound", **look)
        axes.plot(first, certificate.own_risk, color=INK, marker="D", label=f"{certificate.method} itself", **marks)
        axes.plot(first, closed.risk, color=QUIET, marker="X", label="Theorem 1's scores", **marks)
        axes.axhline(1, color=QUIET, linewidth=0.8)
        axes.set_ylim(bottom=0)
        number_tasks(axes, "first k tasks")

    return svg("Line chart: measured risks and their bounds for the first tasks", draw)


def print_certificate(certificate: Certificate, console: Console) -> None:
    """Print risks and bounds for the first k tasks, the detectors they come from, and what that means."""
    _print(console, data_sentence(certificate))
    console.print()
    _print(console, "The first k tasks: measured risks, and the bounds on them")
    _print_table(console, RISK_HEADS, risk_rows(certificate))
    _print(console, "Every detector: its risk, on what share of foreign data, and how much of the bound it spends")
    _print_table(console, DETECTOR_HEADS, detector_rows(certificate))
    for sentence in sentences(certificate):
        _print(console, sentence)


def _print(console: Console, sentence: str) -> None:
    console.print(Text(printable(sentence)), soft_wrap=False)


def _print_table(console: Console, heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    table = ruled_table()
    for column, head in enumerate(heads):
        table.add_column(head, justify="right" if column else "left", vertical="bottom")
    for cells in rows:
        table.add_row(*cells)
    console.print(table)
    console.print()


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
    """Write `theory-curve.svg`, `.png` and `.html` into the directory `out`; return their paths."""
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
