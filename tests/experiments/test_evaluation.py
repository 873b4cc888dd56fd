"""What a run measures, against the same numbers found the long way, and how often images pass the trunk."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, roc_auc_score
from torch import Tensor

from conftest import make_images, make_task
from contract.conftest import small_options
from oarlock import Learner
from oarlock.data.sources import Labelled, Source
from oarlock.data.streams import Stream
from oarlock.experiments.evaluation import Evaluator, Record
from oarlock.methods.oar import Oar
from oarlock.nets.trunks import Trunk

CLASSES = ("ant", "bee", "cow", "dog", "eel", "fly")
UNKNOWN = make_images(77, 9)


def make_stream(increment: int | list[int] = 2, unknown: np.ndarray | None = UNKNOWN) -> Stream:
    train = Labelled(make_task(list(CLASSES), 10)[0], np.repeat(CLASSES, 10))
    test = Labelled(make_task(list(CLASSES), 4, seed=1)[0], np.repeat(CLASSES, 4))
    return Stream.from_source(Source("small", CLASSES, train, test, unknown), increment)


@pytest.fixture
def new_learner(tiny_trunk: Trunk) -> Callable[..., Learner]:
    def make(**settings: object) -> Learner:
        return Learner("oar", trunk=tiny_trunk, **({"memory": 12} | small_options("oar") | settings))

    return make


def teach(learner: Learner, stream: Stream, evaluator: Evaluator | None = None) -> Record:
    record = Record()
    for task in stream:
        learner.learn(task.train.images, task.train.labels.tolist())
        if evaluator is not None:
            evaluator.after_task(record)
    return record


def test_rows_are_what_asking_the_learner_gives(new_learner: Callable[..., Learner]) -> None:
    learner, stream = new_learner(), make_stream([2, 1, 3])
    evaluator, record = Evaluator(stream, learner), Record()
    for number, task in enumerate(stream):
        learner.learn(task.train.images, task.train.labels.tolist())
        evaluator.after_task(record)
        seen = stream[: number + 1]
        assert record.accuracy[-1] == [100 * learner.score(t.test.images, t.test.labels) for t in seen]
        within, right_task = [], []
        for index, earlier in enumerate(seen):
            probability = learner.predict_proba(earlier.test.images)
            columns = learner.method.class_slice(index)
            answers = learner.classes_[columns][probability[:, columns].argmax(1)]
            within.append(100 * np.mean(answers == earlier.test.labels))
            sums = [probability[:, learner.method.class_slice(k)].sum(1) for k in range(number + 1)]
            right_task += (np.argmax(sums, 0) == index).tolist()
        assert record.til_accuracy[-1] == within
        assert record.task_id_accuracy[-1] == pytest.approx(100 * np.mean(right_task))
        assert record.free_capacity[-1] == learner.method.capacity().free


def test_records_are_lower_triangular_for_every_reading(new_learner: Callable[..., Learner]) -> None:
    learner, stream = new_learner(), make_stream([1, 2, 3])
    record = teach(learner, stream, Evaluator(stream, learner))
    assert set(record.variants) == set(Oar.variants) == {"row", "row-wp", "row-wp-md"}
    for rows in (record.accuracy, record.til_accuracy, *record.variants.values()):
        assert [len(row) for row in rows] == [1, 2, 3]
        assert all(0 <= value <= 100 for row in rows for value in row)
    assert len(record.task_id_accuracy) == len(record.free_capacity) == 3


def test_task_incremental_accuracy_of_a_gated_method_never_moves(new_learner: Callable[..., Learner]) -> None:
    learner, stream = new_learner(), make_stream(2)
    record = teach(learner, stream, Evaluator(stream, learner))
    for task in range(3):
        assert len({row[task] for row in record.til_accuracy[task:]}) == 1


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_each_pair_of_test_image_and_feature_set_is_computed_once_in_a_whole_run(
    beta: float, new_learner: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, stream = new_learner(beta=beta), make_stream([2, 1, 3])
    passed: Counter[tuple[bytes, int]] = Counter()

    def of_tests(self: Evaluator, task: int, sets: range, *, original: Callable = Evaluator._encode) -> Tensor:
        passed.update((image.numpy().tobytes(), number) for image in self._images(task) for number in sets)
        return original(self, task, sets)

    def of_unknown(self: Oar, images: Tensor, sets: Sequence[int], *, original: Callable = Oar.encode) -> Tensor:
        if len(images) == len(UNKNOWN):
            passed.update((image.numpy().tobytes(), number) for image in images for number in sets)
        return original(self, images, sets)

    monkeypatch.setattr(Evaluator, "_encode", of_tests)
    evaluator = Evaluator(stream, learner)
    teach(learner, stream, evaluator)
    monkeypatch.setattr(Oar, "encode", of_unknown)
    evaluator.final()
    sets = learner.method.feature_sets(3)
    assert set(passed.values()) == {1}
    tests, unknown = 6 * 4 * len(sets), len(UNKNOWN) * len(sets)
    assert evaluator.passes == tests
    assert passed.total() == tests + unknown


@pytest.mark.parametrize("method, most", [("oar", 2), ("row", 2), ("hat", 1), ("finetune", 1), ("derpp", 1)])
def test_test_images_do_not_pass_the_frozen_stages_after_every_task(
    method: str, most: int, tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features are bit for bit those that are made from the pixels; `row` looks at the bare trunk first."""
    options = small_options(method) | {"adapt_last": 1}
    learner, stream = Learner(method, trunk=tiny_trunk, memory=12, **options), make_stream(1)
    evaluator, record = Evaluator(stream, learner), Record()
    passed: Counter[bytes] = Counter()

    def embed(images: Tensor, *, original: Callable = tiny_trunk.embed) -> Tensor:
        passed.update(image.numpy().tobytes() for image in images)
        return original(images)

    for task in stream:
        learner.learn(task.train.images, task.train.labels.tolist())
        with monkeypatch.context() as counting:
            counting.setattr(tiny_trunk, "embed", embed)
            evaluator.after_task(record)
            known, _ = evaluator.known()
        sets = learner.method.feature_sets(len(learner.tasks_))
        anew = [learner.method.encode(evaluator._images(i), sets) for i in range(len(learner.tasks_))]
        assert torch.equal(known, torch.cat(anew))
    assert len(passed) == 6 * 4 and max(passed.values()) <= most


