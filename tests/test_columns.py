"""Classes that were learned in parts: what is answered by class, and what the parts know of each other."""

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_images, make_task
from contract.conftest import NewLearner, assert_same, new_learner, rebuilt, snapshot  # noqa: F401 (a fixture)
from oarlock import Learner, OarlockError, load
from oarlock.columns import Columns
from oarlock.data.images import prepare
from oarlock.methods import methods
from oarlock.modelfile.inspect import check_tasks
from oarlock.prediction import Predictor
from oarlock.training import Phase

METHODS = sorted(methods.all())
TEST = np.concatenate([make_images(label, 4, seed=1) for label in range(5)])


def columns_of(learner: Learner) -> torch.Tensor:
    """What the method itself says, a column for each class of each task."""
    images = prepare(TEST, learner.trunk.card.preprocessing)
    return Predictor(learner.method, len(learner.history_)).predict_scores(images).scores


def test_joined_by_hand() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]]).log()
    columns = Columns(["a", "b", "a", "c"])
    torch.testing.assert_close(columns.joined(scores).exp(), torch.tensor([[0.4, 0.2, 0.4], [0.8, 0.1, 0.1]]))
    assert columns.strongest(scores).tolist() == [[2, 1, 3], [0, 1, 3]]
    assert columns.first == {2: 0}


def test_where_no_class_has_parts_nothing_is_computed() -> None:
    scores = torch.randn(3, 2)
    columns = Columns([5, 3])
    assert columns.joined(scores) is scores
    assert columns.strongest(scores).tolist() == [[0, 1]] * 3


def test_a_task_that_was_not_asked_says_nothing() -> None:
    """A shortlist leaves −∞ in its columns."""
    joined = Columns(["a", "b", "a"]).joined(torch.tensor([[-torch.inf, 0.0, 1.0], [-torch.inf, 0.0, -torch.inf]]))
    assert joined.tolist() == [[1.0, 0.0], [-torch.inf, 0.0]]


@pytest.mark.parametrize("name", METHODS)
def test_more_of_a_class_is_learned_under_its_label(name: str, new_learner: NewLearner) -> None:  # noqa: F811
    learner = new_learner(name).learn(*make_task([0, 1])).learn(*make_task([2]))
    old = snapshot(learner)
    with pytest.raises(OarlockError, match="class 1 was already learned; to teach it more"):
        learner.learn(*make_task([1, 3], seed=2))
    assert_same(snapshot(learner), old)
    learner.learn(*make_task([3, 1], seed=2), more=True)
    assert learner.classes_.tolist() == [0, 1, 2, 3]
    assert learner.tasks_ == [[0, 1], [2], [3, 1]]
    shares = columns_of(learner).double().softmax(1).numpy()
    np.testing.assert_allclose(
        learner.predict_proba(TEST),
        np.stack([shares[:, 0], shares[:, 1] + shares[:, 4], shares[:, 2], shares[:, 3]], 1),
        rtol=1e-5,
    )
    assert all(task.check.holds for task in check_tasks(learner))
    again = rebuilt(snapshot(learner))
    assert np.array_equal(again.predict_proba(TEST), learner.predict_proba(TEST))
    assert again.method.same_class == {4: 1}
    (note,) = learner.edits_
    assert (note.edit, note.labels, note.tasks) == ("more", [1], 3)


def shifted(label: int, count: int, seed: int) -> np.ndarray:
    """Photos of a class in other light: they look like the other class, turned around."""
    return 255 - make_images(label, count, seed=seed)


@pytest.mark.parametrize("name", ["oar", "row", "more", "slda"])
@pytest.mark.parametrize("few", [0, 60])
def test_accuracy_rises_on_photos_like_the_new_ones(name: str, few: int, new_learner: NewLearner) -> None:  # noqa: F811
    if few and name != "oar":
        pytest.skip("only oar leaves adapters closed")
    options = {"few": few, "looks": 1} if name == "oar" else {}
    learner = new_learner(name, memory=40, epochs=8, wp_epochs=8, **options)
    learner.learn(*make_task([0, 1])).learn(*make_task([2, 3]))
    new, old = np.concatenate([shifted(label, 20, 1) for label in (0, 1)]), make_task([0, 1, 2, 3], 8, seed=1)
    truth = [0] * 20 + [1] * 20
    before, kept = learner.score(new, truth), learner.score(*old)
    learner.learn(np.concatenate([shifted(label, 10, 0) for label in (0, 1)]), [0] * 10 + [1] * 10, more=True)
    assert before < 0.6 and learner.score(new, truth) > before + 0.3
    assert learner.score(*old) > kept - 0.1


