"""The public data sets that protocols are made of: what each has when it is whole, and how it is read."""

import fcntl
import hashlib
import json
import os
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from oarlock.data.sources import Source, open_source
from oarlock.errors import OarlockError
from oarlock.files import make_directory, open_own, replacing
from oarlock.printing import complain
from oarlock.registry import Registry

_CONTENT = Path(__file__).parent / "datasets.json"


@dataclass(frozen=True)
class DataSet:
    """Describe a public data set, and open it.

    >>> tiny = datasets.find("tiny-imagenet")
    >>> len(tiny.classes), tiny.train, tiny.test
    (200, 500, 50)
    """

    name: str
    title: str
    train: int  # images of a class
    test: int
    classes: tuple[str, ...]  # in the order that class orders number them in: names, or WordNet ids
    read: Callable[[Path | None, Sequence[str]], Source]  # from its own layout; without a path, downloaded

    def open(self, path: Path | None = None, wanted: Sequence[str] | None = None) -> Source:
        """Return the data set, or those of its classes that are wanted: downloaded, or from a path with its own
        layout or an .npz archive whose `classes` are named as here."""
        wanted = self.classes if wanted is None else wanted
        where = self.title if path is None else str(path)
        if path is not None and path.suffix.lower() == ".npz":
            source = open_source(path)
            if strangers := [name for name in source.classes if _short(name) not in self.classes]:
                raise OarlockError(
                    f"{where}: {strangers[0]!r} is not a class of {self.title}; "
                    f"its classes are {', '.join(self.classes[:3])}, …"
                )
            if not self.named:
                source = replace(source, wnids={name: name for name in source.classes})
        else:
            source = self.read(path, wanted)
        here = {_short(source.wnids.get(name, name)): name for name in source.classes}
        if missing := [key for key in wanted if key not in here]:
            raise OarlockError(
                f"{where}: has {len(wanted) - len(missing)} of the {len(wanted)} classes of {self.title} that are "
                f"needed; {missing[0]} is missing"
            )
        classes = tuple(here[key] for key in wanted)
        train, test = source.train, source.test
        if len(classes) < len(source.classes):
            train, test = train.of(classes), test.of(classes)
        return replace(source, name=self.name, classes=classes, train=train, test=test)

    @property
    def named(self) -> bool:
        """Return whether classes are listed by name, and not by WordNet id."""
        return not self.classes[0][1:].isdecimal()


def _short(name: str) -> str:
    """CIFAR-100's trees go by two names."""
    return name.removesuffix("_tree")


datasets: Registry[DataSet] = Registry("data set", __name__)
Read = Callable[[Path | None, Sequence[str]], Source]


def dataset(name: str, *, title: str, train: int, test: int, classes: Sequence[str]) -> Callable[[Read], Read]:
    """Return a decorator that makes a reader known as a public data set, with so many images of a class."""

    def register(read: Read) -> Read:
        datasets.register(name)(DataSet(name, title, train, test, tuple(classes), read))
        return read

    return register


def described(name: str) -> dict[str, Any]:
    """Return what a bundled description says of a data set: title, images of a class, classes."""
    content: dict[str, Any] = json.loads(_CONTENT.read_text(encoding="utf-8"))[name]
    return content


VARIABLE = "OARLOCK_DATA"
_BLOCK = 2**20
_SECONDS = 60  # of silence, after which a server is given up


def data_directory() -> Path:
    """Return `~/.cache/oarlock`, or where the environment variable OARLOCK_DATA points."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/oarlock").expanduser()


@contextmanager
def filling(directory: Path) -> Iterator[Path]:
    """Yield the directory, made if need be, to one process at a time: runs side by side download once."""
    make_directory(directory)
    try:
        lock = open_own(directory / ".lock", os.O_RDWR)
    except OSError as problem:
        raise OarlockError(
            f"{directory} cannot be written to ({problem.strerror}): set {VARIABLE} to a directory that can"
        ) from problem
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory
    finally:
        os.close(lock)


def download(url: str, path: Path, *, md5: str) -> Path:
    """Return `path` with the file at `url` in it: all of it and with the right checksum, or an error and no file."""
    complain(f"downloading {url} to {path}")
    digest = hashlib.md5(usedforsecurity=False)
    with replacing(path) as file:
        try:
            with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
                while block := answer.read(_BLOCK):
                    digest.update(block)
                    file.write(block)
        except (OSError, HTTPException) as problem:  # urllib's and the socket's errors are of the first kind
            raise OarlockError(f"{url} could not be downloaded ({problem})") from problem
        if digest.hexdigest() != md5:
            raise OarlockError(
                f"{url} is not the file it should be: {file.tell():,} bytes arrived, with another checksum"
            )
    return path
