"""What stands beside a model file: its lock, the checkpoint of a lesson, and the model as it was before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from oarlock.errors import OarlockError
from oarlock.files import copy_whole, sha256_of
from oarlock.locks import locked
from oarlock.schema import mapping, maybe, plain, record, text
from oarlock.session import read_checkpoint

FACTS = record({"conditions": mapping(plain), "learned": maybe(text(100))})  # that a checkpoint keeps


class ModelPaths(NamedTuple):
    """Hold where a model is, and what belongs to it.

    >>> model_paths(Path("/shop/animals.oar")).checkpoint.name, model_paths(Path("/shop/animals.oar")).previous.name
    ('.animals.oar.learning', 'animals.oar.previous')
    """

    model: Path
    lock: Path
    checkpoint: Path
    previous: Path


def model_paths(model: Path) -> ModelPaths:
    """Return a model's paths; a link to it stands for the file it leads to, which is to be locked and replaced."""
    real = Path(os.path.realpath(model))
    beside = real.parent
    return ModelPaths(
        real, beside / f".{real.name}.lock", beside / f".{real.name}.learning", beside / f"{real.name}.previous"
    )


@contextmanager
def only_writer(model: Path) -> Iterator[ModelPaths]:
    """Yield a model's paths, and keep others from changing it meanwhile."""
    where = model_paths(model)
    with locked(where.lock, f"another process is teaching {model}: wait until it has finished"):
        yield where


def keep_as_previous(where: ModelPaths, wanted: bool) -> None:
    """Keep the model as it is before it is replaced, if that is wanted or was before: there is one step back."""
    if not where.model.exists():
        where.previous.unlink(missing_ok=True)  # of another model, which had this name
    elif wanted or (where.previous.is_file() and not where.previous.is_symlink()):
        check_no_link(where.previous)
        copy_whole(where.model, where.previous)


def remove(path: Path) -> None:
    """Remove what stands beside a model, if it is there; say so where that cannot be done."""
    try:
        path.unlink(missing_ok=True)
    except OSError as problem:
        raise OarlockError(f"{path} cannot be removed ({problem.strerror}): remove it first") from problem


def check_no_link(path: Path) -> None:
    """Refuse to write to, or to take for ours, what somebody else made lead elsewhere."""
    if path.is_symlink():
        raise OarlockError(f"{path} is a link, which is not followed: remove it")


def begun_lesson(where: ModelPaths) -> bool:
    """Return whether learning was interrupted here and may go on: not if the model has changed since."""
    if not where.checkpoint.exists():
        return False
    try:
        conditions = FACTS(dict(read_checkpoint(where.checkpoint).kept.facts), "")["conditions"]
    except OarlockError:
        return False  # damaged, or of a newer version: nobody goes on with it
    return bool(conditions.get("model") == (sha256_of(where.model) if where.model.exists() else None))
