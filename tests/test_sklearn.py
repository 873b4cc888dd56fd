"""Estimators: scikit-learn's own checks, and that they learn and answer as the learner they hold."""

import io
import pickle

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from conftest import make_task
from contract.conftest import assert_same, snapshot
from oarlock import Learner, OarlockError
from oarlock.nets.trunks import Trunk
from oarlock.sklearn import OarlockClassifier, OarlockOutlierDetector

ROUNDING = {
    "check_methods_subset_invariance": "wants seven digits: thousands of random features, in single precision, round "
    "otherwise when rows are asked one at a time"
}
EXPECTED = {"ranpac": ROUNDING, "klda": ROUNDING, "anacp": ROUNDING}
OTHERS = ["ncm", "fecam", "klda", "ranpac", "anacp", "first", "oar"]


def expected_to_fail(estimator: OarlockClassifier) -> dict[str, str]:
    return EXPECTED.get(estimator.method, {})


@pytest.mark.filterwarnings("ignore::UserWarning")  # of classes with a single row
@parametrize_with_checks(
    [OarlockClassifier("slda", trunk=None), OarlockOutlierDetector("slda", trunk=None)],
    expected_failed_checks=expected_to_fail,
)
def test_scikit_learns_own_checks(estimator: object, check) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    [OarlockClassifier(name, trunk=None) for name in OTHERS], expected_failed_checks=expected_to_fail
)
def test_scikit_learns_own_checks_of_other_methods(estimator: object, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    some = np.random.default_rng(0).permutation(len(X))[:400]
    return X[some], y[some]


def tasks_of(X: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """New digits three times, in no order, and at last more of known ones with new ones among them."""
    first, last = slice(0, 300), slice(300, None)
    parts = [np.flatnonzero(np.isin(y[first], wanted)) for wanted in ([7, 1], [9, 0, 3], [2])]
    return [*((X[first][rows], y[first][rows]) for rows in parts), (X[last], y[last])]


@pytest.mark.parametrize("method", ["slda", "row"])
def test_partial_fit_over_a_stream_is_learn_task_by_task(method: str, digits) -> None:
    options = {"epochs": 1} if method == "row" else {}
    classifier = OarlockClassifier(method, trunk=None, random_state=3, options=options)
    learner = Learner(method, trunk=None, seed=3, **options)
    for X, y in tasks_of(*digits):
        classifier.partial_fit(X, y)
        learner.learn(X, y, more=True)
        assert_same(snapshot(classifier.learner_), snapshot(learner))
        columns = [learner.classes_.tolist().index(label) for label in classifier.classes_]
        assert np.array_equal(classifier.predict_proba(X), learner.predict_proba(X)[:, columns])
        assert np.array_equal(classifier.predict(X), learner.predict(X))
    assert classifier.classes_.tolist() == sorted(learner.classes_.tolist()) == list(range(10))


def test_partial_fit_on_pictures_is_learn_task_by_task(tiny_trunk: Trunk) -> None:
    options = {"epochs": 1, "width": 8, "few": 0}
    classifier = OarlockClassifier(trunk=tiny_trunk, memory=12, options=options)
    learner = Learner(trunk=tiny_trunk, memory=12, **options)
    for names in (["dog", "ant"], ["cow", "bee"]):
        images, labels = make_task(names)
        classifier.partial_fit(images, labels, classes=["ant", "bee", "cow", "dog"])
        learner.learn(images, labels)
    assert_same(snapshot(classifier.learner_), snapshot(learner))
    assert classifier.classes_.tolist() == ["ant", "bee", "cow", "dog"]
    assert classifier.predict(images).tolist() == learner.predict(images).tolist()
    assert np.array_equal(classifier.decision_function(images).argmax(1), classifier.predict_proba(images).argmax(1))


def test_fitting_again_forgets(digits) -> None:
    (X, y), (other, more), *_ = tasks_of(*digits)
    classifier = OarlockClassifier("slda", trunk=None).fit(X, y).fit(other, more)
    assert classifier.classes_.tolist() == [0, 3, 9]


def test_in_a_pipeline_a_search_over_methods(digits) -> None:
    X, y = digits
    pipeline = make_pipeline(StandardScaler(), OarlockClassifier(trunk=None))
    search = GridSearchCV(pipeline, {"oarlockclassifier__method": ["ncm", "slda", "fecam"]}, cv=3).fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    assert scores.min() > 0.8 and search.best_score_ == scores.max()
    assert search.predict(X).shape == y.shape
    assert isinstance(search.best_estimator_[-1].learner_, Learner)


def test_pictures_are_cross_validated(tiny_trunk: Trunk) -> None:
    images, labels = make_task(["ant", "bee", "cow"], 12)
    scores = cross_val_score(OarlockClassifier("slda", trunk=tiny_trunk), images, labels, cv=3)
    assert scores.mean() > 0.8


@pytest.mark.slow
def test_processes_of_joblib_cross_validate_alike(digits) -> None:
    classifier = OarlockClassifier("slda", trunk=None)
    alone, together = (cross_val_score(classifier, *digits, cv=3, n_jobs=jobs) for jobs in (1, 2))
    assert np.array_equal(alone, together)


def test_a_pickled_estimator_answers_and_goes_on_as_it_was(digits) -> None:
    (X, y), (other, more), *_ = tasks_of(*digits)
    classifier = OarlockClassifier("slda", trunk=None).fit(X, y)
    file = io.BytesIO()
    joblib.dump(classifier, file)
    for again in (pickle.loads(pickle.dumps(classifier)), joblib.load(io.BytesIO(file.getvalue()))):
        assert np.array_equal(again.predict_proba(X), classifier.predict_proba(X))
        assert_same(snapshot(again.learner_), snapshot(classifier.learner_))
        again.partial_fit(other, more)
    assert classifier.classes_.tolist() == [1, 7]


def test_a_learner_is_pickled_as_its_file_and_checked_as_one(digits) -> None:
    X, y = digits
    state = OarlockClassifier("slda", trunk=None).fit(X, y).__getstate__()
    assert isinstance(state["learner_"], bytes)
    harmed = bytearray(state["learner_"])
    harmed[-1] ^= 1
    with pytest.raises(OarlockError, match="what was handed over is damaged"):
        OarlockClassifier().__setstate__({**state, "learner_": bytes(harmed)})


def test_a_clone_has_the_settings_and_nothing_learned(digits) -> None:
    classifier = OarlockClassifier("ranpac", trunk=None, memory=7, options={"random_features": 50}).fit(*digits)
    again = clone(classifier)
    assert again.get_params() == classifier.get_params()
    with pytest.raises(NotFittedError):
        again.predict(digits[0])
    assert len(again.set_params(options={"random_features": 60}).fit(*digits).learner_.method.weights) == 60


def test_labels_come_back_as_what_they_were(digits) -> None:
    X, y = digits
    for labels in (y >= 5, (y >= 5).astype(float), np.where(y >= 5, "many", "few"), (y >= 5).astype(np.int8)):
        classifier = OarlockClassifier("slda", trunk=None).fit(X, labels)
        assert classifier.classes_.tolist() == np.unique(labels).tolist()
        assert classifier.predict(X).dtype == labels.dtype
        assert classifier.score(X, labels) > 0.8


def test_an_outlier_detector_draws_the_learners_line(digits) -> None:
    X, y = digits
    known = y < 5
    detector = OarlockOutlierDetector("slda", trunk=None, accept=0.9).fit(X[known], y[known])
    learner = Learner("slda", trunk=None).learn(X[known], y[known])
    assert np.array_equal(detector.predict(X) == -1, learner.predict(X, accept=0.9) == None)  # noqa: E711
    assert np.array_equal(detector.score_samples(X), learner.in_distribution(X))
    assert (detector.predict(X[known]) == 1).mean() > 0.85
    assert (detector.predict(X[~known]) == 1).mean() < 0.5


def test_an_outlier_detector_looks_at_pictures(tiny_trunk: Trunk) -> None:
    images, labels = make_task(["ant", "bee"], 20)
    detector = OarlockOutlierDetector("slda", trunk=tiny_trunk)
    assert set(detector.fit_predict(images).tolist()) <= {1, -1}
    again = pickle.loads(pickle.dumps(detector.fit(images, labels)))
    assert np.array_equal(again.decision_function(images), detector.decision_function(images))
    assert again.trunk.sha256 == tiny_trunk.sha256
