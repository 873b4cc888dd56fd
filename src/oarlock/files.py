"""Files and folders that are written whole or not at all, tensors with a description that can be checked, and JSON.
No pickle."""

import errno
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from oarlock.errors import OarlockError
from oarlock.layout import plain_bytes, read_data, read_header, write_data
from oarlock.schema import from_json, integer, of_file, record, text, understood
from oarlock.unfinished import unfinished_file, unfinished_folder
from oarlock.upgrades import FORMAT, upgrade

LARGEST_JSON = 2**26  # bytes
_FILE = record({"kind": text(20), "format": integer(1)})


@contextmanager
def replacing(path: Path, mode_of: Path | None = None) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of `path` when the block ends well, and disappears when not.

    Nobody may read it meanwhile who may not read what it replaces, or `mode_of` in place of that. A link stays, and
    what it leads to is replaced. A device, a pipe, or what this process prints to is written to as it is.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(target) as file:
    ...     _ = file.write(b"all of it")
    >>> target.read_text(), len(list(target.parent.iterdir()))
    ('all of it', 1)
    """
    if not _is_utf8(path):
        raise OarlockError(f"{str(path)!r} cannot be read back: choose a path whose name is valid UTF-8")
    with _telling_what_was_not_written(path):
        stream = _stream(path)
        if stream is not None:
            with stream:
                yield stream
            return
        real = Path(os.path.realpath(path))
        with unfinished_file(real, _mode(mode_of or real)) as (file, temporary):
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, real)
    _make_durable(real.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that is called `path` when the block ends well, and disappears when not; until then
    nobody else may look into it. An empty folder may be in its place."""
    real = Path(os.path.realpath(path))  # a link stays a link
    make_directory(real.parent)
    with _telling_what_was_not_written(path), unfinished_folder(real) as temporary:
        mode = _mode(temporary)
        temporary.chmod(stat.S_IRWXU)
        yield temporary
        _sync_all(temporary)
        temporary.chmod(mode or 0)
        os.replace(temporary, real)
    _make_durable(real.parent)


def _stream(path: Path) -> IO[bytes] | None:
    """What stands for something else than a file, opened; a new file could not take its place."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    for printing, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        with suppress(OSError):
            if os.path.samestat(found, os.fstat(descriptor)):
                printing.flush()
                return open(os.dup(descriptor), "wb")
    if stat.S_ISREG(found.st_mode):
        return None
    if stat.S_ISDIR(found.st_mode):
        raise OarlockError(f"{path} is a folder: give the name of a file")
    return open(os.open(path, os.O_WRONLY | os.O_NOCTTY), "wb")


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


@contextmanager
def _telling_what_was_not_written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise OarlockError(f"{path} cannot be written ({problem.strerror or problem})") from problem


def _make_durable(folder: Path) -> None:
    """What was put into a folder is there for everybody; that it survives a power cut takes this."""
    try:
        _sync(folder)
    except OSError as problem:
        warnings.warn(
            f"what was written to {folder} is there, but a power cut may undo it: "
            f"the folder cannot be synchronised with the disk ({problem.strerror})",
            stacklevel=2,
        )


def _sync_all(folder: Path) -> None:
    for where, _, names in os.walk(folder):
        for name in names:
            _sync(Path(where, name))
        _make_durable(Path(where))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_utf8(path: Path) -> bool:
    """Other programs that read safetensors open no others."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def copy_whole(path: Path, copy: Path) -> None:
    """Copy a file, whole or not at all, as private as it is."""
    with open(path, "rb") as source, replacing(copy, mode_of=path) as file:
        shutil.copyfileobj(source, file)


def put_in_place(path: Path, place: Path) -> None:
    """Have a file take the place of another one, in one step and as private as that."""
    with _telling_what_was_not_written(place):
        mode = _mode(place)
        if mode is not None:
            path.chmod(mode)
        os.replace(path, place)
    _make_durable(place.parent)


def make_directory(path: Path) -> None:
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise OarlockError(f"the directory {path} cannot be made ({problem.strerror})") from problem
    for folder in missing:
        _make_durable(folder.parent)


