"""OAR: ROW's training bit for bit, ROW's scores among its own, and the factor under the bare trunk by hand."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from sklearn.covariance import OAS, ShrunkCovariance

from conftest import make_task
from contract.conftest import (
    Checkpoints,
    NewLearner,
    assert_same,
    new_learner,
    resumed,
    small_options,
    snapshot,
)
from contract.conftest import teach as teach_task
from oarlock import Learner, load
from oarlock.data.images import prepare
from oarlock.methods.oar import Oar
from oarlock.modelfile.inspect import verify
from oarlock.nets.trunks import Trunk

__all__ = ["new_learner"]  # a fixture

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


def test_the_trunks_part_is_the_squared_distance_to_the_class_or_to_the_nearest_of_its_task(teach: Teach) -> None:
    learner = teach(beta=0.6, delta=1.0)
    oar, images = oar_of(learner), prepare(TASKS[1][0], learner.trunk.card.preprocessing)
    seen = oar.encode(images, oar.feature_sets(3))
    bare = oar.trunk.below_and_bare(images, 0)[1].flatten(1).double().numpy()
    pooled = oar.trunk_gaussians
    white = pooled.whitening.double().numpy()
    squared = (((bare[:, None] - pooled.means.double().numpy()) @ white.T) ** 2).sum(-1)
    nearest = np.stack([squared[:, :2].min(1), squared[:, 2:5].min(1), squared[:, 5:].min(1)], 1)
    with torch.no_grad():
        for ours, theirs in ((oar.class_nearness(seen), squared), (oar.task_nearness(seen), nearest)):
            assert np.allclose(ours.double().numpy(), -0.3 * theirs, rtol=1e-3, atol=1e-3)
        oar.config = dataclasses.replace(oar.config, delta=0.0)
        between = oar.class_nearness(seen)
    assert torch.equal(between[:, 0], between[:, 1]) and torch.equal(between[:, 2], between[:, 4])


CLOSED = {"few": 60, "looks": 2, "tune_steps": 0}
TUNED = {"few": 60, "tune_classes": 2, "tune_steps": 6, "tune_last": 2, "looks": 2}


def test_the_trunk_is_tuned_to_the_first_task_and_never_again(teach: Teach, tiny_trunk: Trunk) -> None:
    learner, before = teach(**TUNED), dict(tiny_trunk.model.state_dict())
    oar = oar_of(learner)
    assert oar.tuning.done and oar.trunk is not learner.trunk is tiny_trunk
    assert all(torch.equal(value, before[name]) for name, value in tiny_trunk.model.state_dict().items())
    image = prepare(TASKS[0][0][:2], tiny_trunk.card.preprocessing)
    assert not torch.equal(oar.trunk(image), tiny_trunk(image))
    first = Learner("oar", trunk=tiny_trunk, memory=12, seed=3, **small_options("oar", **TUNED)).learn(*TASKS[0])
    assert torch.equal(oar_of(first).trunk(image), oar.trunk(image))


def test_a_tuned_model_is_found_again_as_it_was(teach: Teach, tmp_path: Path) -> None:
    learner = teach(**TUNED)
    learner.save(tmp_path / "model.oar")
    again = load(tmp_path / "model.oar")
    assert np.array_equal(again.predict_proba(TASKS[1][0]), learner.predict_proba(TASKS[1][0]))
    assert verify(tmp_path / "model.oar").holds
    assert np.allclose(again.accelerate().predict_proba(TASKS[1][0]), learner.predict_proba(TASKS[1][0]), atol=1e-4)
    task = make_task([7, 8])
    assert_same(snapshot(again.learn(*task)), snapshot(learner.learn(*task)))


def test_tuning_stopped_anywhere_and_resumed_equals_never_stopped(new_learner: NewLearner) -> None:
    whole = new_learner("oar", **TUNED)
    kept = Checkpoints(whole)
    teach_task(whole, TASKS[0], kept)
    for saved in kept.seen:
        assert_same(snapshot(resumed(saved, TASKS[0])), snapshot(whole))


def test_a_first_task_of_too_few_classes_is_not_tuned_to(new_learner: NewLearner) -> None:
    for options in ({"tune_classes": 3}, {"tune_steps": 0}):
        assert not oar_of(new_learner("oar", **TUNED | options).learn(*TASKS[0])).tuning.names


def test_few_images_leave_the_adapters_closed_and_the_features_are_the_trunks(teach: Teach) -> None:
    learner = teach(**CLOSED)
    oar, images = oar_of(learner), prepare(TASKS[1][0], learner.trunk.card.preprocessing)
    assert oar.closed == [True] * 3 and list(oar.feature_sets(3)) == list(oar.feature_sets(0))
    capacity = oar.capacity()
    assert capacity is not None and set(capacity.free) == {1.0}
    seen = oar.encode(images, oar.feature_sets(3))
    for task, features in enumerate(oar.by_task(seen)):
        assert torch.allclose(features, learner.trunk(images), atol=1e-5)
        assert torch.allclose(oar.encode(images, [task])[:, 0], features, atol=1e-5)


def test_what_few_images_leave_is_the_discriminant(tiny_trunk: Trunk) -> None:
    learner = Learner("oar", trunk=tiny_trunk, memory=12, calibration=0.0, looks=1, tune_steps=0)
    for task in TASKS:
        learner.learn(*task)
    oar = oar_of(learner)
    pixels, labels = zip(*TASKS, strict=True)
    images, truth = prepare(np.concatenate(pixels), learner.trunk.card.preprocessing), np.concatenate(labels)
    seen = oar.encode(images, oar.feature_sets(3))
    bare = oar.bare(seen).double().numpy()
    within = np.concatenate([bare[truth == label] - bare[truth == label].mean(0) for label in range(6)])
    shrinkage = OAS(assume_centered=True).fit(within).shrinkage_
    means = np.stack([bare[truth == label].mean(0) for label in range(6)])
    covariance = ShrunkCovariance(assume_centered=True, shrinkage=shrinkage).fit(within).covariance_
    expected = np.stack([((bare - mean) @ np.linalg.inv(covariance) * (bare - mean)).sum(1) for mean in means], 1)
    with torch.no_grad():
        near = oar.class_nearness(seen)
    assert np.allclose(near.double().numpy(), -oar.config.beta / 2 * expected, rtol=1e-2, atol=1e-2)


def test_further_looks_count_as_one_image_and_widen_the_covariance(teach: Teach) -> None:
    once, twice = (oar_of(teach(few=60, tune_steps=0, looks=looks)).trunk_gaussians for looks in (1, 3))
    assert int(once.count) == int(twice.count)
    assert twice.covariance.trace() > once.covariance.trace()


def test_what_is_familiar_is_in_a_class_s_direction_and_near_by_hand(teach: Teach) -> None:
    learner = teach(detector="familiar")
    oar, seen = oar_of(learner), encoded(learner)
    with torch.no_grad():
        bare, pooled = oar.bare(seen), oar.trunk_gaussians
        white, means = pooled.whitening.double().numpy(), pooled.means.double().numpy()
        rows, classes = ((x - means.mean(0)) @ white.T for x in (bare.double().numpy(), means))
        cosine = 1 - cdist(rows, classes, "cosine")
        relative = pooled.relative(bare).double().numpy() / (classes**2).sum(1).mean()
        assert np.allclose(oar.in_distribution(seen).numpy(), (cosine + 0.2 * relative).max(1), atol=1e-3)
        of_all = logsumexp(15 * (cosine + 0.4 * relative), axis=1) / 15
        assert np.allclose(oar.kinship(seen)[0].numpy(), of_all, atol=1e-3)


def test_with_a_single_class_what_is_near_is_familiar(new_learner: NewLearner) -> None:
    learner = new_learner("oar", **CLOSED).learn(*TASKS[2])
    known, other = learner.in_distribution(TASKS[2][0]), learner.in_distribution(TASKS[0][0])
    assert np.median(known) > np.median(other)


def mixed(tiny_trunk: Trunk, order: tuple[int, ...] = (0, 1, 0)) -> Learner:
    """Tasks with few images and with many, by turns."""
    options = small_options("oar", **CLOSED | {"few": 15})
    learner = Learner("oar", trunk=tiny_trunk, memory=18, seed=3, **options)
    for task, many in enumerate(order):
        learner.learn(*make_task([2 * task, 2 * task + 1], 30 if many else 10))
    assert oar_of(learner).closed == [not many for many in order]
    return learner


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1), (0, 0, 0)])
def test_tasks_with_and_without_adapters_share_a_model_that_is_found_again(
    order: tuple[int, ...], tiny_trunk: Trunk, tmp_path: Path
) -> None:
    learner, test = mixed(tiny_trunk, order), make_task(list(range(6)), 5, seed=9)
    assert learner.score(*test) > 0.8
    learner.save(tmp_path / "model.oar")
    again = load(tmp_path / "model.oar")
    assert verify(tmp_path / "model.oar").holds
    plain = again.predict_scores(test[0])
    assert torch.equal(plain.scores, learner.predict_scores(test[0]).scores)
    for fast in (again.accelerate(), again.accelerate(shortlist=3)):
        read = fast.predict_scores(test[0])
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-3) for a, b in zip(read, plain, strict=True))
    task = make_task([7, 8], 10)
    assert_same(snapshot(load(tmp_path / "model.oar").learn(*task)), snapshot(learner.learn(*task)))


def test_without_a_look_at_the_bare_trunk_no_task_is_closed(teach: Teach) -> None:
    assert not any(oar_of(teach(**CLOSED, beta=0.0)).closed)


def test_a_closed_task_promises_no_distance_and_keeps_its_word(teach: Teach) -> None:
    learner = teach(**CLOSED)
    promise = learner.history_[0].promise
    assert promise is not None and set(promise.answers) == {"features", "wp_logits"} and not promise.constants
    before = promise.check(learner.method, 0)
    learner.learn(*make_task([7, 8]))
    assert before.compared and not before.changed and not promise.check(learner.method, 0).changed


def test_a_model_with_closed_tasks_tells_unknown_inputs_by_kinship(teach: Teach) -> None:
    few, many = teach(**CLOSED), teach()
    with torch.no_grad():
        for learner, evidence in ((few, "kinship"), (many, "claims")):
            oar, seen = oar_of(learner), encoded(learner)
            theirs = oar.kinship(seen) if evidence == "kinship" else oar.log_claims(seen, 8.0).unbind(1)
            assert torch.equal(oar.in_distribution(seen), torch.stack(list(theirs), 1).amax(1))
