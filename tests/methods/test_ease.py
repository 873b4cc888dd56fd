"""EASE by loops in numpy: prototypes in all subspaces, mixtures of them for earlier classes, weighted cosines; and
the authors' numbers for the latter two."""

import numpy as np
import pytest
import torch

from conftest import make_task
from methods.test_supsup import values
from oarlock import Learner, load
from oarlock.data.images import prepare
from oarlock.methods.ease import SHARPNESS, CosineHead

TASKS = [["a", "b"], ["c", "d", "e"], ["f"]]
# Of the authors' `solve_sim_reset` and `forward_reweight` (github.com/sun-hailong/CVPR24-Ease, commit 6d67508), with
# three tasks of two classes, six features and α = 0.3.
THEIR_MIXTURES = [
    [-0.6098407, 0.7089061, -0.3114507, -0.4152353, 0.546895, -0.2081536],
    [0.8791619, 0.5042257, 0.8749, -0.1212869, 0.3986436, -0.8118935],
]  # of the first class, in the second and in the third subspace
THEIR_SCORES = [
    [0.0945083, 0.0908658, 0.1377118, -0.1588278, -0.5699859, -0.6360466],
    [-0.2526531, -0.3088053, 0.2899855, 0.2493063, 0.2423924, 0.0545308],
]
OPTIONS = {"epochs": 2, "width": 8, "batch": 8, "calibration": 0.0, "adapt_last": 1}


@pytest.fixture(scope="module")
def learner(tiny_trunk) -> Learner:
    learner = Learner("ease", trunk=tiny_trunk, alpha=0.3, **OPTIONS)
    for labels in TASKS:
        learner.learn(*make_task(labels))
    return learner


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def features(learner: Learner, images: np.ndarray, subspace: int) -> np.ndarray:
    method = learner.method
    with torch.no_grad():
        below = method.protector.below(prepare(images, learner.trunk.card.preprocessing))
        return method.protector(below, subspace).double().numpy()


def expected_prototypes(learner: Learner) -> dict[tuple[int, int], list[np.ndarray]]:
    """By task and subspace."""
    found = {}
    for task, labels in enumerate(TASKS):
        for subspace in range(task + 1):  # means, of what was learned then
            found[task, subspace] = [features(learner, make_task([name])[0], subspace).mean(0) for name in labels]
    for subspace in range(1, 3):
        for task in range(subspace):
            mixed = []
            for old in found[task, task]:
                weights, values = [], []
                for later in range(subspace, 3):
                    for in_old, in_new in zip(found[later, task], found[later, subspace], strict=True):
                        weights.append(np.exp(cosine(old, in_old)))
                        values.append(in_new)
                mixed.append(np.average(values, axis=0, weights=weights))
            found[task, subspace] = mixed
    return found


def test_prototypes_are_means_and_mixtures_of_later_classes(learner: Learner) -> None:
    expected = expected_prototypes(learner)
    ours = learner.method.prototypes.numpy()
    assert ours.shape[:2] == (6, 3)
    for (task, subspace), rows in expected.items():
        where = learner.method.class_slice(task)
        np.testing.assert_allclose(ours[where, subspace], np.stack(rows), rtol=1e-3, atol=1e-3)


def test_scores_are_cosines_in_the_own_subspace_and_a_little_of_the_others(learner: Learner) -> None:
    images = make_task(["a", "d", "f"], 3, seed=1)[0]
    prototypes, seen = expected_prototypes(learner), [features(learner, images, subspace) for subspace in range(3)]
    expected = []
    for row in range(len(images)):
        scores = []
        for task, labels in enumerate(TASKS):
            for place in range(len(labels)):
                near = [cosine(seen[j][row], prototypes[task, j][place]) for j in range(3)]
                scores.append(near[task] + 0.3 / 2 * (sum(near) - near[task]))
        expected.append(scores)
    method = learner.method
    with torch.no_grad():
        encoded = method.encode(prepare(images, learner.trunk.card.preprocessing), method.feature_sets(3))
        np.testing.assert_allclose(method.scores(encoded).numpy(), 10 * np.array(expected), rtol=1e-3, atol=1e-3)
    best = np.argmax(expected, axis=1)
    assert learner.predict(images).tolist() == [learner.classes_[index] for index in best]


def test_mixtures_and_scores_are_the_authors(tiny_trunk) -> None:
    method = Learner("ease", trunk=tiny_trunk, alpha=0.3, **OPTIONS).method
    method.classes_per_task, method.prototypes = [2, 2, 2], values((6, 3, 6), 0.7, 0.3)
    for earlier, later in ((0, 1), (0, 2), (1, 2)):
        method.mix_prototypes(earlier, later)
    np.testing.assert_allclose(method.prototypes[0, 1:], THEIR_MIXTURES, atol=1e-5)
    scores = method.scores(values((2, 3, 6), 0.23, 0.11))
    np.testing.assert_allclose(scores / SHARPNESS, THEIR_SCORES, atol=1e-5)


def test_an_adapter_is_its_own_tasks_and_moves(learner: Learner, tmp_path) -> None:
    layers = [[layer.fc2.weight for layer in of_task] for of_task in learner.method.protector.layers]
    assert len(layers) == 3 and all(weight.abs().max() > 1e-4 for of_task in layers[:2] for weight in of_task)
    assert not any(weight.any() for weight in layers[2])  # a single class teaches nothing
    assert len(learner.method.memory) == 0
    images = make_task(["a", "d", "f"], 3, seed=1)[0]
    learner.save(tmp_path / "ease.oar")
    assert np.array_equal(load(tmp_path / "ease.oar").predict_proba(images), learner.predict_proba(images))


def test_the_head_that_an_adapter_is_trained_by_compares_directions() -> None:
    head = CosineHead(4, 2)
    head.reset(torch.Generator().manual_seed(0))
    seen = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(head(7 * seen), head(seen))
    expected = [[10 * cosine(x, w) for w in head.weight.detach().numpy()] for x in seen.numpy()]
    np.testing.assert_allclose(head(seen).detach().numpy(), expected, rtol=1e-5)
