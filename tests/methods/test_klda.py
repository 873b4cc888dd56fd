"""KLDA against scikit-learn's kernel and discriminant, and against the authors' code."""

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS, EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel

from conftest import make_task
from methods import authors
from methods.test_closed_forms import TEST
from methods.test_slda import features_of
from oarlock import Learner
from oarlock.experiments.protocols import PAPER
from oarlock.training import TaskData

# Squared distances of the authors' `KLDA` (models/klda.py of github.com/SalehMomeni/AnaCP, commit 7801c59) with
# γ = 0.02, ε = 0.001.
THEIR_DISTANCES = [
    [19.6297314, 14.9153164, 13.1448538, 20.7573963],
    [55.1509558, 64.8960905, 70.1576977, 52.7902892],
    [29.3206396, 25.0465313, 23.7412586, 30.2548543],
    [70.4933271, 81.3708928, 87.1554922, 67.8846254],
    [26.6125866, 22.5005455, 21.2731151, 27.5513365],
]
CLASSES = ["a", "b", "c", "d", "e"]


def taught(tiny_trunk, **options) -> Learner:
    learner = Learner("klda", trunk=tiny_trunk, calibration=0.0, **options)
    return learner.learn(*make_task(CLASSES[:2], 9)).learn(*make_task(CLASSES[2:], 9))


def test_random_features_multiply_to_scikit_learn_s_kernel(tiny_trunk):
    method = Learner("klda", trunk=tiny_trunk, random_features=3000, gamma=0.01).method
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    method.begin(TaskData(0, images, torch.arange(2), classes=2, seed=0))
    lifted = method.lifted(authors.tensor(authors.FEATURES))
    kernel = rbf_kernel(authors.FEATURES, gamma=0.01)
    assert 0.3 < kernel.min() < 0.8
    np.testing.assert_allclose(lifted @ lifted.T, kernel, atol=0.08)  # four standard deviations, or a little more


class ScatterAndEpsilon(EmpiricalCovariance):
    """(S + εI) / n, where scikit-learn's is the mean of classes of `count` images each."""

    def __init__(self, epsilon: float, images: int) -> None:
        super().__init__()
        self.epsilon, self.images = epsilon, images

    def fit(self, x, y=None):
        x = x - x.mean(0)
        self.covariance_ = x.T @ x / len(x) + self.epsilon / self.images * np.eye(x.shape[1])
        return self


def test_answers_are_those_of_scikit_learn_s_discriminant_on_the_same_random_features(tiny_trunk):
    learner = taught(tiny_trunk, random_features=40, gamma=0.01, epsilon=0.3)
    images, labels = make_task(CLASSES, 9)

    def lifted(pictures: np.ndarray) -> np.ndarray:
        along = features_of(learner, pictures) @ learner.method.directions.values.double().numpy()
        return np.sqrt(2 / 40) * np.cos(np.sqrt(2 * 0.01) * along + learner.method.angles.double().numpy())

    lda = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=ScatterAndEpsilon(0.3, len(images)))
    lda.fit(lifted(images), labels)
    assert learner.predict(TEST).tolist() == lda.predict(lifted(TEST)).tolist()
    assert len(set(learner.predict(TEST))) > 2
    np.testing.assert_allclose(learner.predict_proba(TEST), lda.predict_proba(lifted(TEST)), atol=1e-3)


def test_distances_are_the_authors_but_for_what_classes_share(tiny_trunk):
    method = authors.taught("klda", tiny_trunk, gamma=0.02, epsilon=1e-3, random_features=8)
    scores = method.scores(authors.tensor(authors.ASKED)[:, None])
    expected = -torch.tensor(THEIR_DISTANCES) * len(authors.FEATURES) / 2  # theirs is a sum, ours its mean
    mine, theirs = (rows - rows.mean(1, keepdim=True) for rows in (scores, expected))
    np.testing.assert_allclose(mine, theirs, atol=1e-4 * float(theirs.abs().max()))


def test_gamma_is_half_of_one_by_the_first_task_s_median_squared_distance_and_stays(tiny_trunk):
    learner = taught(tiny_trunk, random_features=20)
    features = features_of(learner, make_task(CLASSES[:2], 9)[0])
    squared = euclidean_distances(features, squared=True)[np.triu_indices(18, 1)]
    below, above = np.sort(squared)[[76, 77]]  # of 153, the middle and its neighbour
    assert 1 / (2 * above) <= float(learner.method.gamma) * (1 + 1e-4)
    assert float(learner.method.gamma) <= 1 / (2 * below) * (1 + 1e-4)


def test_a_first_task_whose_images_do_not_differ_has_a_gamma_too(tiny_trunk):
    images = np.repeat(make_task(["a"], 1)[0], 4, axis=0)
    learner = Learner("klda", trunk=tiny_trunk, calibration=0.0, random_features=20)
    learner.learn(images, ["a"] * 4).learn(*make_task(["b"], 5))
    assert learner.method.gamma > 0
    assert learner.predict(images).tolist() == ["a"] * 4


def test_a_gamma_that_is_given_holds(tiny_trunk):
    assert float(taught(tiny_trunk, random_features=20, gamma=0.5).method.gamma) == pytest.approx(0.5)


def test_epsilon_shrinks_by_default_as_scikit_learn_s_oas_does(tiny_trunk):
    learner = taught(tiny_trunk, random_features=40, gamma=0.01)
    method, images = learner.method, make_task(CLASSES, 9)[0]
    lifted = method.lifted(authors.tensor(features_of(learner, images))).double().numpy()
    deviations = lifted - lifted.reshape(5, 9, 40).mean(1).repeat(9, 0)
    expected = OAS(assume_centered=True).fit(deviations).covariance_
    scatter = method.scatter.whole().numpy()
    shrunk = scatter + method.epsilon(torch.from_numpy(scatter)) * np.eye(40)
    np.testing.assert_allclose(shrunk / np.trace(shrunk), expected / np.trace(expected), rtol=1e-3, atol=1e-6)


def test_the_paper_s_protocols_have_the_paper_s_epsilon():
    assert {protocol.options("klda")["epsilon"] for protocol in PAPER.values()} == {1e-3}
