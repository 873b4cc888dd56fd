"""Things found by name. Each registers itself by a decorator in a module of a package, which is searched when asked:
adding one is one new file and no edit."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

from oarlock.errors import OarlockError

T = TypeVar("T")


class Registry(Generic[T]):
    """Hold what a package offers, under a name each.

    >>> shapes = Registry[type]("shape", "oarlock.theory")
    >>> @shapes.register("square")
    ... class Square: ...
    >>> shapes.find("square") is Square, Square.name
    (True, 'square')
    >>> shapes.find("circle")
    Traceback (most recent call last):
    oarlock.errors.OarlockError: there is no shape 'circle'; known shapes: square
    """

    def __init__(self, what: str, package: str) -> None:
        self.what, self.package = what, package
        self.entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that makes something known under a name, and a class know it as its `name`."""

        def add(thing: T) -> T:
            if isinstance(thing, type):
                thing.name = name  # type: ignore[attr-defined]
            self.entries[name] = thing
            return thing

        return add

    def all(self) -> dict[str, T]:
        """Return everything there is, by name, after looking into every module of the package."""
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        return dict(self.entries)

    def find(self, name: str) -> T:
        """Return what has this name; refuse a name that nothing has."""
        known = self.all()
        if name not in known:
            raise OarlockError(f"there is no {self.what} {name!r}; known {self.what}s: {', '.join(sorted(known))}")
        return known[name]
