"""FeCAM against its formula in numpy, with whole matrices, and against the authors' code."""

import numpy as np
import pytest

from conftest import make_task
from methods import authors
from methods.test_closed_forms import TEST
from methods.test_slda import features_of
from oarlock import Learner

# Squared distances of the authors' `shrink_cov`, `normalize_cov` and `_mahalanobis` (FeCAM_vit_cifar100.py of
# github.com/dipamgoswami/FeCAM, commit d2479b7).
THEIR_DISTANCES = [
    [1.3300541, 3.408671, 2.5647971, 1.2354272],
    [2.8642425, 1.3425611, 2.8518748, 2.7744272],
    [2.5927245, 3.2816601, 1.4799306, 3.5826516],
    [1.5608907, 2.7888534, 2.8886866, 1.3904275],
    [1.9562257, 3.93029, 2.2983092, 2.7956122],
]
COUNTS = {"a": 40, "b": 6, "c": 25, "d": 2}  # with 24 features: more images, fewer, one more and hardly any


def by_numpy(features: np.ndarray, labels: np.ndarray, test: np.ndarray, alpha: float, tukey: float) -> np.ndarray:
    """Squared distances, by the inverse of a whole matrix of correlations for every class."""
    features, test = (np.sign(rows) * np.abs(rows) ** tukey for rows in (features, test))
    features, test = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (features, test))
    found = []
    for label in np.unique(labels):
        own = features[labels == label]
        covariance = np.cov(own.T)
        covariance += alpha * np.diag(covariance).mean() * np.eye(len(covariance))
        deviation = np.sqrt(np.diag(covariance))
        differences = test - own.mean(0)
        inverse = np.linalg.inv(covariance / np.outer(deviation, deviation))
        found.append(np.einsum("ni,ij,nj->n", differences, inverse, differences))
    return np.stack(found, 1)


def distances(learner: Learner, images: np.ndarray) -> np.ndarray:
    return learner.method.distances(authors.tensor(features_of(learner, images))).numpy() ** 2


@pytest.mark.parametrize(("alpha", "tukey"), [(1.0, 1.0), (0.1, 0.5)])
def test_distances_are_those_of_whole_matrices(alpha, tukey, tiny_trunk):
    learner = Learner("fecam", trunk=tiny_trunk, calibration=0.0, alpha=alpha, tukey=tukey)
    parts = [make_task([name], count) for name, count in COUNTS.items()]
    for images, labels in parts:
        learner.learn(images, labels)
    assert learner.method.ranks == [24, 5, 24, 1]
    images, labels = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    expected = by_numpy(features_of(learner, images), labels, features_of(learner, TEST), alpha, tukey)
    np.testing.assert_allclose(distances(learner, TEST), expected, rtol=1e-3, atol=1e-5)
    assert learner.predict(TEST).tolist() == [list(COUNTS)[index] for index in expected.argmin(1)]
    assert len(set(learner.predict(TEST))) > 1


def test_distances_are_the_authors(tiny_trunk):
    method = authors.taught("fecam", tiny_trunk)
    np.testing.assert_allclose(method.distances(authors.tensor(authors.ASKED)).square(), THEIR_DISTANCES, rtol=1e-4)


def test_scores_are_a_gaussian_s_as_wide_as_training_images_lie(tiny_trunk):
    learner = Learner("fecam", trunk=tiny_trunk, calibration=0.0)
    images, labels = make_task(["a", "b", "c"], 8)
    learner.learn(images, labels)
    own = distances(learner, images)[np.arange(24), np.repeat(np.arange(3), 8)]
    expected = -distances(learner, TEST) / (2 * own.mean() / 24)
    encoded = authors.tensor(features_of(learner, TEST))[:, None]
    np.testing.assert_allclose(learner.method.scores(encoded), expected, rtol=1e-3)


def test_a_class_of_one_image_has_plain_distances(tiny_trunk):
    learner = Learner("fecam", trunk=tiny_trunk, calibration=0.0)
    one = make_task(["b"], 1)
    with pytest.warns(UserWarning, match="single image"):
        learner.learn(*make_task(["a"], 8)).learn(*one)
    mean, test = features_of(learner, one[0]), features_of(learner, TEST)
    mean, test = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (mean, test))
    np.testing.assert_allclose(distances(learner, TEST)[:, 1], ((test - mean) ** 2).sum(1), rtol=1e-3, atol=1e-6)


def test_a_class_takes_its_own_directions_and_no_matrix(tiny_trunk):
    learner = Learner("fecam", trunk=tiny_trunk, calibration=0.0)
    learner.learn(*make_task(["a"], 5))
    before = learner.entries()
    learner.learn(*make_task(["b"], 8))
    assert learner.entries() - before == (2 + 7) * 24  # mean, scale and seven directions
