"""What people watch training with. One class each in a file of its own, found by its decorator; all of them hear the
same from a `logbook.Logbook`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from oarlock.errors import OarlockError
from oarlock.registry import Registry


class Tracker(ABC):
    """Keep one run with a tracker: opened with its title, a folder for files of its own, and the run's settings."""

    name: str
    package: ClassVar[str]  # which it needs

    @abstractmethod
    def __init__(self, title: str, folder: Path, settings: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def log(self, values: Mapping[str, float], axis: str, step: int) -> None:
        """Take down values by name, at a step of an axis: "epoch" or "tasks"."""

    @abstractmethod
    def attach(self, file: Path) -> None:
        """Keep a file with the run."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """End the run; one that is not finished was stopped."""


trackers: Registry[type[Tracker]] = Registry("tracker", __name__)


def tracker(name: str) -> Callable[[type[Tracker]], type[Tracker]]:
    """Return a decorator that makes a class known as a tracker."""
    return trackers.register(name)


def find_trackers(names: Sequence[str]) -> list[type[Tracker]]:
    """Return the trackers that are asked for; refuse one whose package is missing."""
    found = [trackers.find(name) for name in dict.fromkeys(names)]
    for one in found:
        if find_spec(one.package) is None:
            needed = f"{one.package} is not installed, which --track {one.name} needs"
            raise OarlockError(f"{needed}: pip install 'oarlock[track]'")
    return found
