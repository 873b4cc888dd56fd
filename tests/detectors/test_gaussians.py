"""Distances against SciPy's, with the covariance built by hand."""

import copy

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, mahalanobis
from sklearn.covariance import OAS, oas
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge

from oarlock.detectors.gaussians import ClassGaussians
from oarlock.detectors.pooled import PooledGaussians
from oarlock.detectors.vim import vim


def make_points(counts: list[int], dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated float32 points with classes mixed together."""
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(dim, dim))
    labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
    centres = random.normal(0, 3, (len(counts), dim))
    return (centres[labels] + random.normal(size=(len(labels), dim)) @ mixing).astype(np.float32), labels


def shrunk_covariance(points: np.ndarray, labels: np.ndarray, shrinkage: float) -> np.ndarray:
    dim, classes = points.shape[1], np.unique(labels)
    total = np.zeros((dim, dim))
    for label in classes:
        members = points[labels == label].astype(np.float64)
        centre = members.mean(0)
        total += sum(np.outer(x - centre, x - centre) for x in members) / len(members)
    return (1 - shrinkage) * total / len(classes) + shrinkage * np.eye(dim)


def fit(points: np.ndarray, labels: np.ndarray, shrinkage: float) -> ClassGaussians:
    gaussians = ClassGaussians(len(np.unique(labels)), points.shape[1], shrinkage)
    gaussians.fit(torch.from_numpy(points), torch.from_numpy(labels))
    return gaussians


@pytest.mark.parametrize(
    ("counts", "dim", "shrinkage"),
    [
        ([30, 30, 30], 6, 0.2),
        ([40, 3, 17, 8], 6, 0.2),  # uneven: every class counts the same in the mean
        ([25, 1], 5, 0.2),  # a class of one image has no spread of its own
        ([1, 1, 1], 4, 0.2),  # nothing but the identity is left
        ([1], 4, 0.5),
        ([10, 10], 24, 0.2),  # fewer images than features: singular without shrinkage
        ([50, 60], 1, 0.1),
        ([50, 60], 5, 1.0),
    ],
)
def test_distances_are_mahalanobis_distances_under_the_shrunk_mean_class_covariance(counts, dim, shrinkage):
    points, labels = make_points(counts, dim, seed=sum(counts))
    gaussians = fit(points, labels, shrinkage)
    inverse = np.linalg.inv(shrunk_covariance(points, labels, shrinkage))
    means = [points[labels == label].astype(np.float64).mean(0) for label in range(len(counts))]
    queries = np.random.default_rng(0).normal(0, 4, (9, dim)).astype(np.float32)
    expected = [[mahalanobis(query, mean, inverse) for mean in means] for query in queries]
    np.testing.assert_allclose(gaussians.distances(torch.from_numpy(queries)).numpy(), expected, rtol=1e-4)


def test_a_class_with_many_images_does_not_outweigh_one_with_few():
    wide = np.array([[10.0, 0], [-10, 0], [0, 10], [0, -10]], dtype=np.float32)
    narrow = np.tile(np.array([[100.0, 100]], dtype=np.float32), (400, 1))
    points, labels = np.concatenate([wide, narrow]), np.repeat([0, 1], [4, 400])
    gaussians = fit(points, labels, 0.2)
    variance = 0.8 * (50 + 0) / 2 + 0.2
    assert gaussians.distances(torch.tensor([[3.0, 4.0]]))[0, 0].item() == pytest.approx(5 / variance**0.5, rel=1e-5)


def test_a_class_mean_is_at_distance_zero_from_itself():
    points, labels = make_points([12, 9], 4, seed=1)
    gaussians = fit(points, labels, 0.2)
    assert gaussians.distances(gaussians.means).diagonal().abs().max() < 1e-5


@pytest.mark.parametrize("dim", [4, 40])
def test_means_and_whitening_survive_saving_and_loading_bit_for_bit(dim: int):
    points, labels = make_points([12, 9], dim, seed=1)
    gaussians, again = fit(points, labels, 0.2), ClassGaussians(2, dim, 0.2)
    again.rebuild(gaussians.rank)
    again.load_state_dict(gaussians.state_dict())
    queries = torch.from_numpy(points)
    assert torch.equal(gaussians.distances(queries), again.distances(queries))


def test_fewer_images_than_features_are_kept_as_the_directions_they_vary_along():
    """What a file has of them grows with the images, and not with the square of the features."""
    points, labels = make_points([12, 9, 1], 40, seed=1)
    gaussians = fit(points, labels, 0.2)
    assert gaussians.rank == 12 + 9 + 1 - 3 and gaussians.whitening.shape == (19, 40)
    whitened = gaussians.whiten(torch.eye(40)).double().numpy()
    np.testing.assert_allclose(
        np.linalg.inv(whitened @ whitened.T), shrunk_covariance(points, labels, 0.2), rtol=1e-4, atol=1e-4
    )
    assert fit(points[:, :19], labels, 0.2).whitening.shape == (19, 19)


def test_fitting_does_not_depend_on_the_order_of_the_images():
    points, labels = make_points([20, 20], 5, seed=2)
    order = np.random.default_rng(0).permutation(40)
    a, b = fit(points, labels, 0.2), fit(points[order], labels[order], 0.2)
    torch.testing.assert_close(a.whitening, b.whitening)
    torch.testing.assert_close(a.means, b.means)


def pool(points: np.ndarray, labels: np.ndarray, groups: list[list[int]], shrinkage: float | None) -> PooledGaussians:
    """Classes taken in group by group, as tasks bring them."""
    pooled = PooledGaussians(points.shape[1], shrinkage)
    for group in groups:
        mine = np.isin(labels, group)
        local = np.searchsorted(group, labels[mine])
        pooled.add(torch.from_numpy(points[mine]), torch.from_numpy(local), len(group))
    return pooled


@pytest.mark.parametrize("shrinkage", [0.05, 0.5, None])
@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1], [2], [3]]])
def test_pooled_distances_are_under_the_scatter_of_all_images_around_their_class_means(groups, shrinkage):
    points, labels = make_points([40, 3, 17, 1], 6, seed=5)
    pooled = pool(points, labels, groups, shrinkage)
    means = [points[labels == label].astype(np.float64).mean(0) for label in range(4)]
    centred = np.array([x - means[y] for x, y in zip(points, labels, strict=True)])
    within = sum(np.outer(row, row) for row in centred) / len(points)
    if shrinkage is None:
        shrunk, chosen = oas(centred, assume_centered=True)
        assert 0.01 < chosen < 0.99
    else:
        shrunk = (1 - shrinkage) * within + shrinkage * np.eye(6)
    inverse = np.linalg.inv(shrunk)
    queries = np.random.default_rng(0).normal(0, 4, (9, 6)).astype(np.float32)
    expected = [[mahalanobis(query, mean, inverse) for mean in means] for query in queries]
    np.testing.assert_allclose(pooled.distances(torch.from_numpy(queries)).numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("shrinkage", [1e-4, None])
def test_many_tasks_of_few_images_add_up_to_all_at_once_in_any_order(shrinkage):
    """With sums rounded to single precision after every task scores are off by a tenth at a shrinkage of 1e-4."""
    points, labels = make_points([4] * 30, 200, seed=3)
    order = np.random.default_rng(1).permutation(30)
    whole, one_by_one = (
        pool(points, labels, groups, shrinkage) for groups in ([list(range(30))], [[label] for label in order])
    )
    torch.testing.assert_close(one_by_one.covariance, whole.covariance, rtol=1e-12, atol=1e-12)
    again = PooledGaussians(200, shrinkage)
    again.rebuild(30)
    again.load_state_dict(one_by_one.state_dict())
    expected = whole.discriminants(torch.from_numpy(points))
    for pooled in (one_by_one, again):
        found = pooled.discriminants(torch.from_numpy(points))[:, np.argsort(order)]
        assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


def test_pooled_means_of_earlier_classes_stay_bit_for_bit():
    points, labels = make_points([12, 9, 30], 4, seed=1)
    first, all_ = pool(points, labels, [[0, 1]], 0.1), pool(points, labels, [[0, 1], [2]], 0.1)
    assert torch.equal(all_.means[:2], first.means)


@pytest.mark.parametrize("shrinkage", [0.1, None])
def test_pooled_statistics_of_single_images_are_finite(shrinkage):
    points, labels = make_points([1, 1], 4, seed=1)
    pooled = pool(points, labels, [[0], [1]], shrinkage)
    distances = pooled.distances(torch.from_numpy(points))
    assert distances.isfinite().all() and distances.argmin(1).tolist() == labels.tolist()


def test_pooled_statistics_survive_rebuilding_and_loading_bit_for_bit():
    points, labels = make_points([12, 9], 4, seed=1)
    pooled, again = pool(points, labels, [[0], [1]], 0.1), PooledGaussians(4, 0.1)
    again.rebuild(2)
    again.load_state_dict(pooled.state_dict())
    queries = torch.from_numpy(points)
    assert torch.equal(pooled.distances(queries), again.distances(queries))
    for statistics in (pooled, again):
        statistics.add(queries, torch.zeros(21, dtype=torch.long), 1)
    assert torch.equal(pooled.distances(queries), again.distances(queries))


def test_pooled_statistics_of_nothing_can_be_loaded():
    for dim in (0, 3):
        again = PooledGaussians(dim)
        again.load_state_dict(PooledGaussians(dim).state_dict())
        assert torch.equal(again.whitening, torch.eye(dim)) and not again.centre.any()


def test_discriminants_and_relative_distances_are_those_of_plain_algebra() -> None:
    torch.manual_seed(0)
    labels = torch.arange(4).repeat_interleave(9)
    pooled = PooledGaussians(7)
    pooled.add(torch.randn(36, 7) + 3 * torch.randn(4, 7)[labels], labels, 4)
    inputs, means = 2 * torch.randn(5, 7).double(), pooled.means.double()
    within = torch.linalg.inv(pooled.whitening.double().T @ pooled.whitening.double())
    centred = means - means.mean(0)
    total = within + centred.T @ centred / 4

    def squared(mean: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
        return ((inputs - mean) @ torch.linalg.inv(covariance) * (inputs - mean)).sum(1)

    to_classes = torch.stack([squared(mean, within) for mean in means], 1)
    background = squared(means.mean(0), total)
    torch.testing.assert_close(
        pooled.relative(inputs.float()).double(), background[:, None] - to_classes, atol=1e-3, rtol=1e-4
    )
    constant = pooled.discriminants(inputs.float()).double() + to_classes / 2
    torch.testing.assert_close(constant, constant[:, :1].expand(-1, 4), atol=1e-3, rtol=1e-4)


def test_ridge_outputs_are_those_of_a_regression_on_one_hot_classes() -> None:
    points, labels = make_points([30, 30, 30], 5, seed=3)
    pooled = pool(points, labels, [[0, 1], [2]], shrinkage=0.0)
    theirs = Ridge(alpha=1e-9).fit(points.astype(np.float64), np.eye(3)[labels]).predict(points.astype(np.float64))
    np.testing.assert_allclose(pooled.ridge(torch.from_numpy(points)).numpy(), theirs - 1 / 3, atol=1e-4)


def test_a_virtual_logit_is_what_principal_components_leave() -> None:
    points, labels = make_points([40, 40, 40], 7, seed=5)
    pooled, others = pool(points, labels, [[0, 1], [2]], shrinkage=0.0), 3 * make_points([20], 7, seed=6)[0]
    components = PCA(3).fit(points)  # half of seven, rounded down

    def left(rows: np.ndarray) -> np.ndarray:
        return np.linalg.norm(rows - components.inverse_transform(components.transform(rows)), axis=1)

    means = np.stack([points[labels == label].mean(0) for label in range(3)])
    within = np.mean([np.cov(points[labels == label].T, ddof=0) for label in range(3)], 0)
    middle = means.mean(0)

    def logits(rows: np.ndarray) -> np.ndarray:
        along = (rows - middle) @ np.linalg.solve(within, (means - middle).T)
        return along - np.einsum("cd,cd->c", means - middle, np.linalg.solve(within, (means - middle).T).T) / 2

    scale = logits(means).max(1).mean() / np.sqrt(np.square(left(points)).mean())
    expected = np.log(np.exp(logits(others)).sum(1)) - scale * left(others)
    np.testing.assert_allclose(vim(torch.from_numpy(others), pooled).numpy(), expected, rtol=1e-3, atol=1e-2)


def test_a_virtual_logit_of_few_images_does_not_depend_on_how_they_are_summed() -> None:
    """Most directions are as empty as each other, and none of them more leading than another."""
    points, labels = make_points([5, 5, 5], 60, seed=2)
    inputs = torch.randn(20, 60, generator=torch.Generator().manual_seed(0)) * 3
    turned = np.arange(len(points))[::-1].copy()
    one = vim(inputs, pool(points, labels, [[0, 1, 2]], None))
    other = vim(inputs, pool(points[turned], labels[turned], [[0], [1], [2]], None))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_virtual_logit_knows_of_classes_that_came_later_and_survives_a_copy() -> None:
    points, labels = make_points([30, 30], 6, seed=1)
    pooled, rows = pool(points, labels, [[0]], shrinkage=None), torch.from_numpy(points)
    alone = vim(rows, pooled)
    pooled.add(rows[labels == 1], torch.zeros(30, dtype=torch.long), 1)
    whole = pool(points, labels, [[0], [1]], shrinkage=None)
    assert torch.equal(vim(rows, pooled), vim(rows, whole))
    assert not torch.equal(alone, vim(rows, pooled))
    assert torch.equal(vim(rows, copy.deepcopy(pooled)), vim(rows, pooled))


def test_one_class_is_near_by_its_plain_distance() -> None:
    pooled = PooledGaussians(3)
    pooled.add(torch.randn(9, 3), torch.zeros(9, dtype=torch.long), 1)
    inputs = torch.randn(4, 3)
    assert torch.equal(pooled.relative(inputs), -pooled.distances(inputs).square())


def test_cosines_are_those_between_whitened_vectors_from_the_middle_of_all_means():
    random = np.random.default_rng(0)
    labels = np.repeat(range(3), 20)
    points = random.normal(size=(60, 5)) + 3 * random.normal(size=(3, 5))[labels]
    pooled = PooledGaussians(5)
    pooled.add(torch.from_numpy(points).float(), torch.from_numpy(labels), classes=3)
    means = np.stack([points[labels == label].mean(0) for label in range(3)])
    within = points - means[labels]
    covariance = OAS(assume_centered=True).fit(within).covariance_
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    theirs = 1 - cdist((points - means.mean(0)) @ root.T, (means - means.mean(0)) @ root.T, "cosine")
    ours = pooled.cosines(torch.from_numpy(points).float()).numpy()
    assert np.allclose(ours, theirs, atol=1e-4)
    far = means.mean(0) + 7 * (points - means.mean(0))
    assert np.allclose(pooled.cosines(torch.from_numpy(far).float()).numpy(), theirs, atol=1e-4)
