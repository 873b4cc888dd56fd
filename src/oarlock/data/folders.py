"""Which image files there are in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oarlock.errors import OarlockError

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"}


def image_files(where: Path) -> tuple[Path, ...]:
    """Every image file below a folder, sorted by path, hidden files left out; a file stands for itself.

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
    """The image files of each class of a folder."""
    return {name: image_files(where) for name, where in class_folders(folder).items()}


def class_folders(folder: Path) -> dict[str, Path]:
    """The sub-folders of a folder, or links to folders; each is a class, its name the class name."""
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
    """Called like an image, and a file or a link that leads nowhere."""
    return path.suffix.lower() in _SUFFIXES and (path.is_file() or not path.exists())


def size_of(path: Path) -> int:
    """In bytes."""
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
