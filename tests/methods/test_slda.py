"""SLDA against scikit-learn's linear discriminant, and against another order of the same samples."""

import numpy as np
import torch
from sklearn.covariance import OAS, ShrunkCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from conftest import make_task
from oarlock import Learner
from oarlock.experiments.protocols import PAPER, PROTOCOLS

CLASSES = ["a", "b", "c", "d", "e", "f"]


def features_of(learner: Learner, images: np.ndarray) -> np.ndarray:
    return learner.trunk(torch.from_numpy(images).permute(0, 3, 1, 2)).double().numpy()


def taught(tiny_trunk, images: np.ndarray, labels: np.ndarray, sizes: list[int], **options) -> Learner:
    learner, first = Learner("slda", trunk=tiny_trunk, calibration=0.0, **options), 0
    for size in sizes:
        rows = np.isin(labels, CLASSES[first : first + size])
        learner.learn(images[rows], labels[rows].tolist())
        first += size
    return learner


class SameShrinkage(ShrunkCovariance):
    """(1−ε)·Σ + ε·I, in place of scikit-learn's target, the mean variance."""

    def fit(self, x, y=None):
        x = x - x.mean(0)
        self.covariance_ = (1 - self.shrinkage) * (x.T @ x / len(x)) + self.shrinkage * np.eye(x.shape[1])
        return self


def test_decisions_equal_scikit_learns_with_the_same_covariance_and_uniform_priors(tiny_trunk):
    images, labels = make_task(CLASSES, 20)
    test, _ = make_task(CLASSES, 30, seed=1)
    noise = np.random.default_rng(0).integers(0, 256, (200, 16, 16, 3), dtype=np.uint8)  # far from all: real choices
    learner = taught(tiny_trunk, images, np.array(labels), [2, 1, 3], shrinkage=1e-2)
    x, y = features_of(learner, images), np.array(labels)
    # With equally many images of each class, scikit-learn's covariance is the mean of the classes', as ours is.
    means = np.stack([x[y == name].mean(0) for name in CLASSES])
    lda = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=SameShrinkage(shrinkage=1e-2))
    lda.fit(x, y)
    assert np.allclose(lda.means_, means)
    for inputs in (test, noise):
        assert learner.predict(inputs).tolist() == lda.predict(features_of(learner, inputs)).tolist()
        ours = learner.predict_proba(inputs)
        np.testing.assert_allclose(ours, lda.predict_proba(features_of(learner, inputs)), atol=1e-3)
    assert len(set(learner.predict(noise))) > 1


def test_the_order_of_samples_and_of_classes_does_not_matter(tiny_trunk):
    images, labels = make_task(CLASSES, 9)
    shuffled = np.random.default_rng(1).permutation(len(images))
    one = taught(tiny_trunk, images, np.array(labels), [2, 2, 2])
    other = taught(tiny_trunk, images[shuffled], np.array(labels)[shuffled], [1, 4, 1])
    test, _ = make_task(CLASSES, 20, seed=1)
    a, b = one.predict_proba(test), other.predict_proba(test)
    columns = [other.classes_.tolist().index(name) for name in one.classes_]
    np.testing.assert_allclose(a, b[:, columns], atol=1e-3)


def test_it_has_no_memory_and_nothing_to_train(tiny_trunk):
    learner = taught(tiny_trunk, *(np.array(part) for part in make_task(CLASSES, 5)), [6], memory=1)
    assert list(learner.method.parameters()) == []
    assert len(learner.method.memory) == 0


def test_the_shrinkage_is_by_default_that_which_scikit_learn_s_oas_finds(tiny_trunk):
    images, labels = make_task(CLASSES, 4)  # as many images as features
    test, _ = make_task(CLASSES, 30, seed=1)
    learner = taught(tiny_trunk, images, np.array(labels), [2, 4])
    x, y = features_of(learner, images), np.array(labels)
    means = np.stack([x[y == name].mean(0) for name in CLASSES])
    pooled = OAS(assume_centered=True).fit(x - means[np.searchsorted(CLASSES, y)])
    assert 0.01 < pooled.shrinkage_ < 0.99
    precision = np.linalg.inv(pooled.covariance_)
    differences = features_of(learner, test)[:, None] - means
    distances = np.einsum("nci,ij,ncj->nc", differences, precision, differences)
    ours = learner.method.scores(torch.from_numpy(features_of(learner, test)).float()[:, None])
    np.testing.assert_allclose(ours, -distances / 2, rtol=1e-3, atol=1e-3)


def test_a_number_is_still_honoured_and_the_paper_s_protocols_have_theirs(tiny_trunk):
    images, labels = make_task(CLASSES[:2], 4)
    wanted = {option: taught(tiny_trunk, images, np.array(labels), [2], shrinkage=option) for option in (1e-3, 0.5)}
    assert [learner.method.gaussians.shrinkage for learner in wanted.values()] == [1e-3, 0.5]
    assert taught(tiny_trunk, images, np.array(labels), [2]).method.gaussians.shrinkage is None
    found = {name: protocol.options("slda")["shrinkage"] for name, protocol in PROTOCOLS.items()}
    assert {found[name] for name in PAPER} == {1e-4}
    assert (found["c10-5t-mini"], found["c10-5t-lite"]) == (0.001, 0.1)
