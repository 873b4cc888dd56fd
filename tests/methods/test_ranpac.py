"""RanPAC against scikit-learn's ridge regression on the same random features, and against the authors' code."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge

from conftest import make_task
from methods import authors
from methods.test_closed_forms import TEST
from methods.test_slda import features_of
from oarlock import Learner, OarlockError
from oarlock.detectors.sums import Products
from oarlock.methods._closed_form import SHARPNESS
from oarlock.methods._lifted import ridge
from oarlock.methods.ranpac import FIRST_PENALTY, PENALTIES, best_penalty

# Of the authors' `Learner.replace_fc` and `optimise_ridge_parameter` (RanPAC.py of github.com/RanPAC/RanPAC, commit
# 012927f).
THEIR_PENALTIES = [10.0, 1.0]
THEIR_OUTPUTS = [
    [-0.0259359, 1.5030684, 2.5604877, -1.1888537],
    [1.2516466, -0.3954613, -1.3245748, 3.5015168],
    [0.0641169, 2.0248094, 3.2869445, -1.5047171],
    [1.3934456, -0.4410611, -1.4731626, 3.8922275],
    [0.2795244, 1.8314333, 2.6100398, -1.1445045],
]
CLASSES = ["a", "b", "c", "d", "e"]


def lifted_by_numpy(learner: Learner, images: np.ndarray) -> np.ndarray:
    return np.maximum(features_of(learner, images) @ learner.method.directions.values.double().numpy(), 0)


@pytest.mark.parametrize("count", [12, 60], ids=["fewer features than images", "more"])
def test_outputs_are_those_of_scikit_learn_s_ridge_on_the_same_random_features(count, tiny_trunk):
    learner = Learner("ranpac", trunk=tiny_trunk, calibration=0.0, lamb=3.0, random_features=count)
    for classes in (CLASSES[:2], CLASSES[2:]):
        learner.learn(*make_task(classes, 9))
    images, labels = make_task(CLASSES, 9)
    wanted = np.eye(5)[np.searchsorted(CLASSES, labels)]
    fitted = Ridge(alpha=3.0, fit_intercept=False, solver="cholesky").fit(lifted_by_numpy(learner, images), wanted)
    expected = fitted.predict(lifted_by_numpy(learner, TEST))
    encoded = learner.method.encode(torch.from_numpy(TEST).permute(0, 3, 1, 2), [-1])
    np.testing.assert_allclose(learner.method.outputs(encoded[:, 0]), expected, atol=1e-4 * abs(expected).max())
    np.testing.assert_allclose(learner.method.scores(encoded), SHARPNESS * expected, atol=1e-3 * abs(expected).max())


def test_outputs_are_the_authors(tiny_trunk):
    method = authors.taught("ranpac", tiny_trunk, lamb=THEIR_PENALTIES[-1], random_features=8)
    np.testing.assert_allclose(method.outputs(authors.tensor(authors.ASKED)), THEIR_OUTPUTS, atol=1e-4)


def test_the_penalty_is_the_one_that_the_authors_choose():
    for classes, expected in zip([(0, 1), (2, 3)], THEIR_PENALTIES, strict=True):
        rows = np.isin(authors.LABELS, classes)
        lifted = torch.from_numpy(authors.FEATURES[rows] @ authors.DIRECTIONS.astype(float)).relu()
        truth = F.one_hot(torch.from_numpy(authors.LABELS[rows] - classes[0]), 2)
        assert best_penalty(lifted, truth) == expected


@pytest.mark.parametrize("images", [30, 90], ids=["solved in images", "solved in features"])
def test_the_penalty_has_the_least_error_on_the_last_fifth(images):
    random = np.random.default_rng(0)
    lifted, labels = random.normal(size=(images, 40)), random.integers(0, 3, images)
    lifted[:, :3] += np.eye(3)[labels]
    truth, kept = np.eye(3)[labels], images * 4 // 5
    errors = []
    for penalty in PENALTIES:
        fitted = Ridge(alpha=penalty, fit_intercept=False, solver="svd").fit(lifted[:kept], truth[:kept])
        errors.append(((fitted.predict(lifted[kept:]) - truth[kept:]) ** 2).mean())
    chosen = best_penalty(torch.from_numpy(lifted), torch.from_numpy(truth))
    assert chosen == PENALTIES[int(np.argmin(errors))]
    assert PENALTIES[0] < chosen < PENALTIES[-1]


def test_the_latest_task_s_penalty_holds_and_a_single_image_leaves_it(tiny_trunk):
    learner = Learner("ranpac", trunk=tiny_trunk, calibration=0.0, random_features=30)
    with pytest.warns(UserWarning, match="single image"):
        learner.learn(*make_task(["a"], 1))
    assert float(learner.method.penalty) == FIRST_PENALTY
    learner.learn(*make_task(["b", "c"], 20))
    chosen = float(learner.method.penalty)
    assert chosen in PENALTIES
    with pytest.warns(UserWarning, match="single image"):
        learner.learn(*make_task(["d"], 1))
    assert float(learner.method.penalty) == chosen


def test_a_penalty_that_rounding_would_lose_is_raised_and_no_other():
    rows = torch.ones(2, 3, dtype=torch.float64) * 1e6
    right = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    for penalty, counted in ((1e-8, 600.0), (700.0, 700.0)):
        found = ridge(Products(3).add(rows), penalty, right)
        expected = np.linalg.solve(np.full((3, 3), 2e12) + counted * np.eye(3), right)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_is_no_number_is_refused():
    with pytest.raises(OarlockError, match="not numbers"):
        ridge(torch.full((2, 2), torch.nan, dtype=torch.float64), 1.0, torch.ones(2, 1, dtype=torch.float64))
