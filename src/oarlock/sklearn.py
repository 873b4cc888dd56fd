"""A learner as scikit-learn's classifier and outlier detector, for pipelines, searches and cross-validation.

Nothing is learned or answered here: `learner_` does both.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, OutlierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from oarlock.data.images import Label
from oarlock.files import from_bytes, to_bytes
from oarlock.learner import Learner
from oarlock.loading import trunk_from, trunk_state
from oarlock.nets.trunks import DEFAULT, Trunk
from oarlock.tasks import CALIBRATE_FROM

KNOWN = "known"  # what inputs without labels are all called


class _Estimator(BaseEstimator):
    """Hold a learner's settings as scikit-learn wants them: untouched until something is fitted. In what
    scikit-learn or joblib pickle, a learner and a trunk are bytes as in a model file, checked when they are read."""

    learner_: Learner

    def __init__(
        self,
        method: str = "oar",
        *,
        trunk: str | Trunk | None = DEFAULT,
        weights: str | Path | None = None,
        size: int | None = None,
        memory: int = 200,
        calibration: float = 0.1,
        random_state: int = 0,
        device: str | torch.device = "cpu",
        options: dict[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.trunk = trunk
        self.weights = weights
        self.size = size
        self.memory = memory
        self.calibration = calibration
        self.random_state = random_state
        self.device = device
        self.options = options

    def _new_learner(self) -> Learner:
        return Learner(
            self.method,
            trunk=self.trunk,
            weights=self.weights,
            size=self.size,
            memory=self.memory,
            calibration=self.calibration,
            seed=self.random_state,
            device=self.device,
            **(self.options or {}),
        )

    def _known(self, X: Any) -> Any:
        """What a fitted estimator is asked about."""
        check_is_fitted(self)
        return validate_data(self, X, reset=False) if self.trunk is None else X

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "learner_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.trunk is None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if isinstance(self.trunk, Trunk):
            tensors, description = trunk_state(self.trunk)
            state["trunk"] = to_bytes("trunk", tensors, {"trunk": description})
        if "learner_" in state:
            state["learner_"] = to_bytes("model", *self.learner_.state())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if isinstance(self.trunk, bytes):
            tensors, description = from_bytes(self.trunk, "trunk")
            self.trunk = trunk_from(description["trunk"], tensors, self.weights)
        if "learner_" in state:
            read = from_bytes(state["learner_"], "model")
            self.learner_ = Learner.from_state(*read, weights=self.weights, device=self.device)


class OarlockClassifier(ClassifierMixin, _Estimator):
    """Classify images or, with `trunk=None`, rows of features; learn new classes, and more of known ones, at any
    call of `partial_fit`.

    Parameters are those of `oarlock.Learner`, but for `random_state`, its seed, and `options`, a dictionary of what
    the method itself can be told. `learner_` is the learner; `classes_` and columns of answers are sorted.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = OarlockClassifier("slda", trunk=None).partial_fit(X[:100], y[:100])
    >>> classifier.partial_fit(X[100:], y[100:]).classes_
    array([0, 1, 2])
    >>> classifier.score(X, y) > 0.95
    True
    """

    classes_: np.ndarray

    def fit(self, X: Any, y: Any) -> "OarlockClassifier":
        """Learn all of it as one task, and forget whatever was learned before."""
        return self._learn(self._new_learner(), X, y, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "OarlockClassifier":
        """Learn one more task. There is no need to name `classes` that are to come: it is there for code that does,
        and changes nothing."""
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        return self._learn(self.learner_, X, y, first=False)

    def _learn(self, learner: Learner, X: Any, y: Any, first: bool) -> "OarlockClassifier":
        if self.trunk is None:
            X, y = validate_data(self, X, y, reset=first)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.learner_ = learner.learn(X, _labels(y), more=True)
        self.classes_ = np.unique(y) if first else np.union1d(self.classes_, y)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each input."""
        X = self._known(X)
        return self.learner_.predict(X).astype(self.classes_.dtype)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities, one column for each of `classes_`."""
        X = self._known(X)
        return self.learner_.predict_proba(X)[:, self._columns()]

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores, one column for each of `classes_`: log-probabilities up to a constant of the row. Of two
        classes, how much the second is ahead."""
        X = self._known(X)
        scores = self.learner_.predict_scores(X).scores.double().numpy()[:, self._columns()]
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def _columns(self) -> np.ndarray:
        """Where the sorted classes stand among those in the order learned."""
        return np.argsort(self.learner_.classes_)


class OarlockOutlierDetector(OutlierMixin, _Estimator):
    """Tell inputs like those learned (1) from all others (-1).

    A share `accept` of inputs like the learned ones passes, or more, with a confidence of nine in ten: the line is
    drawn on inputs that nothing was trained on. Otherwise parameters are those of `OarlockClassifier`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> detector = OarlockOutlierDetector("slda", trunk=None).fit(X[:100], y[:100])
    >>> bool((detector.predict(X[:100]) == 1).mean() > 0.8), bool((detector.predict(X[100:]) == 1).mean() < 0.5)
    (True, True)
    """

    offset_: float

    def __init__(
        self,
        method: str = "oar",
        *,
        accept: float = 0.95,
        trunk: str | Trunk | None = DEFAULT,
        weights: str | Path | None = None,
        size: int | None = None,
        memory: int = 200,
        calibration: float = 0.1,
        random_state: int = 0,
        device: str | torch.device = "cpu",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            method,
            trunk=trunk,
            weights=weights,
            size=size,
            memory=memory,
            calibration=calibration,
            random_state=random_state,
            device=device,
            options=options,
        )
        self.accept = accept

    def fit(self, X: Any, y: Any = None) -> "OarlockOutlierDetector":
        """Learn what is known: by classes, which tells it better, or all of it as one."""
        if self.trunk is None:
            X = validate_data(self, X, ensure_min_samples=CALIBRATE_FROM)
        labels = [KNOWN] * len(X) if y is None else _labels(column_or_1d(y, warn=True))
        self.learner_ = self._new_learner().learn(X, labels)
        self.offset_ = self.learner_.threshold(self.accept)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return 1 for what is like something learned, -1 for all else."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return how far inputs are above the line; below zero is unknown."""
        return self.score_samples(X) - self.offset_

    def score_samples(self, X: Any) -> np.ndarray:
        """Return how much inputs look like something learned; higher is more."""
        X = self._known(X)
        return self.learner_.in_distribution(X).astype(np.float64)


def _labels(y: np.ndarray) -> list[Label]:
    """Names as a learner takes them. That numbers with a point are whole was checked before, where classes may be
    such."""
    whole = y.astype(np.int64) if y.dtype.kind in "fb" else y
    return whole.tolist()
