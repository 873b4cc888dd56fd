"""Folders that fsspec reaches: on this machine, on a disk that machines share, in a bucket (`s3://…`)."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from oarlock.errors import OarlockError
from oarlock.files import replacing


def is_url(text: str) -> bool:
    """Return whether a text names a place in a store, and is no path.

    >>> is_url("s3://photos/january"), is_url("photos/january")
    (True, False)
    """
    return "://" in text


class Store:
    """Read and write files below a folder, by their names in it. What is written is there whole or not at all.

    >>> store = Store("memory://shelf")
    >>> with store.writing("a/note.txt") as file:
    ...     _ = file.write(b"all of it")
    >>> store.names(), store.read("a/note.txt"), store.url("a")
    (['a/note.txt'], b'all of it', 'memory:///shelf/a')
    >>> store.remove("a")
    >>> store.names()
    []
    """

    def __init__(self, url: str) -> None:
        with told(url):
            self.files, self.root = url_to_fs(url)
        self.root = self.root.rstrip("/")

    @property
    def local(self) -> bool:
        """Return whether it is a folder of this machine."""
        return isinstance(self.files, LocalFileSystem)

    def url(self, name: str = "") -> str:
        return str(self.files.unstrip_protocol(self.place(name)))

    def place(self, name: str) -> str:
        """Return what the file system calls a file, or the folder itself for no name."""
        return f"{self.root}/{name}" if name else self.root

    def names(self, folder: str = "") -> list[str]:
        """Return the names of all files below a folder, sorted; none where there is no folder."""
        with told(self.url(folder)):
            self.files.invalidate_cache()
            found = self.files.find(self.place(folder))
        return sorted(place[len(self.root) + 1 :] for place in found)

    def exists(self, name: str) -> bool:
        with told(self.url(name)):
            self.files.invalidate_cache()
            return bool(self.files.exists(self.place(name)))

    def read(self, name: str = "") -> bytes:
        with told(self.url(name)):
            return bytes(self.files.cat_file(self.place(name)))

    @contextmanager
    def writing(self, name: str = "") -> Iterator[IO[bytes]]:
        """Yield a file that takes its place when the block ends well."""
        place = self.place(name)
        with told(self.url(name)):
            self.files.makedirs(place.rpartition("/")[0], exist_ok=True)
        if self.local:
            with replacing(Path(place)) as file:
                yield file
            return
        unfinished = f"{place}.{secrets.token_hex(8)}.tmp"
        with told(self.url(name)):
            file = self.files.open(unfinished, "wb")
        try:
            yield file
            with told(self.url(name)):
                file.close()
                self.files.mv(unfinished, place)
        finally:
            with suppress(Exception):  # gone as a rule
                self.files.rm_file(unfinished)

    def send(self, file: Path, name: str) -> None:
        """Copy a file of this machine into the store."""
        with open(file, "rb") as source, self.writing(name) as target:
            while block := source.read(2**20):
                target.write(block)

    def fetch(self, name: str, file: Path) -> None:
        """Copy a file of the store to this machine."""
        with replacing(file) as target:
            target.write(self.read(name))

    def remove(self, name: str = "") -> None:
        """Remove a file, or a folder with all that is in it, if it is there."""
        with told(self.url(name)), suppress(FileNotFoundError):
            self.files.rm(self.place(name), recursive=True)


@contextmanager
def told(url: str) -> Iterator[None]:
    """Say in a sentence what a store refuses; every kind of store has errors of its own."""
    try:
        yield
    except OarlockError:
        raise
    except Exception as problem:
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise OarlockError(f"{url}: {reason}") from problem
