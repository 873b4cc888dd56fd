"""Faster answers against plain ones: the same to rounding, or with a shortlist the same where the task is on it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from conftest import make_task, make_tiny_convnet
from oarlock import Learner, OarlockError, load
from oarlock.nets.trunks import Trunk
from oarlock.prediction import ShortlistPredictor, smallest_shortlist
from oarlock.tasks import sure_rank

TASKS = [[0, 1], [2, 3, 4], [5], [6, 7]]
TEST = make_task(list(range(8)), 6, seed=1)
SMALL = {"memory": 24, "epochs": 1, "width": 6, "wing": 4, "grow_below": 0.5}


def teach(method: str, trunk: Trunk, **options: object) -> Learner:
    learner = Learner(method, trunk=trunk, calibration=0.3, **{**SMALL, **options})
    for labels in TASKS:
        learner.learn(*make_task(labels))
    return learner


@pytest.fixture(scope="module")
def taught(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Learner]:
    path = tmp_path_factory.mktemp("taught") / "model.oar"
    teach("oar", tiny_trunk, few=0).save(path)
    return lambda: load(path)


def close(one: Learner, other: Learner) -> bool:
    mine, others = one.predict_scores(TEST[0]), other.predict_scores(TEST[0])
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-4) for a, b in zip(mine, others, strict=True))


@pytest.mark.parametrize("method", ["oar", "row", "more", "tpl", "hat", "row-wp"])
def test_accelerated_answers_are_the_plain_ones(method: str, tiny_trunk: Trunk) -> None:
    learner = teach(method, tiny_trunk)
    plain = learner.predict_scores(TEST[0])
    learner.accelerate()
    assert all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-4)
        for a, b in zip(learner.predict_scores(TEST[0]), plain, strict=True)
    )


def test_a_convolutional_trunk_is_accelerated_too() -> None:
    learner = teach("oar", make_tiny_convnet())
    plain = learner.predict_scores(TEST[0])
    assert torch.allclose(
        learner.accelerate(shortlist=4).predict_scores(TEST[0]).scores, plain.scores, rtol=1e-4, atol=1e-3
    )


def test_a_method_without_gates_answers_as_before(tiny_trunk: Trunk) -> None:
    learner = Learner("slda", trunk=tiny_trunk)
    for labels in TASKS:
        learner.learn(*make_task(labels))
    plain = learner.predict_scores(TEST[0])
    assert torch.equal(learner.accelerate().predict_scores(TEST[0]).scores, plain.scores)


def test_a_shortlist_of_all_tasks_is_exact(taught: Callable[[], Learner]) -> None:
    for shortlist in (len(TASKS), 99):
        learner = taught().accelerate(shortlist=shortlist)
        assert close(learner, taught())
        assert learner.threshold(0.9) == pytest.approx(taught().threshold(0.9), rel=1e-4)


@pytest.mark.parametrize("shortlist", [1, 2, 3])
def test_tasks_that_are_not_on_the_shortlist_claim_nothing(taught: Callable[[], Learner], shortlist: int) -> None:
    plain, learner = taught(), taught().accelerate(shortlist=shortlist)
    every, short = plain.predict_scores(TEST[0]), learner.predict_scores(TEST[0])
    row = plain.method
    with torch.no_grad():
        encoded = row.encode(torch.from_numpy(TEST[0]).permute(0, 3, 1, 2), row.feature_sets(4))
        factors, claims = row.task_nearness(encoded), row.known_to_tasks(encoded)
    best = [set(order.tolist()) for order in factors.argsort(1, descending=True)[:, :shortlist]]
    for image, asked in enumerate(best):
        for task in range(4):
            columns = row.class_slice(task)
            expected = every.scores[image, columns] if task in asked else torch.tensor(-torch.inf)
            assert torch.allclose(short.scores[image, columns], expected, rtol=1e-5, atol=1e-4)
        assert short.in_distribution[image].item() == pytest.approx(
            max(claims[image, list(asked)].tolist()), abs=1e-4
        )
    assert np.allclose(learner.predict_proba(TEST[0]).sum(1), 1)


def test_a_tasks_network_is_asked_only_about_images_that_may_be_its_own(
    taught: Callable[[], Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, passed = taught().accelerate(shortlist=2), []
    predictor = learner.predictor()
    original = predictor.pairs

    def counting(activations: torch.Tensor, tasks: torch.Tensor) -> torch.Tensor:
        passed.append(len(activations))
        return original(activations, tasks)

    monkeypatch.setattr(predictor, "pairs", counting)
    learner.predict_scores(TEST[0])
    assert sum(passed) == 2 * len(TEST[0])


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_auto_is_the_smallest_shortlist_that_keeps_the_answers_to_calibration_images(
    share: float, taught: Callable[[], Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oarlock.prediction.KEPT", share)
    learner = taught()
    encoded = learner.calibration.encoded
    with torch.no_grad():
        answers = learner.method.scores(encoded).argmax(1)
        short = [
            ShortlistPredictor(learner.method, learner.method.protector, 4, m).read(encoded).scores.argmax(1)
            for m in range(1, 5)
        ]
        kept = [bool((answer == answers).double().mean() >= share) for answer in short]
        assert smallest_shortlist(learner.method, learner.calibration) == kept.index(True) + 1
    assert learner.accelerate(shortlist="auto").predictor().shortlist == kept.index(True) + 1


def test_known_images_are_accepted_at_least_as_often_as_asked_with_a_shortlist(taught: Callable[[], Learner]) -> None:
    learner = taught().accelerate(shortlist=1)
    images = learner.calibration.images.permute(0, 2, 3, 1).numpy()
    for accept in (0.5, 0.8):
        accepted = np.mean([answer is not None for answer in learner.predict(images, accept=accept)])
        expected = 1 - sure_rank(len(images), accept) / len(images)
        assert accepted == pytest.approx(expected, abs=1 / len(images) + 1e-6) and expected >= accept


def test_after_a_further_task_the_answers_know_it(taught: Callable[[], Learner]) -> None:
    learner = taught().accelerate(shortlist=2)
    learner.predict(TEST[0])
    more = make_task([8, 9])
    learner.learn(*more)
    assert set(learner.predict(more[0]).tolist()) & {8, 9}
    assert learner.predict_scores(more[0]).scores.shape[1] == 10


@pytest.mark.parametrize(
    ("method", "options", "shortlist", "said"),
    [
        ("oar", {}, 0, "shortlist=0 is not a whole number of at least 1"),
        ("oar", {}, "some", "shortlist='some' is not a whole number"),
        ("oar", {"beta": 0.0}, 2, "oar keeps none with these options"),
        ("more", {}, "auto", "more keeps none with these options"),
        ("oar", {"calibration": 0.0}, "auto", "give a number"),
    ],
)
def test_a_shortlist_that_cannot_be_made_is_refused(
    method: str, options: dict, shortlist: object, said: str, tiny_trunk: Trunk
) -> None:
    learner = Learner(method, trunk=tiny_trunk, **{**SMALL, **options}).learn(*make_task([0, 1]))
    before = learner.predict_scores(TEST[0]).scores
    with pytest.raises(OarlockError, match=said):
        learner.accelerate(shortlist=shortlist)
    assert torch.equal(learner.predict_scores(TEST[0]).scores, before)


def test_bfloat16_learns_answers_and_keeps_finished_tasks_bit_for_bit(tiny_trunk: Trunk) -> None:
    learner = Learner("row", trunk=tiny_trunk, bf16=True, **SMALL).learn(*make_task([0, 1]))
    images = torch.from_numpy(TEST[0]).permute(0, 3, 1, 2)
    before = learner.method.promised(images, 0)
    learner.learn(*make_task([2, 3]))
    after = learner.method.promised(images, 0)
    assert all(torch.equal(before[name], after[name]) for name in before)
    learner.method.protector.bf16 = False
    assert not torch.equal(before["features"], learner.method.promised(images, 0)["features"])


@pytest.mark.slow
def test_compiled_answers_are_the_plain_ones(taught: Callable[[], Learner]) -> None:
    assert close(taught().accelerate(compile=True), taught())


def test_looking_twice_is_the_mean_of_an_image_and_its_mirror_image(taught: Callable[[], Learner]) -> None:
    once, images = taught(), TEST[0]
    seen, mirrored = (once.predict_proba(x) for x in (images, np.ascontiguousarray(images[:, :, ::-1])))
    known = np.mean([once.in_distribution(x) for x in (images, np.ascontiguousarray(images[:, :, ::-1]))], 0)
    twice = once.look_twice()
    assert np.allclose(twice.predict_proba(images), (seen + mirrored) / 2, atol=1e-6)
    assert np.allclose(twice.in_distribution(images), known, atol=1e-4)
    assert np.allclose(twice.predict_proba(images), twice.predict_proba(images[:, :, ::-1].copy()), atol=1e-6)
    assert np.array_equal(twice.look_twice(False).predict_proba(images), seen)
