"""Where downloaded data sets are kept, and how a file gets there."""

import fcntl
import hashlib
import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from oarlock.errors import OarlockError
from oarlock.files import make_directory, replacing

VARIABLE = "OARLOCK_DATA"
_BLOCK = 2**20
_SECONDS = 60  # of silence, after which a server is given up


def data_directory() -> Path:
    """`~/.cache/oarlock`, or where the environment variable OARLOCK_DATA points."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/oarlock").expanduser()


@contextmanager
def filling(directory: Path) -> Iterator[Path]:
    """The directory, made if need be, for one process at a time: runs side by side download once."""
    make_directory(directory)
    try:
        lock = open(directory / ".lock", "w")  # noqa: SIM115 (closed below)
    except OSError as problem:
        raise OarlockError(
            f"{directory} cannot be written to ({problem.strerror}): set {VARIABLE} to a directory that can"
        ) from problem
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


def download(url: str, path: Path, *, md5: str) -> Path:
    """The file at `url` as `path`: all of it and with the right checksum, or an error and no file."""
    print(f"oarlock: downloading {url} to {path}", file=sys.stderr)
    digest = hashlib.md5(usedforsecurity=False)
    with replacing(path) as temporary:
        try:
            with urllib.request.urlopen(url, timeout=_SECONDS) as answer, open(temporary, "wb") as file:
                while block := answer.read(_BLOCK):
                    digest.update(block)
                    file.write(block)
        except (OSError, HTTPException) as problem:  # urllib's and the socket's errors are of the first kind
            raise OarlockError(f"{url} could not be downloaded ({problem})") from problem
        if digest.hexdigest() != md5:
            size = temporary.stat().st_size
            raise OarlockError(f"{url} is not the file it should be: {size:,} bytes arrived, with another checksum")
    return path
