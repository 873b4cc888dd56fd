"""One process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oarlock.errors import OarlockError


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Nobody else works in the directory."""
    with locked(directory / ".lock", f"another process is at work in {directory}"):
        yield


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """The operating system's lock on a file, which a killed process cannot leave behind; the file is removed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / ".lock"
    >>> with locked(path, "busy"):
    ...     with locked(path, "busy"):
    ...         pass
    Traceback (most recent call last):
    oarlock.errors.OarlockError: busy
    >>> path.exists()
    False
    """
    try:
        lock = open(path, "w")  # noqa: SIM115 (closed below, after the file is gone)
    except OSError as problem:
        raise OarlockError(f"{path} cannot be written ({problem.strerror})") from problem
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who held the lock until now removes the file: a lock on what is no longer there keeps nobody out.
            held = os.path.samestat(os.fstat(lock.fileno()), os.stat(path))
        except (BlockingIOError, FileNotFoundError):
            held = False
        if not held:
            raise OarlockError(refusal)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
