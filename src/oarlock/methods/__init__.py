"""The methods, one file each, found by their decorator."""

import dataclasses
import importlib
import math
import pkgutil
import typing
from collections.abc import Callable, Mapping
from typing import Any

from oarlock.errors import OarlockError
from oarlock.methods.base import Method

_registry: dict[str, type[Method]] = {}


def method(name: str) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: makes a method known under a name."""

    def register(cls: type[Method]) -> type[Method]:
        cls.name = name
        _registry[name] = cls
        return cls

    return register


def registered() -> dict[str, type[Method]]:
    """All methods by name.

    >>> "row" in registered()
    True
    """
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(_registry)


def find(name: str) -> type[Method]:
    methods = registered()
    if name not in methods:
        raise OarlockError(f"there is no method {name!r}; known methods: {', '.join(sorted(methods))}")
    return methods[name]


def configure(cls: type[Method], options: Mapping[str, Any]) -> Any:
    """A method's configuration from options, whose values may be text from a command line.

    >>> configure(find("row"), {"lr": "0.01"}).lr
    0.01
    """
    kinds = typing.get_type_hints(cls.Config)
    values = {}
    for key, value in options.items():
        if key not in kinds:
            raise OarlockError(f"{cls.name} has no option {key!r}; its options: {', '.join(sorted(kinds))}")
        values[key] = _convert(key, value, kinds[key])
    config = cls.Config(**values)
    for field in dataclasses.fields(config):
        _check_range(field, getattr(config, field.name))
    return config


def describe_config(config: Any) -> dict[str, Any]:
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
