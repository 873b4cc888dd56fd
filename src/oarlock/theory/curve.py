"""Risks as samples grow in number, on a synthetic world whose classes can be told apart.

Classes are Gaussians of unit variance; those of a task lie nearer to each other than to others. Every task has a
detector, a logistic regression of its classes and "o", which sees as many samples of every other class as of its own
(replay); and a closed-world classifier, a logistic regression of its classes alone, which sees no other task. From
the detectors Theorem 3 and the Corollary build learners whose risk falls with theirs; from the classifiers Theorem 1
builds one that is as good inside the newest task, and never learns the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from oarlock.theory import statements
from oarlock.theory.statements import Array, O

TASKS, CLASSES = 5, 2  # classes of a task
DIMENSIONS = 100
LENGTH = 5.0  # of the part of a class's mean that is its own, and of the part it shares with its task
SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128)  # of a class, to learn from
TESTED = 500  # of a class
DRAWS = 5  # of the samples to learn from


@dataclass(frozen=True)
class Point:
    """Hold mean risks over the draws for one number of samples."""

    samples: int  # of a class
    detector_risk: float  # ε: of the worst detector, as the Corollary charges it
    theorem3_risk: float
    theorem3_bound: float
    corollary_risk: float
    corollary_bound: float
    within_task_risk: float  # of the closed-world classifiers, the task given
    theorem1_risk: float  # of σ(z) + i, made of their scores

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def curve(samples: Sequence[int] = SAMPLES, draws: int = DRAWS, seed: int = 0) -> Iterator[Point]:
    """Yield one point for every number of samples.

    >>> few, many = curve(samples=[1, 32], draws=1)
    >>> many.detector_risk < few.detector_risk and many.corollary_risk < few.corollary_risk
    True
    """
    for n in samples:
        points = [_measure(n, np.random.default_rng([seed, n, draw])) for draw in range(draws)]
        means = np.mean([list(point.values()) for point in points], 0)
        yield Point(n, **dict(zip(points[0], means.round(6).tolist(), strict=True)))


def _measure(n: int, random: np.random.Generator) -> dict[str, float]:
    inputs, labels = _draw(n, random)
    tested, truth = _draw(TESTED, random)
    task_of_class = np.repeat(np.arange(TASKS), CLASSES)
    said = np.stack([_detector(t, inputs, labels, tested) for t in range(TASKS)], 1)
    preference = random.random(said.shape)  # whichever claimant is chosen, the Corollary holds
    z = np.concatenate([_scores(t, inputs, labels, tested) for t in range(TASKS)], 1)
    world = statements.mixture(task_of_class[truth], truth, np.full(TASKS, 1 / TASKS), np.zeros(TASKS))
    theorem3, corollary = statements.theorem3(world, said), statements.corollary(world, said)
    closed = statements.argmax_of_first(statements.closed_world(z, task_of_class), task_of_class)
    given = np.where(task_of_class == task_of_class[truth][:, None], z, -np.inf).argmax(1)
    return {
        "detector_risk": corollary.detector_risks.max(),
        "theorem3_risk": statements.risks(world, statements.sequential(said))[-1],
        "theorem3_bound": theorem3.values[-1],
        "corollary_risk": statements.risks(world, statements.order_free(said, preference))[-1],
        "corollary_bound": corollary.values[-1],
        "within_task_risk": float((given != truth).mean()),
        "theorem1_risk": statements.risks(world, closed)[-1],
    }


def _draw(count: int, random: np.random.Generator) -> tuple[Array, Array]:
    """So many samples of every class."""
    labels = np.repeat(np.arange(TASKS * CLASSES), count)
    noise = random.standard_normal((len(labels), DIMENSIONS))
    directions = np.eye(DIMENSIONS)
    return LENGTH * (directions[labels] + directions[-1 - labels // CLASSES]) + noise, labels


def _detector(t: int, inputs: Array, labels: Array, tested: Array) -> Array:
    targets = np.where(labels // CLASSES == t, labels, O)
    said: Array = _regression().fit(inputs, targets).predict(tested)
    return said


def _scores(t: int, inputs: Array, labels: Array, tested: Array) -> Array:
    own = labels // CLASSES == t
    scores: Array = _regression().fit(inputs[own], labels[own]).predict_log_proba(tested)
    return scores


def _regression() -> LogisticRegression:
    return LogisticRegression(class_weight="balanced", max_iter=1000)
