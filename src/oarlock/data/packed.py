"""The files of a folder, a .zip or a .tar, read in the order in which they lie there and without unpacking."""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from oarlock.errors import OarlockError


def packed_files(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes | None]]:
    """Every file of a folder or archive by its name inside, hidden ones left out, with the content of those wanted.

    One after the other: in a compressed tar, going back would mean reading it from the start.
    """
    try:
        for inside, open_file in _files(path):
            parts = PurePosixPath(inside).parts
            if any(part.startswith(".") or part == "__MACOSX" for part in parts):
                continue
            name = "/".join(parts)
            if wanted(name):
                with open_file() as file:
                    yield name, file.read()
            else:
                yield name, None
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as problem:
        raise OarlockError(f"{path}: cannot be read to its end ({problem}); get it again") from problem


def _files(path: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file():
                yield file.relative_to(path).as_posix(), partial(_opened, file)
    elif not path.is_file():
        raise OarlockError(f"{path}: no such file or folder; check the path")
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield entry.filename, partial(archive.open, entry)
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.isfile():
                    yield member.name, partial(_member, tar, member)
    else:
        raise OarlockError(f"{path}: is neither a folder nor a readable .zip or .tar archive")


def _opened(file: Path) -> IO[bytes]:
    return open(file, "rb")


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None  # as for every regular file
    return content
