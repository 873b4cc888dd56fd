"""From the accuracy matrix and scores to the numbers a run reports. Percent, but for rates of OOD detection.

`accuracy[t][i]` is A_i^t: accuracy on task i's test images after task t, classes of all t tasks competing.
"""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

Matrix = Sequence[Sequence[float]]


def aca(accuracy: Matrix) -> float:
    """Return the average classification accuracy (ACA) after the last task.

    >>> aca([[90.0], [80.0, 60.0]])
    70.0
    """
    return float(np.mean(accuracy[-1]))


def aia(accuracy: Matrix) -> float:
    """Return the average incremental accuracy (AIA): the mean of the ACAs after each task.

    >>> aia([[90.0], [80.0, 60.0]])
    80.0
    """
    return float(np.mean([np.mean(row) for row in accuracy]))


def forgetting(accuracy: Matrix) -> float | None:
    """Return the mean over earlier tasks of accuracy when just learned minus accuracy now; None with one task.

    >>> forgetting([[90.0], [80.0, 60.0]])
    10.0
    """
    last = len(accuracy) - 1
    if last == 0:
        return None
    return float(np.mean([accuracy[i][i] - accuracy[last][i] for i in range(last)]))


def auroc(known: np.ndarray, unknown: np.ndarray) -> float:
    """Return the chance that a known input scores above an unknown one.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.5]))
    0.75
    """
    return float(roc_auc_score(*_labelled(known, unknown)))


def fpr_at_95(known: np.ndarray, unknown: np.ndarray) -> float:
    """Return the share of unknown inputs accepted by the threshold that accepts 95 % of the known ones.

    >>> fpr_at_95(np.array([2.0, 3.0]), np.array([1.0, 2.5]))
    0.5
    """
    false, true, _ = roc_curve(*_labelled(known, unknown), drop_intermediate=False)
    return float(false[np.argmax(true >= 0.95)])


def _labelled(known: np.ndarray, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat([1, 0], [len(known), len(unknown)]), np.concatenate([known, unknown])


class Spread(NamedTuple):
    """Hold a mean over runs and the sample's standard deviation; a single run has none."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of these values.

        >>> Spread.of([1.0, 3.0]), Spread.of([2.0])
        (Spread(mean=2.0, std=1.4142135623730951), Spread(mean=2.0, std=None))
        """
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)
