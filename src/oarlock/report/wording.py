"""How names and numbers are put into words, the same in the terminal and on the page."""

from collections.abc import Mapping
from typing import Any

NOTHING = "–"


def printable(name: object) -> str:
    """A class name that is safe to show: folder names may hold control characters and broken encodings.

    >>> printable("caf\\x1b[31m")
    'caf�[31m'
    """
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(name))


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


def mean_and_std(mean: float, std: float | None, digits: int) -> str:
    """
    >>> mean_and_std(57.06, 0.63, 1), mean_and_std(1234567, None, 0)
    ('57.1 ± 0.6', '1,234,567')
    """
    return f"{mean:,.{digits}f}" + ("" if std is None else f" ± {std:,.{digits}f}")


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "task"), count(2, "image")
    ('1 task', '2 images')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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


def protocol(result: Mapping[str, Any]) -> str:
    """The name of a run's protocol, and whether its data was whole.

    >>> counts = {"train": [480, 500], "test": [200, 200]}
    >>> protocol({"protocol": "c10-5t", "partial": True, "images_per_class": counts})
    'c10-5t on partial data: train 480 to 500, test 200 images of a class'
    """
    if not result.get("partial"):
        return result["protocol"] or "none"
    ranges = {part: " to ".join(map(str, dict.fromkeys(ends))) for part, ends in result["images_per_class"].items()}
    counts = ", ".join(f"{part} {images}" for part, images in ranges.items())
    return f"{result['protocol']} on partial data: {counts} images of a class"


def overlap(answer: str) -> str:
    """What the trunk's pre-training saw of the classes of this stream."""
    seen = {"yes": "classes of this stream, which flatters accuracy", "no": "no class of these names"}
    return seen.get(answer, "not known which classes")
