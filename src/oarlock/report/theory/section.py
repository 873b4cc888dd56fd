"""The section of a run's page about the theory."""

from typing import Any

from matplotlib.axes import Axes

from oarlock.report.charts import INK, KNOWN, NEW, QUIET, number_tasks, svg
from oarlock.report.markup import panel, row, table, text
from oarlock.report.theory import grids
from oarlock.theory.certificate import Certificate


def section(certificate: Certificate | None) -> str:
    """Two panels; nothing where the run's method has no detectors."""
    if certificate is None:
        return ""
    sentences = "".join(f"<li>{text(sentence)}</li>" for sentence in grids.sentences(certificate))
    return row(
        panel(
            "The theory on this model",
            "Risk is the share of wrong answers. Solid lines were measured; a dashed line is the bound of the solid "
            "one with the same mark, which stays below it. Above 1 a bound says nothing.",
            _risk_lines(certificate) + _scrolling(table(grids.risk_rows(certificate), grids.RISK_HEADS)),
        )
    ) + row(
        panel(
            "Which detector spends the bound?",
            f"{text(grids.data_sentence(certificate))} A detector's risk is taken on its own task and on the share "
            "of foreign images that the theorem charges it with.",
            _scrolling(table(grids.detector_rows(certificate), grids.DETECTOR_HEADS)) + f"<ul>{sentences}</ul>",
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