def test_an_evaluator_that_comes_late_measures_the_same(new_learner: Callable[..., Learner]) -> None:
    """A resumed run has no features of test images yet."""
    learner, stream = new_learner(), make_stream(2)
    early = Evaluator(stream, learner)
    record = teach(learner, stream, early)
    late, last = Evaluator(stream, learner), Record()
    late.after_task(last)
    assert last.accuracy == record.accuracy[-1:]
    assert last.til_accuracy == record.til_accuracy[-1:]
    assert last.variants == {name: rows[-1:] for name, rows in record.variants.items()}
    assert all(torch.equal(one, other) for one, other in zip(early.encoded, late.encoded, strict=True))
    (numbers, tensors), (late_numbers, late_tensors) = early.final(), late.final()
    assert numbers == late_numbers
    assert all(torch.equal(value, late_tensors[name]) for name, value in tensors.items())


def test_final_numbers_and_tensors_are_those_of_sklearn(new_learner: Callable[..., Learner]) -> None:
    learner, stream = new_learner(), make_stream([2, 1, 3])
    evaluator = Evaluator(stream, learner)
    teach(learner, stream, evaluator)
    numbers, tensors = evaluator.final()
    images = np.concatenate([task.test.images for task in stream])
    truth = np.concatenate([task.test.labels for task in stream])
    known, unknown = learner.in_distribution(images), learner.in_distribution(UNKNOWN)
    labels = np.repeat([1, 0], [len(known), len(unknown)])
    assert np.allclose(tensors["known_scores"], known, atol=1e-4)
    assert np.allclose(tensors["unknown_scores"], unknown, atol=1e-4)
    assert numbers["ood_auroc"] == pytest.approx(roc_auc_score(labels, np.concatenate([known, unknown])), abs=0.01)
    assert 0 <= numbers["ood_fpr95"] <= 1
    assert tensors["threshold"].tolist() == [learner.threshold(0.95)]
    expected = confusion_matrix(truth, learner.predict(images), labels=learner.classes_)
    assert tensors["class_confusion"].tolist() == expected.tolist()
    assert tensors["task_confusion"].sum(1).tolist() == [8, 4, 12]


def test_examples_are_spread_over_the_images_and_unknown_ones_have_no_truth(
    new_learner: Callable[..., Learner],
) -> None:
    learner, stream = new_learner(), make_stream(3)
    evaluator = Evaluator(stream, learner)
    teach(learner, stream, evaluator)
    _, tensors = evaluator.final()
    truth = tensors["example_truth"]
    assert (truth == -1).sum() == len(UNKNOWN)
    assert set(truth[truth >= 0].tolist()) == set(range(6))
    assert tensors["example_images"].dtype == torch.uint8
    assert len(truth) == len(tensors["example_images"]) == len(tensors["example_prediction"])
    scores = learner.in_distribution(tensors["example_images"])
    clear = np.abs(scores - learner.threshold(0.95)) > 1e-3
    rejected = (tensors["example_prediction"] == -1).numpy()
    assert (rejected == (scores < learner.threshold(0.95)))[clear].all()
    assert ((tensors["example_probability"] > 0) & (tensors["example_probability"] <= 1)).all()


def test_without_unknown_inputs_their_numbers_are_null(new_learner: Callable[..., Learner]) -> None:
    learner, stream = new_learner(), make_stream(3, unknown=None)
    evaluator = Evaluator(stream, learner)
    teach(learner, stream, evaluator)
    numbers, tensors = evaluator.final()
    assert numbers == {"ood_auroc": None, "ood_fpr95": None}
    assert "unknown_scores" not in tensors


def test_without_calibration_images_nothing_is_rejected(new_learner: Callable[..., Learner]) -> None:
    learner, stream = new_learner(calibration=0.0), make_stream(3)
    evaluator = Evaluator(stream, learner)
    teach(learner, stream, evaluator)
    _, tensors = evaluator.final()
    assert "threshold" not in tensors
    assert (tensors["example_prediction"] >= 0).all()
