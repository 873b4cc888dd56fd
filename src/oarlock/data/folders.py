"""Which files there are in folders and archives."""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from oarlock.errors import OarlockError

LARGEST = 2**26  # bytes of a file in an archive; images and lists of them are far smaller
_ENCRYPTED = 1  # a bit of a zip's flags
_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"}


def image_files(where: Path) -> tuple[Path, ...]:
    """Return every image file below a folder, sorted by path, hidden files left out; a file stands for itself.

    A link to a file is that file, a link that leads nowhere is found too (and named when it is read), and a link to a
    folder is not followed below `where`, so that none can lead round in a circle.
    """
    with _reading(where):
        if where.is_file():
            return (where,)
        if not where.is_dir():
            raise OarlockError(f"{where}: {_missing(where)}; check the path")
        next(where.iterdir(), None)  # which `rglob` would not complain about
        files = tuple(
            path
            for path in sorted(where.rglob("*"), key=Path.as_posix)
            if is_image(path) and not any(part.startswith(".") for part in path.relative_to(where).parts)
        )
    if not files:
        raise OarlockError(f"{where}: no images in this folder; accepted are {', '.join(sorted(_SUFFIXES))}")
    return files


def files_by_class(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the image files of each class of a folder."""
    return {name: image_files(where) for name, where in class_folders(folder).items()}


def class_folders(folder: Path) -> dict[str, Path]:
    """Return the sub-folders of a folder, or links to folders; each is a class, its name the class name."""
    with _reading(folder):
        if not folder.is_dir():
            raise OarlockError(f"{folder}: not a folder; pass a folder with one sub-folder per class")
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
        if loose := [entry for entry in entries if is_image(entry)]:
            raise OarlockError(f"{loose[0]}: this image has no class; move it into a class sub-folder of {folder}")
        if lost := [entry for entry in entries if entry.is_symlink() and not entry.exists()]:
            raise OarlockError(f"{lost[0]}: {_missing(lost[0])}; repair or remove it")
        classes = {entry.name: entry for entry in entries if entry.is_dir()}
    if not classes:
        raise OarlockError(f"{folder}: no class sub-folders; put the images of each class in {folder}/<class>/")
    return classes


def is_image(path: Path) -> bool:
    """Return whether a path is called like an image, and is a file or a link that leads nowhere."""
    return path.suffix.lower() in _SUFFIXES and (path.is_file() or not path.exists())


def size_of(path: Path) -> int:
    """Return the size in bytes."""
    with _reading(path):
        if not path.exists():
            raise OarlockError(f"{path}: {_missing(path)}; check the path")
        return path.stat().st_size


def _missing(path: Path) -> str:
    return "a link to something that does not exist" if path.is_symlink() else "no such file or folder"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Of what the operating system refuses, as permissions or a name too long, one sentence."""
    try:
        yield
    except OSError as problem:
        raise OarlockError(f"{problem.filename or path}: cannot be read ({problem.strerror})") from problem


def packed_files(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes | None]]:
    """Yield every file of a folder or archive by its name inside, no hidden ones, with the content of those wanted.

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
                    yield name, _bounded(file, f"{path}: {name}")
            else:
                yield name, None
    except NotImplementedError as problem:  # of zip files, about ways to compress
        raise OarlockError(f"{path}: cannot be read ({problem}); unpack it and pass the folder") from problem
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError) as problem:
        raise OarlockError(f"{path}: cannot be read to its end ({problem}); get it again") from problem


def _bounded(file: IO[bytes], name: str) -> bytes:
    """What is in a file, whatever size it is said to have."""
    content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OarlockError(f"{name}: is larger than {LARGEST >> 20} MB, which no image and no list of them is")
    return content


def _files(path: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file():
                yield file.relative_to(path).as_posix(), partial(_opened, file)
    elif not path.is_file():
        raise OarlockError(f"{path}: no such file or folder; check the path")
    elif tarfile.is_tarfile(path):  # first, for a tar that ends with a zip looks like that zip
        with tarfile.open(path) as tar:
            for member in tar:
                if member.isfile():
                    yield member.name, partial(_member, tar, member)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.flag_bits & _ENCRYPTED:
                    raise OarlockError(f"{path}: {entry.filename} is encrypted; unpack it and pass the folder")
                if not entry.is_dir():
                    yield entry.filename, partial(archive.open, entry)
    else:
        raise OarlockError(f"{path}: is neither a folder nor a readable .zip or .tar archive")


def _opened(file: Path) -> IO[bytes]:
    return open(file, "rb")


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None  # as for every regular file
    return content
