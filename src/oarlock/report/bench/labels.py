"""Where names go in a chart, so that none covers another."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

MARKER = 4.0  # points from the middle of a marker to its edge
NEAR = 8.0  # points; a name further away has a line to its marker


class NamedPoint(NamedTuple):
    name: str
    x: float
    y: float
    colour: str


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """The heights moved as little as it takes to be `gap` apart, in the same order.

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
    """A name beside each point, at the nearest place where it covers no other name and no point."""
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
