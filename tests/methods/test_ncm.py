"""NCM against scikit-learn's nearest centroid, and its probabilities against a Gaussian's."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestCentroid

from conftest import make_task
from methods.test_closed_forms import TEST
from methods.test_slda import features_of
from oarlock import Learner

CLASSES = ["a", "b", "c", "d", "e"]


@pytest.fixture(params=[False, True], ids=["distance", "cosine"])
def learner(request, tiny_trunk) -> Learner:
    learner = Learner("ncm", trunk=tiny_trunk, calibration=0.0, cosine=request.param)
    return learner.learn(*make_task(CLASSES[:2], 9)).learn(*make_task(CLASSES[2:], 9))


def test_the_nearest_centroid_is_scikit_learn_s(learner):
    images, labels = make_task(CLASSES, 9)
    nearest = NearestCentroid().fit(features_of(learner, images), labels)
    if learner.method.config.cosine:
        similar = cosine_similarity(features_of(learner, TEST), nearest.centroids_)
        expected = nearest.classes_[similar.argmax(1)]
    else:
        expected = nearest.predict(features_of(learner, TEST))
    assert learner.predict(TEST).tolist() == expected.tolist()
    assert len(set(expected)) > 2


def test_probabilities_are_those_of_a_gaussian_around_each_mean(learner):
    images, labels = make_task(CLASSES, 9)
    x, y, test = features_of(learner, images), np.array(labels), features_of(learner, TEST)
    means = np.stack([x[y == name].mean(0) for name in CLASSES])
    if learner.method.config.cosine:
        x, test, means = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, test, means))
    variance = ((x - means[np.searchsorted(CLASSES, y)]) ** 2).mean()
    scores = -((test[:, None] - means) ** 2).sum(2) / (2 * variance)
    expected = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(learner.predict_proba(TEST), expected / expected.sum(1, keepdims=True), atol=1e-4)
