"""What a description has to look like: small checks that are put together into large ones.

Whoever wrote a file wrote its description and its checksum too, so that a description is not trusted because the
checksum fits. Every room that is rebuilt from one says here what it may hold; what is anything else is refused in a
sentence that names the place.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from oarlock.errors import OarlockError

# A value, and how its place is called, which is nothing for the whole → the value, if it is as it should be.
Check = Callable[[Any, str], Any]

LARGEST = 2**53  # whole numbers beyond are not told apart by every program that reads JSON
LONGEST = 100_000  # entries of a list or a mapping, where nothing else is said
DEEPEST = 8  # lists within lists, of what nothing is known about
TEXT = 1000  # characters


def from_json(text: str) -> Any:
    """Return what a text holds that is JSON and nothing more: no NaN, no infinity, no name given twice.

    >>> from_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    oarlock.errors.OarlockError: it is not JSON: the name 'a' is given twice
    """
    try:
        return json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_number)
    except json.JSONDecodeError as problem:
        raise OarlockError(f"it is not JSON ({problem})") from problem
    except RecursionError:
        raise OarlockError("it is not JSON that anybody wrote: lists stand in lists without end") from None
    except OarlockError:
        raise
    except ValueError as problem:  # whole numbers of thousands of digits
        raise OarlockError("it is not JSON that anybody wrote: a number is too long") from problem


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise OarlockError(f"it is not JSON: the name {name!r} is given twice")
        content[name] = value
    return content


def _no_number(name: str) -> NoReturn:
    raise OarlockError(f"it is not JSON: {name} is no number")


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Say that something cannot be made sense of when anything goes wrong with it: the last net, below the checks."""
    try:
        yield
    except OarlockError:
        raise
    except Exception as problem:  # parts that do not fit each other are found by whatever they break
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
        raise OarlockError(f"{what} does not fit together ({reason})") from problem


@contextmanager
def of_file(name: object) -> Iterator[None]:
    """Have what is refused named by its file."""
    try:
        yield
    except OarlockError as problem:
        raise OarlockError(f"{name}: {problem}") from problem


@contextmanager
def undamaged(path: object) -> Iterator[None]:
    """Have a file called damaged in which something is refused."""
    try:
        yield
    except OarlockError as problem:
        raise OarlockError(f"{path} is damaged: {problem}") from problem


def refuse(value: Any, place: str, wanted: str) -> NoReturn:
    """Say that a value is not what is wanted in its place."""
    shown = repr(value) if not isinstance(value, list | tuple | dict) else f"a {type(value).__name__} of {len(value)}"
    raise OarlockError(f"{place or 'it'} is {shown if len(shown) <= 60 else shown[:59] + '…'}, not {wanted}")


def _within(place: str, name: str) -> str:
    name = name if name.isprintable() else repr(name)
    return f"{place}.{name}"[:200] if place else name[:200]


def integer(least: int = -LARGEST, most: int = LARGEST) -> Check:
    """Return a check for whole numbers in a range.

    >>> integer(0, 9)(12, "digits[3]")
    Traceback (most recent call last):
    oarlock.errors.OarlockError: digits[3] is 12, not a whole number from 0 to 9
    """

    def check(value: Any, place: str) -> int:
        if type(value) is not int or not least <= value <= most:
            refuse(value, place, f"a whole number from {least} to {most}")
        return value

    return check


def number(least: float = -1e300, most: float = 1e300) -> Check:
    """Return a check for finite numbers in a range."""

    def check(value: Any, place: str) -> float:
        if type(value) not in (int, float) or not least <= value <= most or not math.isfinite(value):
            refuse(value, place, f"a number from {least:g} to {most:g}")
        return value

    return check


def boolean(value: Any, place: str) -> bool:
    """Check that a value is true or false."""
    if type(value) is not bool:
        refuse(value, place, "true or false")
    return value


