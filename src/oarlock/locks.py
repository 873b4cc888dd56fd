"""Locks of the operating system on files, which keep other processes from the same work."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oarlock.errors import OarlockError
from oarlock.files import open_own


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Keep others from working in the directory meanwhile; refuse where another process does."""
    with locked(directory / ".lock", f"another process is at work in {directory}"):
        yield


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold the operating system's lock on a file, which a killed process cannot leave behind; the file is removed.

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
        lock = open_own(path, os.O_RDWR)
    except OSError as problem:
        raise OarlockError(f"{path} cannot be written ({problem.strerror})") from problem
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who held the lock until now removes the file: a lock on what is no longer there keeps nobody out.
            held = os.path.samestat(os.fstat(lock), os.lstat(path))
        except (BlockingIOError, FileNotFoundError):
            held = False
        if not held:
            raise OarlockError(refusal)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(lock)
