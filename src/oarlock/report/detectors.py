"""Detectors side by side: a table for the terminal, and the scores that each gives to known and unknown images."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from oarlock.experiments.detection import Detection
from oarlock.files import make_directory
from oarlock.report.figures import BOUND, COLOURS, STYLE, save
from oarlock.report.terminal import ruled_table

NAME = "detectors"
ACROSS = 3  # plots beside each other
BINS = 40


def print_detections(found: Sequence[Detection], accept: float, chosen: str, console: Console) -> None:
    """Print a line for every detector; the model's own choice is marked."""
    table = ruled_table()
    for head in ("detector", "AUROC", "FPR@95", f"accepted at {accept:g}", "ms an image"):
        table.add_column(head, justify="left" if head == "detector" else "right", vertical="bottom")
    for one in found:
        accepted = "" if one.accepted is None else f"{100 * one.accepted:.1f} %"
        name = Text(one.detector + (" (the model's)" if one.detector == chosen else ""))
        table.add_row(name, f"{one.auroc:.3f}", f"{one.fpr95:.3f}", accepted, f"{one.milliseconds:.3f}")
    console.print(table)
    known, unknown = len(found[0].known), len(found[0].unknown)
    where = "kept for thresholds" if found[0].accepted is None else "of its classes"
    console.print(Text(f"{known} images {where}, {unknown} of none"))


def write_detections(found: Sequence[Detection], out: Path) -> list[Path]:
    """Write `detectors.svg` and `detectors.png` into a directory; return their paths."""
    make_directory(out)
    down = math.ceil(len(found) / ACROSS)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(3.1 * ACROSS, 1.9 * down + 0.4), layout="constrained")
        grid = figure.subplots(down, ACROSS, squeeze=False)
        for axes, one in zip(grid.flat, found, strict=False):
            _draw(axes, one)
        for axes in grid.flat[len(found) :]:
            axes.set_axis_off()
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
        return save(figure, out, NAME)


def _draw(axes: Any, one: Detection) -> None:
    """Shares of known and unknown images by score; far outliers are counted in the outermost bars."""
    everything = np.concatenate([one.known, one.unknown])
    low, high = np.percentile(everything[np.isfinite(everything)], [1, 99])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    for scores, name, colour in ((one.known, "known", COLOURS[0]), (one.unknown, "unknown", BOUND)):
        counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)
        axes.stairs(counts / len(scores), edges, fill=True, alpha=0.5, color=colour, label=name)
    axes.set_title(f"{one.detector}: AUROC {one.auroc:.3f}")
    axes.set_yticks([])
