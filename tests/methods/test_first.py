"""First-session adaptation: after the first task the discriminant of all images at once, on the same features."""

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from conftest import make_task
from methods.test_closed_forms import assert_same
from oarlock import Learner
from oarlock.data.images import prepare

FIRST, REST = ["a", "b"], ["c", "d", "e", "f"]
OPTIONS = {"epochs": 3, "width": 8, "batch": 8, "calibration": 0.0, "adapt_last": 2}


def taught(tiny_trunk, rest: list[list[str]], **options) -> Learner:
    learner = Learner("first", trunk=tiny_trunk, **OPTIONS, **options).learn(*make_task(FIRST))
    for labels in rest:
        learner.learn(*make_task(labels))
    return learner


def seen_by(learner: Learner, images: np.ndarray) -> np.ndarray:
    """What the adapted trunk sees, beside the bare one's stages, written out."""
    adapters = learner.method.network.adapters
    with torch.no_grad():
        activations, bare = adapters.below_and_bare(prepare(images, learner.trunk.card.preprocessing))
        parts = [adapters(activations)]
        if learner.method.config.bare:
            parts.append(bare.flatten(1)[:, : learner.trunk.bare_dim])
        return torch.cat(parts, 1).double().numpy()


class WithinClasses(OAS):
    """The shrinkage of residuals, which have no mean to take off."""

    def __init__(self) -> None:
        super().__init__(assume_centered=True)


@pytest.mark.parametrize("bare", [False, True])
def test_answers_are_those_of_one_discriminant_on_all_images(tiny_trunk, bare: bool) -> None:
    learner = taught(tiny_trunk, [["c"], ["d", "e", "f"]], bare=bare)
    images, labels = make_task(FIRST + REST)
    seen, test = seen_by(learner, images), make_task(FIRST + REST, 20, seed=1)[0]
    means = np.stack([seen[np.array(labels) == name].mean(0) for name in FIRST + REST])
    classes = zip(FIRST + REST, means, strict=True)
    within = np.concatenate([seen[np.array(labels) == name] - mean for name, mean in classes])
    inverse = np.linalg.inv(WithinClasses().fit(within).covariance_)
    rows = seen_by(learner, test)
    distances = np.stack([((rows - mean) @ inverse * (rows - mean)).sum(1) for mean in means], 1)
    assert learner.predict(test).tolist() == [(FIRST + REST)[index] for index in distances.argmin(1)]
    z = np.exp(-(distances - distances.min(1, keepdims=True)) / 2)
    np.testing.assert_allclose(learner.predict_proba(test), z / z.sum(1, keepdims=True), atol=5e-3)
    if not bare:
        lda = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=WithinClasses()).fit(seen, labels)
        assert np.mean(lda.predict(rows) == learner.predict(test)) > 0.98  # its covariance is a mean of classes' own


def test_after_the_first_task_order_and_cut_do_not_matter(tiny_trunk) -> None:
    one, *others = (
        taught(tiny_trunk, rest)
        for rest in ([["c", "d"], ["e", "f"]], [["f"], ["e", "c", "d"]], [["d", "f", "c", "e"]])
    )
    for other in others:
        assert_same(one, other)


def test_only_the_first_task_trains_and_its_training_moves_adapters(tiny_trunk) -> None:
    one, more = taught(tiny_trunk, []), taught(tiny_trunk, [["c"], ["d"]])
    for name, value in one.method.network.state_dict().items():
        assert torch.equal(value, more.method.network.state_dict()[name])
    prepared = one.prepare_task(*make_task(["z"])).task
    assert [phase.name for phase in one.method.phases(prepared)] == ["statistics"]
    images = make_task(FIRST, 5, seed=1)[0]
    bare = one.trunk(prepare(images, one.trunk.card.preprocessing)).numpy()
    assert np.abs(seen_by(one, images) - bare).max() > 0.01
