"""From paths to answers, a batch of images at a time."""

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from oarlock.data.folders import find_images as images_of
from oarlock.data.images import AnyPath, Found, Label, read_files
from oarlock.errors import OarlockError
from oarlock.learner import Learner
from oarlock.prediction import Prediction

Complain = Callable[[OarlockError], None]  # what is done about a path that cannot be used; the others go on


COLUMNS = ("path", "label", "unknown", "probability", "task", "score")


class Answer(NamedTuple):
    """Hold what a model says about one image."""

    path: Path | str
    label: Label | None  # None: unknown
    probability: float  # of the likeliest class, accepted or not
    task: int  # which that class belongs to, from 1
    score: float  # how much the image looks like something learned
    top: list[tuple[Label, float]]  # the likeliest classes with their probabilities

    def to_json(self, top: int) -> dict[str, Any]:
        """Return what programs are told, with so many of the likeliest classes."""
        values = (str(self.path), self.label, self.label is None, self.probability, self.task, self.score)
        content: dict[str, Any] = dict(zip(COLUMNS, values, strict=True))
        if top:
            content["top"] = [{"label": label, "probability": value} for label, value in self.top[:top]]
        return content


class Batch(NamedTuple):
    """Hold some images as the trunk sees them, uint8 [N, size, size, 3], and the answers to them."""

    pictures: np.ndarray
    answers: list[Answer]


def find_images(texts: Iterable[str], complain: Complain) -> Iterator[Path]:
    """Yield the image files that files, folders and glob patterns stand for, found as they are asked for."""
    for text in texts:
        for where in _matching(text):
            files, problems = images_of(where)
            for problem in problems:
                complain(problem)
            yield from files


def _matching(text: str) -> list[Path]:
    path = Path(text)
    if glob.has_magic(text) and not (path.exists() or path.is_symlink()):
        return [Path(match) for match in sorted(glob.glob(text, recursive=True))] or [path]
    return [path]


def answer_files(
    learner: Learner,
    paths: Iterable[AnyPath],
    complain: Complain,
    *,
    accept: float | None,
    top: int = 1,
    batch: int = 64,
    find: Callable[[str | Path], Found] = lambda path: path,
) -> Iterator[Batch]:
    """Yield answers to image files in their order, in batches, while the files of the next batch are being read."""
    if batch < 1 or top < 1:
        raise OarlockError(f"{'batch' if batch < 1 else 'top'} = {min(batch, top)}: give a number of at least 1")
    threshold = None if accept is None else learner.threshold(accept)
    with closing(read_files(paths, learner.trunk.rule, batch, find)) as files:
        readable = _readable(files, complain)
        while some := list(islice(readable, batch)):
            pictures = np.stack([picture for _, picture in some])
            predicted = learner.predict_scores(pictures)
            yield Batch(pictures, read_answers(learner, [path for path, _ in some], predicted, threshold, top))


def _readable(
    files: Iterable[tuple[AnyPath, np.ndarray | OarlockError]], complain: Complain
) -> Iterator[tuple[AnyPath, np.ndarray]]:
    for path, picture in files:
        if isinstance(picture, OarlockError):
            complain(picture)
        else:
            yield path, picture


def read_answers(
    learner: Learner, paths: Sequence[Path | str], predicted: Prediction, threshold: float | None, top: int
) -> list[Answer]:
    """Return what scores of images say."""
    best = predicted.scores.topk(min(top, predicted.scores.shape[1])).indices
    shares = predicted.scores.double().softmax(1).gather(1, best).numpy()
    labels = learner.classes_[best.numpy()]
    assert predicted.tasks is not None
    tasks = (predicted.tasks.gather(1, best[:, :1])[:, 0] + 1).tolist()
    known, scores = predicted.known(threshold).tolist(), predicted.in_distribution.tolist()
    answers = []
    for row, path in enumerate(paths):
        likeliest = list(zip(labels[row].tolist(), shares[row].tolist(), strict=True))
        label = likeliest[0][0] if known[row] else None
        answers.append(Answer(path, label, likeliest[0][1], tasks[row], scores[row], likeliest))
    return answers
