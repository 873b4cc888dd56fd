"""Class-incremental learning that does not forget and that says when it meets something new."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oarlock.errors import NotFittedError, OarlockError
    from oarlock.learner import Learner, load
    from oarlock.report.progress import ProgressBar

__all__ = ["Learner", "NotFittedError", "OarlockError", "ProgressBar", "load"]
__version__ = "0.2.0"

_HOMES = {
    "Learner": "learner",
    "NotFittedError": "errors",
    "OarlockError": "errors",
    "ProgressBar": "report.progress",
    "load": "learner",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: the command line begins here, and must hear Ctrl-C while torch is read."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
