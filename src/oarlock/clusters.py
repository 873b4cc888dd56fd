"""Ray: many processes, on one machine or on several."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from oarlock.errors import OarlockError

LOCAL = "ray"
OBJECTS = 200 * 2**20  # bytes of shared memory of a cluster of our own: little but names passes through it


def check_engine(on: str) -> None:
    """Refuse an engine that there is not.

    >>> check_engine("ray"), check_engine("ray://auto"), check_engine("ray://10.0.0.1:6379")
    (None, None, None)
    >>> check_engine("spark")
    Traceback (most recent call last):
    oarlock.errors.OarlockError: --on spark: use ray, ray://auto or ray://ADDRESS
    """
    kind, separator, address = on.partition("://")
    if kind != LOCAL or bool(separator) != bool(address):
        raise OarlockError(f"--on {on}: use ray, ray://auto or ray://ADDRESS")
    if find_spec("ray") is None:
        raise OarlockError("ray is not installed, which --on ray needs: pip install 'oarlock[ray]'")


@contextmanager
def connected(on: str) -> Iterator[Any]:
    """Yield Ray, connected to a cluster: the one at the address, the one this process has, or a local one that is
    ended afterwards."""
    check_engine(on)
    import ray

    if ray.is_initialized():
        yield ray
        return
    _, _, address = on.partition("://")
    cluster = {"address": address} if address else {"object_store_memory": OBJECTS, "include_dashboard": False}
    try:
        ray.init(**cluster, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as problem:
        reason, _, _ = str(problem).partition("\n")
        raise OarlockError(f"--on {on}: {reason}") from problem
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def mistake_in(ray: Any) -> Iterator[None]:
    """Raise what a task got wrong as it was raised there, in place of Ray's account of it."""
    try:
        yield
    except ray.exceptions.RayError as problem:
        causes: list[BaseException] = [problem]
        while cause := getattr(causes[-1], "cause", None) or causes[-1].__cause__:
            causes.append(cause)
        mistakes = [cause for cause in causes if isinstance(cause, OarlockError)]
        raise (mistakes[-1] if mistakes else OarlockError(f"Ray: {_last_line(problem)}")) from problem


def _last_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[-1]