def text(longest: int = TEXT) -> Check:
    """Return a check for text that can be written to a file again: any file name can, half a character cannot."""

    def check(value: Any, place: str) -> str:
        if not isinstance(value, str) or len(value) > longest:
            refuse(value, place, f"text of up to {longest} characters")
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            refuse(value, place, "text that can be written")
        return value

    return check


def matching(pattern: str) -> Check:
    """Return a check for text of a form that a regular expression describes."""
    form, short = re.compile(pattern), text(200)

    def check(value: Any, place: str) -> str:
        if not form.fullmatch(short(value, place)):
            refuse(value, place, f"of the form {pattern}")
        return value

    return check


def one_of(*values: Any) -> Check:
    """Return a check for one of a few values."""

    def check(value: Any, place: str) -> Any:
        if not any(type(value) is type(known) and value == known for known in values):
            refuse(value, place, f"one of {', '.join(map(repr, values))}")
        return value

    return check


def maybe(check: Check) -> Check:
    """Return a check for what may be missing: null, or what another check lets pass."""
    return lambda value, place: None if value is None else check(value, place)


def either(*checks: Check) -> Check:
    """Return a check for what one of several lets pass; the last says what is wrong."""

    def check(value: Any, place: str) -> Any:
        for one in checks[:-1]:
            try:
                return one(value, place)
            except OarlockError:
                continue
        return checks[-1](value, place)

    return check


def list_of(each: Check, least: int = 0, most: int = LONGEST) -> Check:
    """Return a check for lists of so many entries, each of which passes another check; a learner's own state, which
    never was JSON, may have tuples in their place."""
    length = f"{least}" if least == most else f"{least} to {most}"

    def check(value: Any, place: str) -> list[Any]:
        if type(value) not in (list, tuple) or not least <= len(value) <= most:
            refuse(value, place, f"a list of {length}")
        return [each(entry, f"{place}[{index}]") for index, entry in enumerate(value)]

    return check


def mapping(each: Check, most: int = LONGEST) -> Check:
    """Return a check for objects with any names, whose values pass another check."""
    name_of = text()

    def check(value: Any, place: str) -> dict[str, Any]:
        if type(value) is not dict or len(value) > most:
            refuse(value, place, f"an object of up to {most} names")
        return {
            name_of(name, f"a name in {place or 'it'}"): each(value[name], _within(place, name)) for name in value
        }

    return check


def record(needed: Mapping[str, Check], may: Mapping[str, Check] | None = None, *, others: bool = True) -> Check:
    """Return a check for objects that have some names, and may have some more; what else there is has to be plain, or
    without `others` is refused.

    >>> point = record({"x": number(), "y": number()})
    >>> point({"x": 1}, "corner")
    Traceback (most recent call last):
    oarlock.errors.OarlockError: corner has no 'y'
    """
    known = {**needed, **(may or {})}

    def check(value: Any, place: str) -> dict[str, Any]:
        if type(value) is not dict or len(value) > LONGEST:
            refuse(value, place, "an object with names")
        if missing := [name for name in needed if name not in value]:
            raise OarlockError(f"{place or 'it'} has no {missing[0]!r}")
        if not others and (strange := [name for name in value if name not in known]):
            raise OarlockError(f"{place or 'it'} cannot have a {strange[0]!r}"[:300])
        return {name: known.get(name, plain)(entry, _within(place, name)) for name, entry in value.items()}

    return check


def plain(value: Any, place: str, depth: int = DEEPEST) -> Any:
    """Check what nothing is known about: numbers, text, lists and objects of bounded size."""
    if isinstance(value, list | tuple | dict):
        if not depth:
            refuse(value, place, "something with fewer lists in lists")

        def deeper(entry: Any, where: str) -> Any:
            return plain(entry, where, depth - 1)

        return mapping(deeper)(value, place) if isinstance(value, dict) else list_of(deeper)(value, place)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(100_000)(value, place)
    return number()(value, place)
