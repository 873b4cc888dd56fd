"""How names and numbers are put into words, the same in the terminal and on the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from oarlock.experiments.result import RunResult

NOTHING = "–"


def shorten(text: str, length: int) -> str:
    """Return text of at most this length, with an ellipsis for what is cut off.

    >>> shorten("automobile", 6)
    'autom…'
    """
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f} %"


def share(value: float | None) -> str:
    """Return a number between 0 and 1 as a percentage."""
    return NOTHING if value is None else percent(100 * value)


def points(value: float | None) -> str:
    """Return a difference of percentages in words."""
    return NOTHING if value is None else f"{value:.1f} points"


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def mean_and_std(mean: float, std: float | None, digits: int) -> str:
    """Return a mean and its standard deviation, if there is one.

    >>> mean_and_std(57.06, 0.63, 1), mean_and_std(1234567, None, 0)
    ('57.1 ± 0.6', '1,234,567')
    """
    return f"{mean:,.{digits}f}" + ("" if std is None else f" ± {std:,.{digits}f}")


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular or the plural.

    >>> count(1, "task"), count(2, "image")
    ('1 task', '2 images')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(3.14159), duration(75), duration(7384)
    ('3.1 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def promise_kind(tolerance: float) -> str:
    """Return what is promised about finished tasks.

    >>> promise_kind(0.0), promise_kind(0.1)
    ('bit for bit', 'to 10 % of the largest value, not bit for bit')
    """
    return f"to {100 * tolerance:g} % of the largest value, not bit for bit" if tolerance else "bit for bit"


def promise(unchanged: Mapping[str, Any] | None) -> str:
    """Return how many of the values promised bit-identical changed, or by how much values moved that are not."""
    if unchanged is None:
        return "This method promises no bit-identical values."
    if tolerance := unchanged.get("tolerance"):
        moved = unchanged.get("difference")
        how = "further than can be said" if moved is None else f"by {100 * moved:.2g} % at most"
        return f"{unchanged['compared']:,} values promised {promise_kind(tolerance)}; they moved {how}."
    return f"{unchanged['compared']:,} values promised bit-identical, {unchanged['changed']:,} changed."


def is_kept(unchanged: Mapping[str, Any]) -> bool:
    """Return whether what was promised about finished tasks is true."""
    if tolerance := unchanged.get("tolerance"):
        moved = unchanged.get("difference")
        return moved is not None and moved <= tolerance
    return not unchanged["changed"]


def protocol(result: RunResult) -> str:
    """Return the name of a run's protocol, and whether its data was whole."""
    name = result.protocol or "none"
    return f"{name} on partial data: {image_counts(result.images_per_class)}" if result.partial else name


def image_counts(per_class: Mapping[str, Sequence[int]]) -> str:
    """Return the fewest and the most images of a class in words.

    >>> image_counts({"train": [480, 500], "test": [200, 200]})
    'train 480 to 500, test 200 images of a class'
    """
    ranges = {part: " to ".join(map(str, dict.fromkeys(ends))) for part, ends in per_class.items()}
    return ", ".join(f"{part} {images}" for part, images in ranges.items()) + " images of a class"


def overlap(answer: str) -> str:
    """Return what the trunk's pre-training saw of the classes of this stream."""
    seen = {"yes": "classes of this stream, which flatters accuracy", "no": "no class of these names"}
    return seen.get(answer, "not known which classes")
