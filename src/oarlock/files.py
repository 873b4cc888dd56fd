"""Files written whole or not at all, tensors with a description that can be checked, and locks. No pickle."""

import fcntl
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from oarlock.errors import OarlockError
from oarlock.schema import from_json, integer, of_file, record, text, understood
from oarlock.upgrades import FORMAT, upgrade

_FILE = record({"kind": text(20), "format": integer(1)})


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that takes the place of `path` when the block ends well, and disappears when not.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("all of it")
    >>> target.read_text(), len(list(target.parent.iterdir()))
    ('all of it', 1)
    """
    if not _is_utf8(path):
        raise OarlockError(f"{str(path)!r} cannot be read back: choose a path whose name is valid UTF-8")
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        with suppress(FileNotFoundError):
            shutil.copymode(path, temporary)  # a private file stays private
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as problem:
        raise OarlockError(f"{path} cannot be written ({problem.strerror})") from problem
    finally:
        with suppress(OSError):
            temporary.unlink()


def _is_utf8(path: Path) -> bool:
    """Safetensors opens no others."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def remove_unfinished(path: Path) -> None:
    """Remove what a killed process left of writing a file; only while no other process writes it."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        unfinished.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise OarlockError(f"the directory {path} cannot be made ({problem.strerror})") from problem


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")  # any file name is a class name


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return from_json(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as problem:
        raise OarlockError(f"{path} cannot be read ({problem.strerror})") from problem
    except OarlockError as problem:
        raise OarlockError(f"{path} is damaged: {problem}") from problem


def write_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write one safetensors file whose metadata holds the description and a sha256 over it and the tensors."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    described = {**description, "kind": kind, "format": FORMAT}
    described["sha256"] = fingerprint(plain, json.dumps(described))
    # One key only: safetensors writes several in random order, and equal content should be equal bytes.
    with replacing(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(plain, {"oarlock": json.dumps(described)}))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `write_tensors` wrote; refuse a damaged, truncated or foreign file in one sentence."""
    if not path.is_file():
        raise OarlockError(f"there is no file {path}")
    try:
        with safetensors.safe_open(path, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    except (safetensors.SafetensorError, OSError, ValueError) as problem:
        raise OarlockError(f"{path} is not an Oarlock {kind} file, or it is damaged ({problem})") from problem
    if "oarlock" not in metadata:
        raise OarlockError(f"{path} holds tensors but was not written by Oarlock")
    try:
        description = from_json(metadata["oarlock"])
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
        if tensor.numel():
            digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
        lock = open(path, "w")  # noqa: SIM115 (closed below, after the file is gone)
    except OSError as problem:
        raise OarlockError(f"{path} cannot be written ({problem.strerror})") from problem
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who held the lock until now removes the file: a lock on what is no longer there keeps nobody out.
            held = os.path.samestat(os.fstat(lock.fileno()), os.stat(path))
        except (BlockingIOError, FileNotFoundError):
            held = False
        if not held:
            raise OarlockError(refusal)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def by_part(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return tensors by what their names begin with.

    >>> by_part({"a.x": torch.zeros(1), "a.y.z": torch.zeros(2), "b.x": torch.zeros(3)}).keys()
    dict_keys(['a', 'b'])
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = value
    return parts
