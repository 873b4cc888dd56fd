"""Which files there are in folders and archives."""

import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import IO

from oarlock.errors import OarlockError, all_together

LARGEST = 2**26  # bytes of a file in an archive; images and lists of them are far smaller
_ENCRYPTED = 1  # a bit of a zip's flags
_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"}


def image_files(where: Path) -> tuple[Path, ...]:
    """Return every image file below a folder, sorted by path, hidden files left out; a file stands for itself.

    A link to a file is that file, a link that leads nowhere is found too (and named when it is read), and a link to a
    folder is not followed below `where`, so that none can lead round in a circle.
    """
    files, problems = find_images(where)
    if problems:
        raise all_together(problems)
    return files


def find_images(where: Path) -> tuple[tuple[Path, ...], list[OarlockError]]:
    """Return the image files as `image_files` does, and what could not be looked into or has none."""
    problems: list[OarlockError] = []
    files: list[Path] = []
    try:
        with _reading(where):
            if where.is_file():
                return (where,), []
            if not where.is_dir():
                raise OarlockError(f"{where}: {_missing(where)}; check the path")
        files = sorted(_images_below(where, problems), key=Path.as_posix)
        if not files and not problems:
            raise OarlockError(f"{where}: no images in this folder; accepted are {', '.join(sorted(_SUFFIXES))}")
    except OarlockError as problem:
        problems.append(problem)
    return tuple(files), problems


def _images_below(folder: Path, problems: list[OarlockError]) -> Iterator[Path]:
    try:
        with _reading(folder):
            entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
            images = [entry for entry in entries if is_image(entry)]
            folders = [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
    except OarlockError as problem:
        problems.append(problem)
        return
    yield from images
    for inside in sorted(folders):
        yield from _images_below(inside, problems)


def files_by_class(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the image files of each class of a folder."""
    files, problems = files_of(class_folders(folder))
    if problems:
        raise all_together(problems)
    return files


def files_of(classes: dict[str, Path]) -> tuple[dict[str, tuple[Path, ...]], list[OarlockError]]:
    """Return the image files of each class, given by its folder, and all that is wrong with these folders."""
    found = {name: find_images(where) for name, where in classes.items()}
    return {name: files for name, (files, _) in found.items()}, [
        mistake for _, some in found.values() for mistake in some
    ]


def class_folders(folder: Path) -> dict[str, Path]:
    """Return the sub-folders of a folder, or links to folders; each is a class, its name the class name."""
    with _reading(folder):
        if not folder.is_dir():
            raise OarlockError(f"{folder}: not a folder; pass a folder with one sub-folder per class")
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
        if loose := [entry for entry in entries if is_image(entry)]:
            way_out = f"this image has no class; move it into a class sub-folder of {folder}"
            raise all_together([OarlockError(f"{entry}: {way_out}") for entry in loose])
        if lost := [entry for entry in entries if entry.is_symlink() and not entry.exists()]:
            raise all_together([OarlockError(f"{entry}: {_missing(entry)}; repair or remove it") for entry in lost])
        classes = {entry.name: entry for entry in entries if entry.is_dir()}
    if not classes:
        raise OarlockError(f"{folder}: no class sub-folders; put the images of each class in {folder}/<class>/")
    return classes


def group_by_folder(path: Path, class_folder: Path) -> str:
    """Return the sub-folder of its class folder that an image lies in; one that lies in none is a group by itself.

    >>> group_by_folder(Path("shop/apple/burst 3/a.jpg"), Path("shop/apple"))
    'burst 3'
    """
    inside = path.relative_to(class_folder)
    return inside.name if inside.parent == Path() else inside.parent.as_posix()


def group_by_prefix(path: Path, class_folder: Path) -> str:
    """Return an image's name up to the last `_`, `-` or space in it; one without any is a group by itself.

    >>> group_by_prefix(Path("apple/scene_12-003.jpg"), Path("apple")), group_by_prefix(Path("a/IMG.png"), Path("a"))
    ('scene_12', 'IMG.png')
    """
    found = re.fullmatch(r"(.+)[_\- ].*", path.stem, re.DOTALL)
    return found[1] if found else path.name


GROUPINGS = {"folder": group_by_folder, "prefix": group_by_prefix}


def is_image(path: Path) -> bool:
    """Return whether a path is called like an image, and is a file or a link that leads nowhere."""
    return is_image_name(path) and (path.is_file() or not path.exists())


def is_image_name(path: PurePath) -> bool:
    """Return whether a path ends as images do."""
    return path.suffix.lower() in _SUFFIXES


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
