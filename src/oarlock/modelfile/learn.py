"""Teach a model file the classes of a folder, as its only writer and with checkpoints.

The old file stays in place until the new one is whole.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from oarlock.data.folders import GROUPINGS, class_folders, files_of
from oarlock.data.images import Label, broken_files
from oarlock.errors import OarlockError, all_together, check_number
from oarlock.files import fingerprint, sha256_of
from oarlock.learner import Learner, load
from oarlock.methods import configure, methods
from oarlock.modelfile.paths import FACTS, ModelPaths, begun_lesson, keep_as_previous, only_writer
from oarlock.nets.trunks import DEFAULT
from oarlock.options import describe, fill
from oarlock.session import Checkpoint, Kept, Session, read_checkpoint
from oarlock.tasks import PreparedTask
from oarlock.training import Callback


@dataclass(frozen=True)
class Settings:
    """Hold what a user may ask for; None is what the model has, or for a new model the default."""

    method: str | None = None
    trunk: str | None = None
    weights: str | None = None
    size: int | None = None
    memory: int | None = None
    epochs: int | None = None
    seed: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    threads: int | None = None

    def open(self, path: Path) -> Learner:
        """Return the model in a file, or a new one where there is none."""
        if not path.exists():
            return self._new()
        learner = load(path, weights=self.weights, device=self.device)
        if other := list(self._other_than(learner)):
            raise OarlockError(f"{path} exists and keeps its {', '.join(other)}: for others choose a new file")
        if self.memory is not None:
            learner.enlarge_memory(self.memory)
        if self.epochs is not None:
            learner.set_epochs(self.epochs)
        return learner

    def _other_than(self, learner: Learner) -> Iterator[str]:
        """Yield what a model has in place of what was asked for."""
        method, config = learner.method, learner.method.config
        trunk = learner.trunk
        has = {"method": method.name, "trunk": trunk.card.name, "size": trunk.size, "seed": learner.seed}
        wanted = {name: getattr(self, name) for name in has if getattr(self, name) is not None}
        for name, value in self.options.items():
            wanted[name] = getattr(fill(type(config), {name: value}, method.name), name)  # refuses what it has not
            has[name] = getattr(config, name)
        yield from (f"{name} {has[name]}" for name, value in wanted.items() if value != has[name])

    def _new(self) -> Learner:
        method, options = self.method or "oar", dict[str, Any](self.options)
        if self.epochs is not None:
            if "epochs" in options:
                raise OarlockError("epochs is given twice: use either --epochs or --set epochs=…")
            options["epochs"] = self.epochs
        configure(methods.find(method), options)  # before one of them is taken for an argument below
        chosen = {"memory": self.memory, "seed": self.seed}
        return Learner(
            method,
            trunk=self.trunk or DEFAULT,
            weights=self.weights,
            size=self.size,
            device=self.device,
            **{name: value for name, value in chosen.items() if value is not None},
            **options,
        )


Notice = Callable[[str], None]


class Display(Callback, Protocol):
    """Show how learning goes."""

    def on_start(self, tasks: int, finished: int) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """Hold what learning came to."""

    model: str
    task: int | None  # its number, from 1; None when there was nothing new
    classes: dict[Label, int]  # with the images of each
    skipped: list[str]  # known already
    resumed: bool
    copies: int  # images that show what another one shows
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
    group_by: str | None = None,
    strict: bool = False,
    more: bool = False,
    fresh: bool = False,
    keep_previous: bool = False,
) -> Outcome:
    """Create the model, or teach it the folder's new classes as its next task; what was interrupted goes on. With
    `more`, images of known classes are learned as well, under their labels. With `keep_previous` the model as it was
    stays beside the new one, for `undo`."""
    if group_by is not None and group_by not in GROUPINGS:
        raise OarlockError(f"--group-by {group_by}: choose one of {', '.join(GROUPINGS)}")
    if model.is_dir():
        raise OarlockError(f"{model} is a folder: give the name of a model file, such as {model / 'model.oar'}")
    if strict and more:
        raise OarlockError("--strict refuses known classes, and --more teaches them: choose one of the two")
    offered = _chosen(folder, only)
    if settings.threads is not None:
        check_number("threads", settings.threads, int, least=1)
        torch.set_num_threads(settings.threads)
    with only_writer(model) as where:
        if fresh:
            where.checkpoint.unlink(missing_ok=True)
        learner = settings.open(where.model)
        known = set(learner.classes_.tolist())
        skipped = [name for name in offered if name in known and not more]
        if skipped and strict:
            raise OarlockError(f"class {skipped[0]!r} was already learned, and --strict allows no such class")
        if skipped:
            notice(f"skipped, since they are known: {', '.join(skipped)}")
        new, problems = files_of({name: path for name, path in offered.items() if name not in skipped})
        if not new:
            return _nothing_new(model, where, learner, skipped)
        images = [path for files in new.values() for path in files]
        if problems:
            raise all_together([*problems, *broken_files(images, learner.trunk.rule)])
        classes = len(learner.columns) + len(new)
        learner.check_memory(classes, f"give it room with --memory {classes} or more")
        learner.choose_size(images)
        prepared = learner.prepare_task(
            images,
            [name for name, files in new.items() for _ in files],
            when=datetime.now(UTC),
            groups=None if group_by is None else _groups(new, offered, group_by),
            more=more,
        )
        if prepared.photos is not None and prepared.photos in [edit.photos for edit in learner.edits_]:
            notice("these very images were learned already")
            return _nothing_new(model, where, learner, skipped)
        conditions = _conditions(where.model, learner, prepared, settings.device)
        saved, learner = _usable(where.checkpoint, conditions, settings, notice) or (None, learner)
        if saved is not None:
            prepared = prepared._replace(learned=saved.kept.facts["learned"])
        kept = Kept({"conditions": conditions, "learned": prepared.learned})
        display.on_start(prepared.task.index + 1, prepared.task.index)
        Session(learner, where.checkpoint, saved, keep=lambda: kept, mode_of=where.model).learn(prepared, display)
        keep_as_previous(where, keep_previous)
        learner.save(where.model)
        with suppress(OSError):  # the model is there; the next call finds that it has changed since
            where.checkpoint.unlink(missing_ok=True)
        return _outcome(model, learner, skipped, prepared, resumed=saved is not None)


def _nothing_new(model: Path, where: ModelPaths, learner: Learner, skipped: list[str]) -> Outcome:
    if not begun_lesson(where):
        where.checkpoint.unlink(missing_ok=True)  # of a process that was killed at the very end
    return _outcome(model, learner, skipped)


def _groups(files: dict[str, tuple[Path, ...]], folders: dict[str, Path], by: str) -> list[tuple[str, str]]:
    """The group of every image; groups of two classes are two."""
    named = GROUPINGS[by]
    return [(name, named(path, folders[name])) for name, paths in files.items() for path in paths]


def _usable(
    file: Path, conditions: dict[str, Any], settings: Settings, notice: Notice
) -> tuple[Checkpoint, Learner] | None:
    """Return what was interrupted, if it can go on under these conditions."""
    if not file.exists():
        return None
    try:
        saved = read_checkpoint(file)
        before = FACTS(dict(saved.kept.facts), "")["conditions"]
        if changed := [name for name in before | conditions if before.get(name) != conditions.get(name)]:
            raise OarlockError(f"changed since: {', '.join(changed)}")
        learner = Learner.from_state(*saved.state, weights=settings.weights, device=settings.device)
    except OarlockError as problem:
        notice(f"learning was interrupted here, but cannot go on ({problem}): starting afresh")
        return None
    notice("going on where learning was interrupted")
    return saved, learner


def _chosen(folder: Path, only: Sequence[str]) -> dict[str, Path]:
    """The folders of the classes that were asked for; a name with a comma in it may stand alone."""
    there = class_folders(folder)
    if not only:
        return there
    names = [name for text in only for name in ([text] if text in there else text.split(","))]
    if missing := [name for name in names if name not in there]:
        raise OarlockError(f"{folder} has no class {missing[0]!r}; its classes: {', '.join(map(repr, there))}")
    return {name: path for name, path in there.items() if name in names}


def _conditions(path: Path, learner: Learner, prepared: PreparedTask, device: str) -> dict[str, Any]:
    """All that decides what learning comes to. What was interrupted goes on only under the same."""
    pixels = {
        "images": prepared.task.images,
        "labels": prepared.task.labels,
        "calibration": prepared.calibration,
        "calibration_labels": prepared.calibration_labels,
    }
    return {
        "model": sha256_of(path) if path.exists() else None,
        "classes": prepared.classes,
        "images": fingerprint(pixels),
        "method": learner.method.name,
        "trunk": learner.trunk.sha256,
        "memory": learner.method.budget,
        "seed": learner.seed,
        **describe(learner.method.config),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def _outcome(
    model: Path, learner: Learner, skipped: list[str], prepared: PreparedTask | None = None, resumed: bool = False
) -> Outcome:
    capacity = learner.method.capacity()
    return Outcome(
        model=str(model),
        task=None if prepared is None else prepared.task.index + 1,
        classes={} if prepared is None else dict(zip(prepared.classes, prepared.images, strict=True)),
        skipped=skipped,
        resumed=resumed,
        copies=0 if prepared is None else prepared.copies,
        calibration={
            "of_this_task": 0 if prepared is None else len(prepared.calibration),
            "of_all": len(learner.calibration),
        },
        free_capacity=None if capacity is None else capacity.free,
        wings=None if capacity is None else capacity.wings,
        tasks=len(learner.tasks_),
        classes_in_all=len(learner.classes_),
        bytes=model.stat().st_size,
    )
