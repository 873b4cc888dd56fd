"""Corrections to what a learner has learned."""

from typing import TYPE_CHECKING

import torch

from oarlock.data.images import Label
from oarlock.edits import Edit, without_name
from oarlock.errors import OarlockError
from oarlock.tasks import LABEL, FinishedTask, Promise
from oarlock.training import Callback, Position, TaskData, run_phases

if TYPE_CHECKING:
    from oarlock.learner import Learner

Corrected = tuple[list[FinishedTask], list[Edit]]


def rename(learner: "Learner", old: Label, new: Label, when: str | None) -> Corrected:
    """Return tasks and notes in which a class has another name, that no class has."""
    old = learned(learner, old)
    LABEL(new, "the new name")
    if type(new) is not type(old):
        raise OarlockError(f"label {new!r} is of another kind than the labels learned before, such as {old!r}")
    if new in learner.classes_.tolist():
        raise OarlockError(f"there is a class {new!r} already: to make one class of both, merge them")
    return _called(learner, old, new), [*learner.edits_, Edit("rename", [old, new], len(learner.history_), when)]


def merge(learner: "Learner", kept: Label, other: Label, when: str | None) -> Corrected:
    """Return tasks and notes in which two classes have the name of the first. Inside both stay what they were."""
    kept, other = learned(learner, kept), learned(learner, other)
    if kept == other:
        raise OarlockError(f"{kept!r} and {other!r} are one class already: name two")
    return _called(learner, other, kept), [*learner.edits_, Edit("merge", [kept, other], len(learner.history_), when)]


def forget(learner: "Learner", label: Label, when: str | None, callback: Callback) -> None:
    """Take a class out of a learner, which is half changed where this ends badly."""
    label = learned(learner, label)
    if len(learner.classes_) == 1:
        raise OarlockError(f"{label!r} is all that the model knows: remove its file")
    tasks, nothing = learner.history_, (learner.trunk.blank(0), torch.zeros(0, dtype=torch.long))
    before = TaskData(len(tasks), *nothing, 0, learner.seed)
    edits = [*without_name(learner.edits_, label), Edit("forget", [], len(tasks), when)]
    for column in reversed(learner.columns.of[label]):
        row = learner.method.forget(column, before.generator("forget", column))
        learner.calibration.forget(column, row)
        tasks = _without_column(tasks, column)
    learner.take(tasks, edits)
    again = TaskData(len(tasks) - 1, *nothing, 0, learner.seed)
    run_phases(learner.method.tune_again(again), again, callback, Position(again.index, 0, 0))
    learner.take([_promised_anew(learner, k, task) for k, task in enumerate(tasks)], edits)
    learner.score_known()


def _without_column(tasks: list[FinishedTask], column: int) -> list[FinishedTask]:
    """Tasks without one of their classes; of the task that has lost it, what was promised is gone as well."""
    left = []
    for task in tasks:
        if 0 <= column < len(task.classes):
            classes, images = list(task.classes), list(task.images)
            del classes[column], images[column]
            left += [task._replace(classes=classes, images=images, promise=None)] if classes else []
        else:
            left.append(task)
        column -= len(task.classes)
    return left


def _promised_anew(learner: "Learner", index: int, task: FinishedTask) -> FinishedTask:
    """A task that lost a class promises from now on what it says of images that are left of the others; all images
    that were asked about until now are gone, for which of them showed the class nobody knows."""
    if task.promise is not None:
        return task
    own = learner.method.class_slice(index)
    for kept in (learner.calibration, learner.method.memory):
        images = kept.images[(kept.labels >= own.start) & (kept.labels < own.stop)].cpu()
        if len(images):
            return task._replace(promise=Promise.about(images, learner.method, index))
    return task


def learned(learner: "Learner", label: Label) -> Label:
    """Return a class as it was learned; refuse one that never was."""
    known: list[Label] = learner.classes_.tolist()
    if label not in known:
        raise OarlockError(f"the model has no class {label!r}; its classes: {', '.join(map(repr, known))}"[:1000])
    return known[known.index(label)]


def _called(learner: "Learner", old: Label, new: Label) -> list[FinishedTask]:
    def named(task: FinishedTask) -> list[Label]:
        return [new if label == old else label for label in task.classes]

    return [task._replace(classes=named(task)) for task in learner.history_]
