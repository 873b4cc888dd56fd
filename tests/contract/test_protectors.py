"""The contract of methods with every protector in the socket: what does not follow from either alone. What every
protector does by itself is in tests/nets/protectors/test_every.py, the promise of all pairs in test_promises.py."""

from pathlib import Path

import numpy as np
import pytest
import torch

import oarlock
from conftest import make_task, make_tiny_convnet
from contract import test_contract as contract
from contract.conftest import NewLearner, assert_same, snapshot, teach
from oarlock import Learner, OarlockError
from oarlock.modelfile.export import export_onnx
from oarlock.nets.protectors import protectors
from oarlock.training import NoCallback

pytestmark = pytest.mark.filterwarnings("ignore:finished tasks look almost everywhere")  # twenty directions are few

OTHERS = sorted(protectors.all().keys() - {"hat"})  # which all other files hold
TASKS, TEST = contract.TASKS, contract.TEST

every_other = pytest.mark.parametrize("protector", OTHERS)


@pytest.fixture
def with_protector(new_learner: NewLearner, protector: str) -> NewLearner:
    return lambda name, **wanted: new_learner(name, **({"protector": protector} | wanted))


def taught(learner: Learner, tasks: list = TASKS) -> Learner:
    for task in tasks:
        learner.learn(*task)
    return learner


@every_other
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_stopped_anywhere_and_resumed_equals_never_stopped(optimiser: str, with_protector: NewLearner) -> None:
    contract.test_stopped_anywhere_and_resumed_equals_never_stopped("hat", optimiser, with_protector)


@every_other
@pytest.mark.parametrize("name", ["hat", "tpl"])
def test_a_saved_learner_predicts_the_same_and_goes_on_the_same(
    name: str, with_protector: NewLearner, tmp_path: Path
) -> None:
    contract.test_a_saved_learner_predicts_the_same_and_goes_on_the_same(name, with_protector, tmp_path)


@every_other
def test_classes_can_be_learned_one_at_a_time(with_protector: NewLearner) -> None:
    contract.test_classes_can_be_learned_one_at_a_time("more", with_protector)


@every_other
def test_tasks_with_few_images_are_closed_and_others_learned_beside_them(
    with_protector: NewLearner, tmp_path: Path
) -> None:
    learner = with_protector("oar", few=15)
    for labels, count in ((["a", "b"], 10), (["c", "d"], 30), (["e"], 10)):
        learner.learn(*make_task(labels, count))
    assert learner.method.closed == [True, False, True]
    assert all(task.promise.check(learner.method, index).holds for index, task in enumerate(learner.history_))
    learner.save(tmp_path / "model.oar")
    again = oarlock.load(tmp_path / "model.oar")
    assert np.array_equal(again.predict_proba(TEST), learner.predict_proba(TEST))
    fast = again.accelerate().predict_proba(TEST)
    np.testing.assert_allclose(fast, learner.predict_proba(TEST), atol=1e-4)


@every_other
def test_accelerated_it_answers_the_same_to_rounding(with_protector: NewLearner) -> None:
    learner = taught(with_protector("row"))
    plain, known = learner.predict_proba(TEST), learner.in_distribution(TEST)
    np.testing.assert_allclose(learner.accelerate().predict_proba(TEST), plain, atol=1e-4)
    np.testing.assert_allclose(learner.in_distribution(TEST), known, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("protector", ["lora", "none"])  # what differs between compact forms
def test_as_a_graph_it_answers_the_same(with_protector: NewLearner, tmp_path: Path) -> None:
    written = export_onnx(taught(with_protector("hat"), TASKS[:2]), tmp_path / "model.onnx")
    assert written.difference < 1e-4


def test_a_search_by_gradients_is_no_graph_and_that_is_said(new_learner: NewLearner, tmp_path: Path) -> None:
    learner = taught(new_learner("supsup", outputs=4), TASKS[:2])
    with pytest.raises(OarlockError, match="gradients to answer"):
        export_onnx(learner, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


@every_other
def test_room_is_told_where_it_runs_out_and_nowhere_else(with_protector: NewLearner) -> None:
    learner, free = with_protector("row"), []
    for task in TASKS[:2]:
        capacity = learner.learn(*task).method.capacity()
        free.append(None if capacity is None else capacity.free)
    if learner.method.protector.name == "project":
        assert all(after <= before for before, after in zip(*free, strict=True)) and free[1] < free[0]
    else:
        assert free == [None, None]


@pytest.mark.parametrize("name", ["row", "tpl"])
def test_features_that_may_move_are_encoded_anew_wherever_they_are_kept(name: str, new_learner: NewLearner) -> None:
    """A protector whose promise is a tolerance: memory and calibration images hold today's features."""
    learner = taught(new_learner(name, protector="project", energy=0.5, lr=0.1, width=8))
    method = learner.method
    assert max(task.promise.check(method, index).difference for index, task in enumerate(learner.history_[:2])) > 0
    for kept in (method.memory, learner.calibration):
        expected = method.encode(kept.images, method.feature_sets(3))
        torch.testing.assert_close(kept.encoded, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("protector", ["own", "supsup", "project"])
def test_on_a_convolutional_trunk_it_is_found_again_as_it_was(protector: str, tmp_path: Path) -> None:
    options = {"protector": protector, "width": 8, "batch": 8, "epochs": 2}
    learner = taught(Learner("row", trunk=make_tiny_convnet(), memory=12, **options), TASKS[:2])
    learner.save(tmp_path / "model.oar")
    again = oarlock.load(tmp_path / "model.oar")
    assert_same(snapshot(learner), snapshot(again))
    teach(again, TASKS[2], NoCallback())
    assert_same(snapshot(learner.learn(*TASKS[2])), snapshot(again))


@pytest.mark.parametrize("protector", OTHERS)
def test_the_seed_decides(protector: str, new_learner: NewLearner) -> None:
    """`none` draws nothing: its heads do."""
    one, same, other = (
        taught(new_learner("hat", protector=protector, seed=seed, calibration=0.0), TASKS[:2]) for seed in (0, 0, 1)
    )
    assert_same(snapshot(one), snapshot(same))
    assert not np.array_equal(one.predict_proba(TEST), other.predict_proba(TEST))