def open_own(path: Path, flags: int) -> int:
    """Open a file that we keep beside others, made if need be: a link that somebody put there is not followed."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise OSError(problem.errno, "it is a link, which is not followed: remove it") from problem
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file: remove it")
    return descriptor


def append_line(path: Path, line: str) -> None:
    with _telling_what_was_not_written(path), open(open_own(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
        file.write(f"{line}\n".encode())


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode(errors="surrogateescape"))  # any file name is a class name


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        with _opened(path) as file:
            content = file.read(LARGEST_JSON + 1)
    except OSError as problem:
        raise OarlockError(f"{path} cannot be read ({problem.strerror})") from problem
    if len(content) > LARGEST_JSON:
        raise OarlockError(f"{path} is damaged: it is larger than anything that Oarlock writes there")
    try:
        return from_json(content.decode(errors="surrogateescape"))
    except OarlockError as problem:
        raise OarlockError(f"{path} is damaged: {problem}") from problem


def _opened(path: Path) -> IO[bytes]:
    """A file for reading; what would have to be waited for, as a pipe, is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "it is no file")
    return open(descriptor, "rb")


def write_tensors(
    path: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    description: Mapping[str, Any],
    mode_of: Path | None = None,
) -> None:
    """Write one safetensors file whose metadata holds the description and a sha256 over it and the tensors."""
    if path.exists() and not path.is_file():
        raise OarlockError(f"{path} is no file: choose another name for the {kind}")
    with replacing(path, mode_of) as file:
        _write(file, kind, tensors, description)


def to_bytes(kind: str, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> bytes:
    """Return what `write_tensors` would write.

    >>> import torch
    >>> tensors, description = from_bytes(to_bytes("model", {"a": torch.ones(2)}, {"is": "new"}), "model")
    >>> tensors["a"].tolist(), description["is"]
    ([1.0, 1.0], 'new')
    """
    file = io.BytesIO()
    _write(file, kind, tensors, description)
    return file.getvalue()


def _write(file: IO[bytes], kind: str, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    described = {**description, "kind": kind, "format": FORMAT}
    described["sha256"] = fingerprint(plain, json.dumps(described))
    write_data(file, plain, {"oarlock": json.dumps(described)})


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `write_tensors` wrote; refuse a damaged, truncated or foreign file in one sentence."""
    try:
        with _opened(path) as file:
            return _read(file, path, kind)
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise OarlockError(f"there is no file {path}") from problem
    except OSError as problem:
        raise OarlockError(f"{path} cannot be read ({problem.strerror})") from problem


def from_bytes(content: bytes, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `to_bytes` was given; refuse whatever `read_tensors` would."""
    return _read(io.BytesIO(content), "what was handed over", kind)


def _read(file: IO[bytes], path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a file holds that is called `path` in what is said of it."""
    try:
        header = read_header(file)
        tensors = read_data(file, header)
    except ValueError as problem:
        raise OarlockError(f"{path} is not an Oarlock {kind} file, or it is damaged ({problem})") from problem
    if "oarlock" not in header.metadata:
        raise OarlockError(f"{path} holds tensors but was not written by Oarlock")
    try:
        description = from_json(header.metadata["oarlock"])
        written = description.pop("sha256")
        intact = fingerprint(tensors, json.dumps(description)) == written
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise OarlockError(f"{path} is damaged: its content does not match the checksum it was written with")
    with of_file(path):
        _FILE(description, "")
    if description["format"] > FORMAT:
        raise OarlockError(f"{path} was written by a newer Oarlock; please upgrade")
    if description["kind"] != kind:
        raise OarlockError(f"{path} is an Oarlock {description['kind']} file, not a {kind} file")
    if description["format"] < FORMAT:
        with of_file(path), understood("what an earlier version wrote"):
            tensors = upgrade(kind, tensors, description)
    return tensors, description


def fingerprint(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Return the sha256 over names, types, shapes and bytes of the tensors, and a text."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(plain_bytes(tensor))
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def by_part(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return tensors by what their names begin with.

    >>> import torch
    >>> by_part({"a.x": torch.zeros(1), "a.y.z": torch.zeros(2), "b.x": torch.zeros(3)}).keys()
    dict_keys(['a', 'b'])
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = value
    return parts
