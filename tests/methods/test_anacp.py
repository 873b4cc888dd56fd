"""AnaCP against its formulas in numpy, and a head of it against the authors' code."""

import numpy as np
import torch
from scipy.linalg import sqrtm
from scipy.special import erf
from sklearn.linear_model import Ridge

from conftest import make_task
from methods import authors
from methods.test_closed_forms import TEST
from methods.test_slda import features_of
from oarlock import Learner
from oarlock.methods._closed_form import SHARPNESS
from oarlock.methods.anacp import ADDED, Head, set_apart

CLASSES = ["a", "b", "c", "d", "e"]
# What the authors' `IntermediateLayer` (models/anacp.py of github.com/SalehMomeni/AnaCP, commit 7801c59) says with
# λ = 0.5 and class means as targets: the first four of 24 columns.
THEIR_HEAD = [
    [-0.3308007, -0.1898115, 0.4183729, 0.021294],
    [0.3193968, 0.2316274, -0.3650312, -0.041896],
    [-0.3177782, -0.1869253, 0.4139165, 0.0036206],
    [0.3209328, 0.2303394, -0.3676023, -0.042408],
    [-0.2678073, -0.1983335, 0.3740093, -0.0487536],
]


def normalised(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def gelu(rows: np.ndarray) -> np.ndarray:
    return rows * (1 + erf(rows / np.sqrt(2))) / 2


def test_a_head_says_what_the_authors_does():
    head, features = Head(24, 8), normalised(authors.FEATURES)
    head.directions.values.copy_(torch.from_numpy(authors.DIRECTIONS))
    for first in (0, 2):
        rows = np.isin(authors.LABELS, (first, first + 1))
        head.make_room(2)
        labels = torch.from_numpy(authors.LABELS[rows] - first)
        head.take(authors.tensor(features[rows]), labels, slice(first, first + 2), penalty=0.5)
    targets = np.stack([normalised(features[label == authors.LABELS].mean(0)) for label in range(4)])
    said = head(authors.tensor(normalised(authors.ASKED)), authors.tensor(targets))
    np.testing.assert_allclose(said[:, :4], THEIR_HEAD, atol=1e-4)


def apart_by_numpy(means: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    root, middle = np.real(sqrtm(covariance)), means.mean(0)
    mixes, sizes, directions = np.linalg.svd((means - middle) @ np.linalg.inv(root), full_matrices=False)
    raised = np.where(sizes > 1e-9, sizes + 1, 0)
    return normalised((mixes * raised) @ directions @ root + middle)


def test_targets_are_means_whose_singular_values_are_raised_where_classes_are_white():
    random = np.random.default_rng(0)
    means, factor = random.normal(size=(4, 6)), random.normal(size=(9, 6))
    covariance = factor.T @ factor / 9
    found = set_apart(torch.from_numpy(means), torch.from_numpy(covariance))
    np.testing.assert_allclose(found, apart_by_numpy(means, covariance), atol=1e-6)


def test_a_single_class_is_its_own_target():
    mean = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(set_apart(mean, torch.eye(3, dtype=torch.float64)), mean / 5)


def test_scores_are_those_of_the_formulas_written_out_for_everything_at_once(tiny_trunk):
    learner = Learner("anacp", trunk=tiny_trunk, calibration=0.0, random_features=30, heads=2, lamb=0.7, samples=11)
    for classes in (CLASSES[:2], CLASSES[2:]):
        learner.learn(*make_task(classes, 9))
    method, (images, labels) = learner.method, make_task(CLASSES, 9)
    x, test = normalised(features_of(learner, images)), normalised(features_of(learner, TEST))
    y = np.searchsorted(CLASSES, labels)
    means = np.stack([x[y == label].mean(0) for label in range(5)])
    covariance = (x - means[y]).T @ (x - means[y]) / len(x) + ADDED * np.eye(24)
    targets = apart_by_numpy(means, covariance)

    def regression(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        return Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(rows, wanted).coef_.T

    heads = [head.directions.values.double().numpy() for head in method.heads]
    maps = [regression(gelu(x @ drawn), targets[y]) for drawn in heads]

    def lifted(rows: np.ndarray) -> np.ndarray:
        said = np.mean([normalised(gelu(rows @ drawn) @ to) for drawn, to in zip(heads, maps, strict=True)], axis=0)
        return gelu(said @ method.directions.values.double().numpy())

    noise = method.noise.values.double().numpy().T @ np.linalg.cholesky(covariance).T
    samples = np.concatenate([mean + noise for mean in means])
    weights = regression(lifted(samples), np.eye(5)[np.arange(5).repeat(11)])
    expected = SHARPNESS * lifted(test) @ weights
    scores = method.scores(authors.tensor(features_of(learner, TEST))[:, None])
    np.testing.assert_allclose(scores, expected, atol=1e-3 * abs(expected).max())
    assert learner.predict(TEST).tolist() == [CLASSES[index] for index in expected.argmax(1)]
    assert len(set(learner.predict(TEST))) > 1