def test_photos_of_the_same_class_are_not_foreign(new_learner: NewLearner) -> None:  # noqa: F811
    learner = new_learner("row").learn(*make_task([0, 1])).learn(*make_task([2]))
    method = learner.method
    prepared = learner.prepare_task(*make_task([1, 3], seed=2), more=True)
    learner.tell_columns(prepared.classes)
    method.begin(prepared.task)
    features: Phase = method.phases(prepared.task)[0]
    features.prepare()
    said = dict(zip(method.memory.labels.tolist(), features.replay_labels.tolist(), strict=True))
    assert said == {0: 2, 1: 0, 2: 2}  # 2: not mine; the old images of class 1 are its images here, too


def test_heads_that_have_nothing_to_tell_apart_stay_as_they_are(new_learner: NewLearner) -> None:  # noqa: F811
    learner = new_learner("row").learn(*make_task(["only"]))
    before = learner.method.ood_heads[0].weight.clone()
    learner.learn(*make_task(["only"], seed=2), more=True)
    assert learner.classes_.tolist() == ["only"] and torch.equal(learner.method.ood_heads[0].weight, before)
    assert learner.predict(TEST).tolist() == ["only"] * len(TEST)


def test_merged_classes_have_one_answer_and_a_name(new_learner: NewLearner, tmp_path: Path) -> None:  # noqa: F811
    learner = new_learner("oar").learn(*make_task([0, 1])).learn(*make_task([2, 3]))
    before, tensors = learner.predict_proba(TEST), snapshot(learner)[0]
    learner.merge(2, 1)
    assert learner.classes_.tolist() == [0, 2, 3] and learner.tasks_ == [[0, 2], [2, 3]]
    np.testing.assert_allclose(
        learner.predict_proba(TEST), np.stack([before[:, 0], before[:, 1] + before[:, 2], before[:, 3]], 1), rtol=1e-6
    )
    after = snapshot(learner)[0]
    assert all(torch.equal(value, tensors[name]) for name, value in after.items())
    learner.save(tmp_path / "m.oar")
    assert load(tmp_path / "m.oar").predict(TEST).tolist() == learner.predict(TEST).tolist()
    learner.merge(0, 2)  # two of one task
    assert learner.tasks_ == [[0], [0, 3]] and np.allclose(learner.predict_proba(TEST).sum(1), 1)
    with pytest.raises(OarlockError, match="one class already"):
        learner.merge(0, 0)


@pytest.mark.parametrize("shortlist", [None, 1, "auto"])
def test_fast_answers_are_by_class_too(shortlist: object, new_learner: NewLearner) -> None:  # noqa: F811
    learner = (
        new_learner("oar").learn(*make_task([0, 1])).learn(*make_task([2])).learn(*make_task([1], seed=2), more=True)
    )
    slow = learner.predict_proba(TEST)
    fast = learner.accelerate(shortlist=shortlist).predict_proba(TEST)
    assert fast.shape == (len(TEST), 3) and np.allclose(fast.sum(1), 1)
    if shortlist is None:
        np.testing.assert_allclose(fast, slow, atol=1e-4)


def test_an_answer_names_the_task_that_says_most(new_learner: NewLearner) -> None:  # noqa: F811
    learner = (
        new_learner("slda")
        .learn(*make_task([0, 1]))
        .learn(*make_task([2]))
        .learn(np.concatenate([shifted(0, 10, 0)]), [0] * 10, more=True)
    )
    tasks = learner.predict_scores(np.concatenate([make_images(0, 4, seed=1), shifted(0, 4, 1)])).tasks
    assert tasks is not None and tasks[:, 0].tolist() == [0] * 4 + [2] * 4
    assert tasks[:, 1:].tolist() == [[0, 1]] * 8
