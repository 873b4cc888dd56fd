"""What is being written, under a name of its own beside the place it is meant for.

The name cannot be foreseen, whatever has it already is left alone, and the operating system's lock on it tells what
is being written from what a killed process left.
"""

import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def unfinished_file(place: Path, mode: int | None) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield a new file and its path, which is gone afterwards; with None its mode is the one that new files have.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with unfinished_file(folder / "note.txt", 0o600) as (file, path):
    ...     oct(path.stat().st_mode), path.suffix
    ('0o100600', '.tmp')
    >>> list(folder.iterdir())
    []
    """
    remove_unfinished(place)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    path, descriptor = _held(place, lambda path: os.open(path, flags, 0o666 if mode is None else 0o600))
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield file, path
    finally:
        with suppress(OSError):
            path.unlink()


@contextmanager
def unfinished_folder(place: Path) -> Iterator[Path]:
    """Yield the path of a new folder, which is gone afterwards."""
    remove_unfinished(place, folders=True)
    path, descriptor = _held(place, _make_folder)
    try:
        yield path
    finally:
        os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)


def remove_unfinished(place: Path, *, folders: bool = False) -> None:
    """Remove what killed processes left of writing a file, or of a folder. What another process is writing stays, and
    so does everything else that has not exactly a name of ours."""
    ours = re.compile(rf"\.{re.escape(place.name)}\.[0-9a-f]{{16}}\.tmp")
    with suppress(OSError):
        for name in filter(ours.fullmatch, os.listdir(place.parent)):
            with suppress(OSError):
                _remove_if_abandoned(place.parent / name, folders)


def _remove_if_abandoned(path: Path, folder: bool) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        kind = os.fstat(descriptor).st_mode
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder and stat.S_ISDIR(kind):
            shutil.rmtree(path)
        elif not folder and stat.S_ISREG(kind):
            path.unlink()
    finally:
        os.close(descriptor)


def _make_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def _held(place: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """The path and the descriptor of what `make` made, locked."""
    while True:
        path = place.parent / f".{place.name}.{secrets.token_hex(8)}.tmp"
        descriptor = make(path)
        with suppress(OSError):  # on a file system without locks nothing is removed either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # nobody took it for abandoned before it was locked
            return path, descriptor
        os.close(descriptor)
