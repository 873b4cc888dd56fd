"""What a user can get wrong, told apart from what we got wrong; and arguments that make sense, or a sentence
that names the one that does not."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from sklearn.exceptions import NotFittedError

__all__ = ["NotFittedError", "OarlockError", "all_together", "check_device", "check_number", "printable"]


def __getattr__(name: str) -> Any:
    """Import scikit-learn's own error only where it is asked for: it takes a second, and so would every TAB."""
    if name != "NotFittedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sklearn.exceptions import NotFittedError

    return NotFittedError


class OarlockError(ValueError):
    """Report a mistake in the input: the message says which input, what is wrong with it and what to do. Of several
    mistakes each is an argument.

    >>> print(OarlockError("a.png: no such file", "b.png: no such file"))
    a.png: no such file
    b.png: no such file
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


MOST_MISTAKES = 20  # that are told at a time


def all_together(mistakes: Sequence[OarlockError]) -> OarlockError:
    """Return what tells several mistakes at once: the first ones, and how many more there are."""
    told = [sentence for mistake in mistakes for sentence in mistake.args]
    more = len(told) - MOST_MISTAKES
    return OarlockError(*told[:MOST_MISTAKES], *([f"and {more} more like these"] if more > 0 else []))


def check_number(name: str, value: Any, kind: type, least: float = -math.inf, most: float = math.inf) -> None:
    numbers = (int, np.integer) if kind is int else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, numbers) or not least <= value <= most:
        what = "a whole number" if kind is int else "a number"
        limits = f" of at least {least:g}" if most == math.inf else f" between {least:g} and {most:g}"
        raise OarlockError(f"{name}={value!r} is not {what}{limits if least > -math.inf else ''}")


def check_device(device: "str | torch.device") -> None:
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as problem:
        reason = str(problem).splitlines()[0].split(". ")[0][:120]
        raise OarlockError(f"device={str(device)!r} cannot be used here ({reason})") from problem


def printable(name: object) -> str:
    """Return a class name made safe to show: folder names may hold control characters and broken encodings.

    >>> printable("caf\\x1b[31m")
    'caf�[31m'
    """
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(name))
