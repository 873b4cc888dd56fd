"""Detectors against another library's, whose scores are higher for what is less known."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor

from oarlock.detectors.normalised import nearest_normalised, normalised, relative_normalised
from oarlock.detectors.pooled import PooledGaussians
from oarlock.detectors.scores import confidence, energy, gen, knn, max_logit
from oarlock.detectors.statistics import nearest, relative
from oarlock.detectors.vim import vim

theirs = pytest.importorskip("pytorch_ood.detector")

CLASSES, DIM, IMAGES = 4, 12, 60


def features(dim: int = DIM, spread: float = 1.0, images: int = IMAGES) -> tuple[Tensor, Tensor, Tensor]:
    """Training features of a few classes in a metric of their own, with labels, and inputs from here and there."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(images)
    means = 2 + 2 * torch.randn(CLASSES, dim, generator=random)
    mixing = spread * (torch.eye(dim) + torch.randn(dim, dim, generator=random) / (2 * dim**0.5))
    points = means[labels] + torch.randn(len(labels), dim, generator=random) @ mixing
    return points, labels, 3 * torch.randn(50, dim, generator=random) + points[:50] * (torch.arange(50) % 2)[:, None]


def pooled(points: Tensor, labels: Tensor, shrinkage: float | None = 0.0) -> PooledGaussians:
    found = PooledGaussians(points.shape[1], shrinkage)
    found.add(points, labels, CLASSES)
    return found


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_outputs_of_a_head(scale: float) -> None:
    logits = scale * torch.randn(20, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(max_logit(logits), -theirs.MaxLogit(None).predict_logits(logits))
    torch.testing.assert_close(energy(logits), -theirs.EnergyBased(None).predict_logits(logits))
    probabilities = logits.softmax(1)
    torch.testing.assert_close(confidence(probabilities), -theirs.MaxSoftmax(None).predict_logits(logits))
    if scale == 1:  # theirs is a mean, and clamps what is nearly 0 or 1
        torch.testing.assert_close(gen(probabilities), -7 * theirs.GEN(None).predict_logits(logits))


def test_mahalanobis_distances() -> None:
    """Theirs is half the square, of a scatter that is not divided by the number of images."""
    points, labels, inputs = features()
    expected = 2 * len(points) * theirs.Mahalanobis(None).fit_features(points, labels).predict_features(inputs)
    torch.testing.assert_close(nearest(inputs, pooled(points, labels)).square(), expected, rtol=1e-3, atol=1e-2)


def test_relative_mahalanobis_distances() -> None:
    points, labels, inputs = features()
    expected = -len(points) * theirs.RMD(None).fit_features(points, labels).predict_features(inputs)
    torch.testing.assert_close(relative(inputs, pooled(points, labels)), expected, rtol=1e-3, atol=1e-2)


def test_statistics_of_normalised_features_are_the_more_exact_the_narrower_classes_are() -> None:
    points, labels, _ = features()
    means = torch.stack([points[labels == label].mean(0) for label in range(CLASSES)])
    deviations = (points[:IMAGES] - means[0]).repeat(CLASSES, 1)  # one covariance for all, as the statistics have it
    off = []
    for spread in (0.1, 0.01):
        narrow = means[labels] + spread * deviations
        exact, ours = pooled(F.normalize(narrow), labels), normalised(pooled(narrow, labels))
        parts = ((ours.means, exact.means), (ours.covariance, exact.covariance))
        off.append([float((one - other).norm() / other.norm()) for one, other in parts])
    assert off[0][0] < 0.01 and off[0][1] < 0.05
    assert off[1][0] < off[0][0] / 50 and off[1][1] < off[0][1] / 5


def test_on_normalised_features_wide_classes_are_told_as_well() -> None:
    points, labels, inputs = features(dim=40, spread=3.0, images=400)
    statistics = pooled(points, labels)
    for ours, other in ((nearest_normalised, theirs.Mahalanobis), (relative_normalised, theirs.RMD)):
        expected = other(None).fit_features(F.normalize(points), labels).predict_features(F.normalize(inputs))
        assert spearmanr(ours(inputs, statistics), -expected).statistic > 0.95
        torch.testing.assert_close(ours(3 * inputs, statistics), ours(inputs, statistics), rtol=1e-3, atol=1e-3)


def test_nearest_neighbours() -> None:
    points, labels, inputs = features()
    own = labels < 2
    expected = -theirs.KNN(None, k=5).fit_features(points[own], labels[own]).predict_features(inputs).float()
    torch.testing.assert_close(knn(inputs, points, own), expected, rtol=1e-4, atol=1e-4)
    few = torch.arange(len(points)) < 3
    expected = -theirs.KNN(None, k=3).fit_features(points[few], labels[few]).predict_features(inputs).float()
    torch.testing.assert_close(knn(inputs, points, few), expected, rtol=1e-4, atol=1e-4)
    assert (knn(inputs, points, torch.zeros_like(own)) == -torch.inf).all()


def test_virtual_logits_to_the_scale_of_the_virtual_one() -> None:
    """Where classes are as far from each other, their origin is ours. The scale follows from features there, from
    statistics here."""
    random = torch.Generator().manual_seed(1)
    labels = torch.arange(CLASSES).repeat_interleave(IMAGES)
    points = torch.randn(len(labels), DIM, generator=random)
    for label in range(CLASSES):
        points[labels == label] -= points[labels == label].mean(0)
    points = points @ torch.linalg.inv(torch.linalg.cholesky(points.T @ points / len(points)).T)  # within: identity
    simplex, scales = torch.eye(CLASSES, DIM), torch.linspace(0.5, 3, DIM)
    points = scales * (points + 4 * (simplex - simplex.mean(0))[labels])
    inputs = 3 * torch.randn(40, DIM, generator=random)
    statistics = pooled(points, labels)
    bias = -statistics.whitened.square().sum(1) / 2
    other = theirs.ViM(None, d=DIM // 2, w=statistics.directions, b=bias).fit_features(points, labels)
    logits = statistics.discriminants(inputs).logsumexp(1)
    ratio = (logits - vim(inputs, statistics)) / (logits + other.predict_features(inputs))
    assert np.allclose(ratio, ratio[0], rtol=1e-3) and 0.8 < ratio[0] < 1.25
