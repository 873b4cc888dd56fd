"""How names and numbers are put into words, the same in the terminal and on the page."""

from collections.abc import Mapping
from typing import Any

NOTHING = "–"


def printable(name: object) -> str:
    """A class name that is safe to show: folder names may hold control characters and broken encodings.

    >>> printable("caf\\x1b[31m")
    'caf�[31m'
    """
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(name)
    )


def shorten(text: str, length: int) -> str:
    """
    >>> shorten("automobile", 6)
    'autom…'
    """
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f} %"


def share(value: float | None) -> str:
    """A number between 0 and 1 as a percentage."""
    return NOTHING if value is None else percent(100 * value)


def points(value: float | None) -> str:
    """A difference of percentages."""
    return NOTHING if value is None else f"{value:.1f} points"


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def duration(seconds: float) -> str:
    """
    >>> duration(3.14159), duration(75), duration(7384)
    ('3.1 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def promise(unchanged: Mapping[str, int] | None) -> str:
    """How many of the values promised bit-identical changed."""
    if unchanged is None:
        return "This method promises no bit-identical values."
    return f"{unchanged['compared']:,} values promised bit-identical, {unchanged['changed']:,} changed."


def last_mean(accuracy: list[list[float]]) -> float:
    """The mean over all tasks after the last one."""
    return means(accuracy)[-1]


def means(accuracy: list[list[float]]) -> list[float]:
    """After each task, the mean over the tasks seen so far.

    >>> means([[90.0], [80.0, 100.0]])
    [90.0, 90.0]
    """
    return [sum(row) / len(row) for row in accuracy]


def overlap(result: Mapping[str, Any]) -> str:
    """What the trunk's pre-training saw of the classes of this stream."""
    seen = {"yes": "classes of this stream, which flatters accuracy", "no": "no class of this stream"}
    return seen.get(result["overlap"], "not known which classes")
