"""Teach a model file the classes of a folder, as its only writer and with checkpoints.

The old file stays in place until the new one is whole.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from oarlock import methods
from oarlock.checkpoints import Checkpoint, Checkpointing, read_checkpoint, write_checkpoint
from oarlock.checks import check_number
from oarlock.data.folders import class_folders, image_files
from oarlock.data.images import Label
from oarlock.errors import OarlockError
from oarlock.files import fingerprint, remove_unfinished
from oarlock.learner import Learner
from oarlock.lessons import Lesson
from oarlock.locks import locked
from oarlock.model.places import Places, places
from oarlock.model.settings import Settings
from oarlock.report.wording import printable
from oarlock.training import Position, Watcher

Notice = Callable[[str], None]


class Display(Watcher, Protocol):
    """Who is told how learning goes."""

    def on_start(self, tasks: int, finished: int) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What learning came to."""

    model: str
    task: int | None  # its number, from 1; None when there was nothing new
    classes: dict[Label, int]  # with the images of each
    skipped: list[str]  # known already
    resumed: bool
    calibration: dict[str, int]  # images kept out of training: of this task, of all
    free_capacity: list[float] | None
    wings: list[int] | None
    tasks: int
    classes_in_all: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def learn(
    model: Path,
    folder: Path,
    settings: Settings,
    display: Display,
    notice: Notice,
    *,
    only: Sequence[str] = (),
    strict: bool = False,
    fresh: bool = False,
) -> Outcome:
    """Create the model, or teach it the folder's new classes as its next task; what was interrupted goes on."""
    where = places(model)
    if where.model.is_dir():
        raise OarlockError(f"{model} is a folder: give the name of a model file, such as {model / 'model.oar'}")
    offered = _chosen(folder, only)
    if settings.threads is not None:
        check_number("threads", settings.threads, int, least=1)
        torch.set_num_threads(settings.threads)
    with locked(where.lock, f"another process is teaching {model}: wait until it has finished"):
        for path in (where.model, where.checkpoint):
            remove_unfinished(path)
        if fresh:
            where.checkpoint.unlink(missing_ok=True)
        learner = settings.open(where.model)
        known = set(learner.classes_.tolist())
        skipped = [name for name in offered if name in known]
        if skipped and strict:
            raise OarlockError(f"class {skipped[0]!r} was already learned, and --strict allows no such class")
        if skipped:
            notice(f"skipped, since they are known: {', '.join(map(printable, skipped))}")
        new = {name: image_files(path) for name, path in offered.items() if name not in known}
        if not new:
            return _outcome(model, learner, skipped)
        classes = len(known) + len(new)
        learner.check_memory(classes, f"give it room with --memory {classes} or more")
        images = [path for files in new.values() for path in files]
        lesson = learner.lesson(images, [name for name, files in new.items() for _ in files], when=datetime.now(UTC))
        return _Learning(where, learner, lesson, settings, notice).finish(model, skipped, display)


class _Learning:
    """A lesson under way."""

    def __init__(self, where: Places, learner: Learner, lesson: Lesson, settings: Settings, notice: Notice) -> None:
        self.where, self.learner, self.lesson = where, learner, lesson
        self.conditions = _conditions(where.model, learner, lesson, settings.device)
        self.position, self.optimiser_state = Position(lesson.task.index, 0, 0), None
        saved = self._usable(notice) if where.checkpoint.exists() else None
        self.resumed = saved is not None
        if saved is None:
            self.learner.begin(lesson)
            return
        notice("going on where learning was interrupted")
        self.learner = saved.learner(settings.weights, settings.device)
        self.lesson = lesson._replace(learned=saved.facts["learned"])
        self.position, self.optimiser_state = saved.position, saved.optimiser

    def _usable(self, notice: Notice) -> Checkpoint | None:
        try:
            saved = read_checkpoint(self.where.checkpoint)
            before = saved.facts["conditions"]
            changed = [name for name in before | self.conditions if before.get(name) != self.conditions.get(name)]
            problem = f"changed since: {', '.join(changed)}"
        except OarlockError as damage:
            changed, problem = ["file"], str(damage)
        if not changed:
            return saved
        notice(f"learning was interrupted here, but cannot go on ({problem}): starting afresh")
        return None

    def finish(self, model: Path, skipped: list[str], display: Display) -> Outcome:
        display.on_start(self.position.task + 1, self.position.task)
        self.learner.train(self.lesson, self.position, Checkpointing(display, self._save), self.optimiser_state)
        self.learner.save(self.where.model)
        with suppress(OSError):  # the model is there; the next call finds that it has changed since
            self.where.checkpoint.unlink(missing_ok=True)
        return _outcome(model, self.learner, skipped, self.lesson, self.resumed)

    def _save(self, position: Position, optimiser: Optimizer | None) -> None:
        facts = {"conditions": self.conditions, "learned": self.lesson.learned}
        write_checkpoint(self.where.checkpoint, self.learner, position, optimiser, facts)


def _chosen(folder: Path, only: Sequence[str]) -> dict[str, Path]:
    """The folders of the classes that were asked for; a name with a comma in it may stand alone."""
    there = class_folders(folder)
    if not only:
        return there
    names = [name for text in only for name in ([text] if text in there else text.split(","))]
    if missing := [name for name in names if name not in there]:
        raise OarlockError(f"{folder} has no class {missing[0]!r}; its classes: {', '.join(map(repr, there))}")
    return {name: path for name, path in there.items() if name in names}


def _conditions(path: Path, learner: Learner, lesson: Lesson, device: str) -> dict[str, Any]:
    """All that decides what learning comes to. What was interrupted goes on only under the same."""
    pixels = {
        "images": lesson.task.images,
        "labels": lesson.task.labels,
        "calibration": lesson.calibration,
        "calibration_labels": lesson.calibration_labels,
    }
    return {
        "model": hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None,
        "classes": lesson.classes,
        "images": fingerprint(pixels),
        "method": learner.method.name,
        "trunk": learner.trunk.sha256,
        "memory": learner.method.budget,
        "seed": learner.seed,
        **methods.describe_config(learner.method.config),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def _outcome(
    model: Path, learner: Learner, skipped: list[str], lesson: Lesson | None = None, resumed: bool = False
) -> Outcome:
    return Outcome(
        model=str(model),
        task=None if lesson is None else lesson.task.index + 1,
        classes={} if lesson is None else dict(zip(lesson.classes, lesson.images, strict=True)),
        skipped=skipped,
        resumed=resumed,
        calibration={
            "of_this_task": 0 if lesson is None else len(lesson.calibration),
            "of_all": len(learner.calibration),
        },
        free_capacity=learner.method.free_capacity(),
        wings=learner.method.wings(),
        tasks=len(learner.tasks_),
        classes_in_all=len(learner.classes_),
        bytes=model.stat().st_size,
    )
