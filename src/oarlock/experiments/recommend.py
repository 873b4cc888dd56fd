"""Which trunk, method and detector suit somebody's own photographs: a few minutes of validation on a folder.

Some classes are left out, to be the unknown ones; of every other a share of the photos is held out. What remains is
learned task by task by one candidate after the other, until the time is over. Nothing else is looked at: a folder of
test images stays what it is.
"""

import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from oarlock.data.folders import files_by_class
from oarlock.data.images import Label, prepare_in_chunks
from oarlock.data.pictures import Preprocessing
from oarlock.data.sources import is_split
from oarlock.errors import OarlockError
from oarlock.experiments.detection import Detection, detect
from oarlock.learner import Learner
from oarlock.methods import methods
from oarlock.methods._options import TrainConfig
from oarlock.nets.trunks import families, list_trunks, load_trunk
from oarlock.training import Callback, NoCallback

HELD_OUT = 0.25  # of the photos of a class that is learned
LEFT_OUT = 0.2  # of the classes
MOST_CLASSES, MOST_PHOTOS = 25, 40  # of the folder, and of each class: what a few minutes are enough for
TASK = 5  # classes
LEAST_PHOTOS, LEAST_CLASSES = 4, 3
ACCEPT = 0.95
FIRST = "oar"  # what a learner is if nothing is said
SMALL = Preprocessing(size=16, resize=16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # to see what can be read


class Photos(NamedTuple):
    """Hold image files and their classes."""

    files: list[Path]
    labels: list[Label]


class Candidate(NamedTuple):
    """Name what is tried."""

    trunk: str
    method: str


class Trial(NamedTuple):
    """Hold what came of a candidate on photos that it never saw."""

    candidate: Candidate
    accuracy: float  # share of right answers to held-out photos
    auroc: float | None  # against the classes left out, of the best detector; None: none could be left out
    detector: str
    seconds: float  # for learning everything
    milliseconds: float  # for an answer

    def command(self, folder: Path) -> list[str]:
        """Return the command line that makes a model so."""
        trunk, method = self.candidate
        chosen = [] if self.detector == "own" else ["--detector", self.detector]
        return [
            "oarlock",
            "learn",
            "model.oar",
            str(photos_of(folder)),
            "--trunk",
            trunk,
            "--method",
            method,
            *chosen,
        ]

    def to_json(self, folder: Path) -> dict[str, Any]:
        figures = {name: value for name, value in self._asdict().items() if name != "candidate"}
        rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
        return {**self.candidate._asdict(), **rounded, "command": self.command(folder)}


def candidates(trunks: Sequence[str] | None = None, names: Sequence[str] | None = None) -> list[Candidate]:
    """Return pairs of a trunk, if none is named of those at hand, and a method: the likeliest of both first."""
    for trunk in trunks or ():
        if not any(family.accepts(trunk) for family in families.all().values()):
            load_trunk(trunk)  # which says what there is
    for name in names or ():
        methods.find(name)
    trunks = trunks or [one.trunk for one in list_trunks() if one.get in ("installed", "bundled")]
    pairs = [
        (row + column, Candidate(trunk, method))
        for row, trunk in enumerate(trunks)
        for column, method in enumerate(names or suggested())
    ]
    return [candidate for _, candidate in sorted(pairs, key=lambda pair: pair[0])]


def suggested() -> list[str]:
    """Return methods to try, the likeliest first, for time may be short: the default, then those that train nothing,
    which take seconds, then others that do well on photographs.

    >>> suggested()[0], "slda" in suggested(), "joint" in suggested()
    ('oar', True, False)
    """
    known = methods.all()
    swift = [name for name, method in known.items() if not issubclass(method.Config, TrainConfig)]
    return list(dict.fromkeys([FIRST, *swift, *(name for name, method in known.items() if method.suggested)]))


class Split(NamedTuple):
    """Hold a folder's photos as they are used."""

    tasks: list[Photos]
    held_out: Photos
    left_out: list[Path]

    @classmethod
    def of(cls, folder: Path, seed: int = 0) -> "Split":
        """Divide a folder of class folders, the same way for every candidate; of one that is split into train and
        test, only the former is looked at."""
        chance = random.Random(seed)
        files = {
            name: list(paths)
            for name, paths in files_by_class(photos_of(folder)).items()
            if len(paths) >= LEAST_PHOTOS
        }
        if len(files) < 2:
            needed = f"two classes of at least {LEAST_PHOTOS} images are needed to compare anything"
            raise OarlockError(f"{folder}: {needed}; there {'is one' if files else 'are none'}")
        names = chance.sample(sorted(files), min(len(files), MOST_CLASSES))
        left = round(LEFT_OUT * len(names)) if len(names) > LEAST_CLASSES else 0
        learned, tasks, held_out = names[left:], list[Photos](), Photos([], [])
        for some in np.array_split(np.array(learned, dtype=object), math.ceil(len(learned) / TASK)):
            task = Photos([], [])
            for name in some:
                drawn = chance.sample(files[name], min(len(files[name]), MOST_PHOTOS))
                kept = max(1, round(HELD_OUT * len(drawn)))
                for side, part in ((held_out, drawn[:kept]), (task, drawn[kept:])):
                    side.files.extend(part)
                    side.labels.extend([name] * len(part))
            tasks.append(task)
        return cls(tasks, held_out, [path for name in names[:left] for path in files[name][:MOST_PHOTOS]])

    def check(self) -> None:
        """Refuse photos that cannot be read, which no candidate could."""
        files = [path for photos in (*self.tasks, self.held_out) for path in photos.files] + self.left_out
        for _ in prepare_in_chunks(files, SMALL, 64):
            pass


def recommend(
    split: Split,
    candidates: Sequence[Candidate],
    seconds: float,
    on_trial: Callable[[Candidate, int], Callback | None] = lambda candidate, number: None,
) -> Iterator[Trial]:
    """Yield what comes of the candidates in their order, as long as there is time: the first always, another while it
    is not later than `seconds`."""
    started = time.monotonic()
    problem, tried = None, 0
    for number, candidate in enumerate(candidates):
        if tried and time.monotonic() - started > seconds:
            return
        try:
            trial = _try(split, candidate, on_trial(candidate, number) or NoCallback())
        except OarlockError as found:
            split.check()
            said = " ".join(str(found).splitlines())  # others may do
            warnings.warn(f"{candidate.method} on {candidate.trunk}: {said}", stacklevel=2)
            problem = problem or found
            continue
        tried += 1
        yield trial
    if problem and not tried:
        raise problem


def photos_of(folder: Path) -> Path:
    """Return where the photos to learn from are."""
    return folder / "train" if folder.is_dir() and is_split(folder) else folder


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return the best first: by right answers and, where these are as many, by unknown photos told."""
    return sorted(trials, key=lambda one: (-one.accuracy, -(one.auroc or 0), one.seconds))


def _try(split: Split, candidate: Candidate, callback: Callback) -> Trial:
    learner = Learner(candidate.method, trunk=candidate.trunk)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few images, which the user knows
        for paths, labels in split.tasks:
            learner.learn(paths, labels, callback=callback)
    learned = time.perf_counter() - started
    learner.accelerate()
    started = time.perf_counter()
    right = learner.score(*split.held_out)
    answered = (time.perf_counter() - started) / len(split.held_out.files)
    best = _best_detector(learner, split) if split.left_out else None
    auroc, name = (None, "own") if best is None else (best.auroc, best.detector)
    return Trial(candidate, right, auroc, name, learned, 1000 * answered)


def _best_detector(learner: Learner, split: Split) -> Detection:
    """The method's own, unless another is clearly better: of fifteen, one is always luckier."""
    method, rule = learner.method, learner.trunk.rule
    sets = method.feature_sets(len(learner.tasks_))

    def encode(paths: list[Path]) -> Tensor:
        return torch.cat([method.encode(chunk, sets) for chunk in prepare_in_chunks(paths, rule, 64)])

    found = detect(learner, encode(split.held_out.files), encode(split.left_out), ACCEPT)
    own = next(one for one in found if one.detector == "own")
    return found[0] if found[0].auroc > own.auroc + 0.02 else own
