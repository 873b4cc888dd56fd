"""Corrections to a model file, and the way back from the last one. Each is made whole or not at all, by one process
at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oarlock.data.images import Label
from oarlock.errors import OarlockError
from oarlock.files import put_in_place, sha256_of
from oarlock.learner import Learner, load
from oarlock.loading import read_model
from oarlock.modelfile.paths import ModelPaths, begun_lesson, check_no_link, keep_as_previous, only_writer, remove


@dataclass(frozen=True)
class Corrected:
    """Hold what a correction came to."""

    model: str
    edit: str  # rename, merge, forget, undo
    labels: list[Label]
    tasks: int
    classes_in_all: int
    bytes: int
    previous: str | None  # where the model as it was before is kept

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rename(
    model: Path, old: Label, new: Label, *, weights: str | None = None, keep_previous: bool = False
) -> Corrected:
    """Call a class of a model by another name."""

    def change(learner: Learner) -> list[Label]:
        labels = [as_learned(learner, old), as_learned(learner, new)]
        learner.rename(*labels, when=datetime.now(UTC))
        return labels

    return _corrected(model, "rename", change, weights, keep_previous)


def merge(
    model: Path, kept: Label, other: Label, *, weights: str | None = None, keep_previous: bool = False
) -> Corrected:
    """Make one class of two, which has the name of the first."""

    def change(learner: Learner) -> list[Label]:
        labels = [as_learned(learner, kept), as_learned(learner, other)]
        learner.merge(*labels, when=datetime.now(UTC))
        return labels

    return _corrected(model, "merge", change, weights, keep_previous)


def forget(
    model: Path, label: Label, *, weights: str | None = None, device: str = "cpu", keep_previous: bool = False
) -> Corrected:
    """Take a class out of a model. Unless it is asked for, nothing stays beside the model that has the class: neither
    the model as it was before, kept now or earlier, nor what was half learned from it."""
    with _existing(model) as where:
        learner = load(where.model, weights=weights, device=device)
        label = as_learned(learner, label)
        learner.forget(label, when=datetime.now(UTC))
        remove(where.checkpoint)
        if keep_previous:
            keep_as_previous(where, True)
        else:
            remove(where.previous)
        learner.save(where.model)
        return _outcome(model, where, "forget", [label], learner)


def undo(model: Path) -> Corrected:
    """Put a model back to what it was before the last lesson or correction, if that was kept; that is the only step
    back that there is."""
    with _existing(model) as where:
        _check_no_lesson(model, where)
        check_no_link(where.previous)
        if not where.previous.exists():
            raise OarlockError(f"{model} was not kept as it was before: to have a way back, give --keep-previous")
        if sha256_of(where.previous) == sha256_of(where.model):  # what followed was interrupted
            raise OarlockError(f"{model} is as it was before: there is nothing to undo")
        _, description = read_model(where.previous)
        put_in_place(where.previous, where.model)
        labels = [label for task in description["tasks"] for label in task["classes"]]
        return Corrected(
            model=str(model),
            edit="undo",
            labels=[],
            tasks=len(description["tasks"]),
            classes_in_all=len(set(labels)),
            bytes=where.model.stat().st_size,
            previous=None,
        )


def as_learned(learner: Learner, label: Label) -> Label:
    """Return a label of the kind that a learner was taught: a command line has text only."""
    numbers = isinstance(learner.classes_[0].item(), int)
    if numbers and isinstance(label, str):
        try:
            return int(label)
        except ValueError:
            raise OarlockError(f"the classes of this model are numbers, and {label!r} is none") from None
    return label


@contextmanager
def _existing(model: Path) -> Iterator[ModelPaths]:
    if not model.is_file():
        raise OarlockError(f"there is no file {model}")
    with only_writer(model) as where:
        yield where


def _corrected(
    model: Path, edit: str, change: Callable[[Learner], list[Label]], weights: str | None, keep_previous: bool
) -> Corrected:
    """Read a model, change it, and write it."""
    with _existing(model) as where:
        learner = load(where.model, weights=weights)
        _check_no_lesson(model, where)
        labels = change(learner)
        keep_as_previous(where, keep_previous)
        learner.save(where.model)
        return _outcome(model, where, edit, labels, learner)


def _check_no_lesson(model: Path, where: ModelPaths) -> None:
    """What was half learned goes on from the model as it is, so that is not changed under it."""
    if begun_lesson(where):
        raise OarlockError(f"learning was interrupted on {model}: let it go on first, or remove {where.checkpoint}")
    remove(where.checkpoint)


def _outcome(model: Path, where: ModelPaths, edit: str, labels: list[Label], learner: Learner) -> Corrected:
    beside = where.model.parent if model.is_symlink() else model.parent
    return Corrected(
        model=str(model),
        edit=edit,
        labels=labels,
        tasks=len(learner.history_),
        classes_in_all=len(learner.classes_),
        bytes=where.model.stat().st_size,
        previous=str(beside / where.previous.name) if where.previous.exists() else None,
    )
