"""Corrections to what a learner has learned."""

from typing import TYPE_CHECKING

from oarlock.data.images import Label
from oarlock.edits import Edit
from oarlock.errors import OarlockError
from oarlock.tasks import LABEL, FinishedTask

if TYPE_CHECKING:
    from oarlock.learner import Learner

Corrected = tuple[list[FinishedTask], list[Edit]]


def rename(learner: "Learner", old: Label, new: Label, when: str | None) -> Corrected:
    """Return tasks and notes in which a class has another name, that no class has."""
    check_known(learner, old)
    LABEL(new, "the new name")
    if type(new) is not type(old):
        raise OarlockError(f"label {new!r} is of another kind than the labels learned before, such as {old!r}")
    if new in learner.classes_.tolist():
        raise OarlockError(f"there is a class {new!r} already: to make one class of both, merge them")
    return _called(learner, old, new), [*learner.edits_, Edit("rename", [old, new], len(learner.history_), when)]


def check_known(learner: "Learner", label: Label) -> None:
    """Refuse a class that was never learned."""
    if label not in (known := learner.classes_.tolist()):
        raise OarlockError(f"the model has no class {label!r}; its classes: {', '.join(map(repr, known))}"[:1000])


def _called(learner: "Learner", old: Label, new: Label) -> list[FinishedTask]:
    def named(task: FinishedTask) -> list[Label]:
        return [new if label == old else label for label in task.classes]

    return [task._replace(classes=named(task)) for task in learner.history_]
