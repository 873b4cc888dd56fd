"""Learners on feature vectors: everything is as on pictures, but for what looks at pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch

from contract.conftest import assert_same, small_learner, snapshot
from oarlock import Learner, OarlockError, load
from oarlock.methods import methods
from oarlock.modelfile.export import describe
from oarlock.nets.trunks import VECTORS, load_trunk
from oarlock.tasks import Promise

FEATURES = 6
ON_VECTORS = sorted(name for name, cls in methods.all().items() if not cls.needs_pictures and name != "l2p")


def vectors(label: int, count: int = 12) -> np.ndarray:
    """Around a place of the class."""
    place = np.random.default_rng(label).normal(0, 3, FEATURES)
    return place + np.random.default_rng([label, 1]).normal(0, 1, (count, FEATURES))


def task(*labels: int, count: int = 12) -> tuple[np.ndarray, list[int]]:
    return np.concatenate([vectors(label, count) for label in labels]), np.repeat(labels, count).tolist()


def learner_on_vectors(name: str) -> Learner:
    trunk = load_trunk(VECTORS).suited_to(vectors(0))
    return small_learner(trunk, name).learn(*task(0, 1)).learn(*task(2, 3))


@pytest.mark.parametrize("name", ON_VECTORS)
def test_a_method_learns_vectors_and_is_the_same_from_its_file(name: str, tmp_path: Path) -> None:
    learner = learner_on_vectors(name)
    learner.save(tmp_path / "vectors.oar")
    again = load(tmp_path / "vectors.oar")
    assert_same(snapshot(again), snapshot(learner))
    assert np.array_equal(again.predict_proba(vectors(9)), learner.predict_proba(vectors(9)))
    for index, finished in enumerate(again.history_):
        assert finished.promise is None or finished.promise.check(again.method, index).holds


@pytest.mark.parametrize("name", sorted(methods.all().keys() - set(ON_VECTORS)))
def test_a_method_for_pictures_refuses_vectors(name: str) -> None:
    with pytest.raises(OarlockError, match="choose another"):
        Learner(name, trunk=None)


def test_the_first_vectors_say_how_long_they_are() -> None:
    learner = Learner("slda", trunk=None).learn(*task(0, 1))
    assert learner.trunk.dim == FEATURES
    assert learner.score(*task(0, 1)) > 0.9
    before = snapshot(learner)
    with pytest.raises(OarlockError, match="have 3 features, and those learned have 6"):
        learner.learn(vectors(4)[:, :3], [4] * 12)
    assert_same(snapshot(learner), before)


def test_the_same_vectors_in_any_form_give_the_same_learner() -> None:
    found, labels = task(0, 1)
    found = found.astype(np.float32)  # of which a list of rows and a tensor have the same numbers
    first = snapshot(Learner("slda", trunk=None).learn(found, labels))
    for form in (found.tolist(), torch.from_numpy(found), found.astype(np.float64), np.asfortranarray(found)):
        assert_same(snapshot(Learner("slda", trunk=None).learn(form, labels)), first)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((0, 3)), r"shape \(0, 3\)"),
        (np.zeros((2, 3, 4)), "shape"),
        ([[1.0], [1.0, 2.0]], "no table"),
        ([["a", "b"]], "no table"),
        ("photos", "no table"),
        (np.array([[np.nan, 1.0]]), "no finite number"),
        (np.array([[1e300, 1.0]]), "no finite number"),
        (np.zeros((1, 2**16 + 1), dtype=np.uint8), "65536"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(OarlockError, match=message):
        Learner("slda", trunk=None).learn(wrong, [1])


def test_labels_are_checked_as_those_of_images() -> None:
    with pytest.raises(OarlockError, match="labels were not given"):
        Learner("slda", trunk=None).learn(vectors(0))
    with pytest.raises(OarlockError, match="12 images but 3 labels"):
        Learner("slda", trunk=None).learn(vectors(0), [1, 1, 1])


def test_equal_vectors_are_kept_on_one_side() -> None:
    found, labels = task(0, 1, count=20)
    found[1] = found[0]
    learner = Learner("slda", trunk=load_trunk(VECTORS).suited_to(found))
    assert learner.prepare_task(found, labels).copies == 1


def test_an_array_that_changes_later_changes_nothing() -> None:
    found, labels = task(0, 1)
    found = found.astype(np.float32)
    learner = Learner("row", trunk=None, epochs=1, memory=8).learn(found, labels)
    before = snapshot(learner)
    found[:] = 0
    assert_same(snapshot(learner), before)


def test_vectors_are_looked_at_once() -> None:
    """Statistics count as many looks as there are; mirror images there are none."""
    learner = learner_on_vectors("oar")
    with pytest.raises(OarlockError, match="no mirror image"):
        learner.look_twice()
    small = task(0, 1, count=8)
    one, four = (Learner("oar", trunk=None, looks=looks, epochs=1).learn(*small) for looks in (1, 4))
    assert np.array_equal(one.predict_proba(vectors(2)), four.predict_proba(vectors(2)))


def test_what_was_promised_of_vectors_is_kept_in_a_file(tmp_path: Path) -> None:
    learner = learner_on_vectors("row")
    promise = learner.history_[0].promise
    assert isinstance(promise, Promise) and promise.images.shape[1:] == (FEATURES,)
    assert promise.images.dtype == torch.float32


def test_pictures_are_refused_by_a_model_of_vectors(oarlock, here: Path, capsys: pytest.CaptureFixture) -> None:
    learner_on_vectors("slda").save("vectors.oar")
    assert oarlock("predict", "vectors.oar", "x.jpg") == 2
    assert "takes vectors of 6 features and no pictures" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(OarlockError, match="no pictures"):
        describe(load("vectors.oar"))
    assert oarlock("inspect", "vectors.oar") == 0


def test_nobody_is_offered_a_trunk_that_is_none() -> None:
    assert load_trunk(VECTORS).listed() == []


def test_a_class_of_vectors_can_be_forgotten() -> None:
    learner = learner_on_vectors("row").forget(1)
    assert learner.classes_.tolist() == [0, 2, 3]
    assert learner.predict_proba(vectors(2)).shape == (12, 3)
