"""OAR: ROW's training bit for bit, ROW's scores among its own, and the factor under the bare trunk by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from conftest import make_task
from contract.conftest import small_options, snapshot
from oarlock import Learner
from oarlock.data.images import prepare
from oarlock.methods.oar import Oar
from oarlock.nets.trunks import Trunk

TASKS = [make_task([0, 1]), make_task([2, 3, 4]), make_task([5])]

Teach = Callable[..., Learner]


@pytest.fixture
def teach(tiny_trunk: Trunk) -> Teach:
    def make(name: str = "oar", **options: object) -> Learner:
        learner = Learner(name, trunk=tiny_trunk, memory=12, seed=3, **small_options(name, **options))
        for task in TASKS:
            learner.learn(*task)
        return learner

    return make


def oar_of(learner: Learner) -> Oar:
    assert isinstance(learner.method, Oar)
    return learner.method


def encoded(learner: Learner) -> torch.Tensor:
    images = prepare(make_task([0, 2, 4, 9], 4, seed=1)[0], learner.trunk.card.preprocessing)
    return learner.method.encode(images, learner.method.feature_sets(len(TASKS)))


def test_all_that_is_trained_is_row_s_and_row_s_scores_are_a_variant(teach: Teach) -> None:
    oar, row = teach("oar"), teach("row")
    ours, theirs = snapshot(oar)[0], snapshot(row)[0]
    trained = [name for name in theirs if ".encoded" not in name and name != "known_scores"]
    assert any("wp_heads" in name for name in trained)
    assert [name for name in trained if not torch.equal(theirs[name], ours[name])] == []
    with torch.no_grad():
        read = Oar.variants["row"](oar_of(oar), encoded(oar))
        assert torch.equal(read, row.method.scores(encoded(row)))
        for name, ablation in row.method.variants.items():
            assert torch.equal(Oar.variants[name](oar_of(oar), encoded(oar)), ablation(row.method, encoded(row)))
        assert not torch.allclose(read.softmax(1), oar.method.scores(encoded(oar)).softmax(1), atol=1e-3)


def test_without_its_terms_it_answers_as_row(teach: Teach) -> None:
    oar, row = teach("oar", gamma=1.0, beta=0.0), teach("row")
    assert np.array_equal(oar.predict_proba(TASKS[1][0]), row.predict_proba(TASKS[1][0]))


def test_the_trunks_factor_is_an_exponential_of_the_squared_distance_to_the_nearest_class(teach: Teach) -> None:
    learner = teach(beta=0.6)
    oar, images = oar_of(learner), prepare(TASKS[1][0], learner.trunk.card.preprocessing)
    seen = oar.encode(images, oar.feature_sets(3))
    bare = oar.trunk.below_and_bare(images, 0)[1].flatten(1).double().numpy()
    pooled = oar.trunk_gaussians
    white = pooled.whitening.double().numpy()
    squared = (((bare[:, None] - pooled.means.double().numpy()) @ white.T) ** 2).sum(-1)
    nearest = [squared[:, :2].min(1), squared[:, 2:5].min(1), squared[:, 5:].min(1)]
    with torch.no_grad():
        assert np.allclose(oar.task_nearness(seen).numpy(), -0.3 * np.stack(nearest, 1), rtol=1e-3, atol=1e-3)
