"""What users may set: fields of frozen dataclasses with their ranges, filled from text or values."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

from oarlock.errors import OarlockError


def option(default: Any, least: float = -math.inf, most: float = math.inf) -> Any:
    """Return a field of a configuration with the range of values that make sense."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


def fill(config: type, options: Mapping[str, Any], whose: str) -> Any:
    """Return a configuration from options, whose values may be text from a command line.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Pace:
    ...     lr: float = option(0.1, least=0)
    >>> fill(Pace, {"lr": "0.01"}, "walking")
    Pace(lr=0.01)
    """
    kinds = typing.get_type_hints(config)
    values = {}
    for key, value in options.items():
        if key not in kinds:
            raise OarlockError(f"{whose} has no option {key!r}; its options: {', '.join(sorted(kinds))}")
        values[key] = _convert(key, value, kinds[key])
    filled = config(**values)
    for field in dataclasses.fields(filled):
        _check_range(field, getattr(filled, field.name))
    return filled


def describe(config: Any) -> dict[str, Any]:
    """Return all options with their values, for JSON."""
    return dataclasses.asdict(config)


def _check_range(field: "dataclasses.Field[Any]", value: Any) -> None:
    least, most = field.metadata.get("least", -math.inf), field.metadata.get("most", math.inf)
    if isinstance(value, int | float) and not (least <= value <= most and math.isfinite(value)):
        limits = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise OarlockError(f"option {field.name}={value} makes no sense: it must be {limits}")


def _convert(key: str, value: Any, kind: Any) -> Any:
    choices = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        if value in choices:
            return value
        raise OarlockError(f"option {key}={value!r} is not one of {', '.join(map(str, choices))}")
    if type(None) in choices:
        if value is None or value == "none":
            return None
        kind = next(choice for choice in choices if choice is not type(None))
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if kind is int and float(value) != int(float(value)):
            raise ValueError
        return kind(value)
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise OarlockError(f"option {key}={value!r} is not a valid {kind.__name__}") from problem
