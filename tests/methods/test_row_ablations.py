"""ROW's ablations as methods: ROW's training, its variants' scores, and what follows from these."""

import pytest
import torch

from conftest import make_task
from contract.conftest import small_options, snapshot
from oarlock import Learner
from oarlock.data.images import prepare
from oarlock.methods import methods
from oarlock.methods.row import Row

TASKS = [make_task([0, 1]), make_task([2]), make_task([3, 4, 5])]
ABLATIONS = sorted(Row.variants)


@pytest.fixture(scope="module")
def taught(tiny_trunk):
    def teach(name):
        learner = Learner(name, trunk=tiny_trunk, memory=12, seed=3, **small_options(name))
        for task in TASKS:
            learner.learn(*task)
        return learner

    return {name: teach(name) for name in ["row", *ABLATIONS]}


def encoded(learner):
    images = prepare(make_task([0, 2, 4, 9], 4, seed=1)[0], learner.trunk.card.preprocessing)
    return learner.method.encode(images, learner.method.feature_sets(len(TASKS)))


def test_every_variant_of_row_is_a_method_without_variants_of_its_own():
    assert ABLATIONS == ["row-wp", "row-wp-md"]
    assert set(ABLATIONS) <= set(methods.all())
    assert "row" not in Row.variants
    assert [methods.all()[name].variants for name in ABLATIONS] == [{}, {}]


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_same_seed_gives_the_same_tensors_and_exactly_the_variants_scores(name, taught):
    row, ablation = taught["row"], taught[name]
    one, other = snapshot(row)[0], snapshot(ablation)[0]
    assert one.keys() == other.keys()
    trained = [key for key in one if key != "known_scores"]  # thresholds come from the scores, which are others
    assert [key for key in trained if not torch.equal(one[key], other[key])] == []
    with torch.no_grad():
        read = Row.variants[name](row.method, encoded(row))
        answer = ablation.method.scores(encoded(ablation))
        assert torch.equal(answer, read)
        assert not torch.allclose(answer.softmax(1), row.method.scores(encoded(row)).softmax(1), atol=1e-3)


@pytest.mark.parametrize("name", ABLATIONS)
def test_all_other_answers_follow_from_the_scores(name, taught):
    method = taught[name].method
    with torch.no_grad():
        rows = encoded(taught[name])
        scores = method.scores(rows)
        by_task = scores.split([2, 1, 3], 1)
        assert all(torch.equal(method.within_task(rows, task), part) for task, part in enumerate(by_task))
        expected = torch.stack([part.exp().sum(1).log() for part in by_task], 1)
        assert torch.allclose(method.task_scores(rows), expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(method.in_distribution(rows), scores.max(1).values)
