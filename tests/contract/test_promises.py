"""What a finished task promised, asked again."""

import copy
import math
from pathlib import Path

import pytest
import torch

from conftest import make_task
from contract.conftest import NewLearner, options_of
from oarlock import Learner, load
from oarlock.methods import methods
from oarlock.nets.protectors import protectors
from oarlock.tasks import PROBES, TOLERANCE, Check, Promise

PROTECTED = sorted(name for name, cls in methods.all().items() if cls.protected)
PAIRS = [(name, protector) for name in PROTECTED if name != "supsup" for protector in sorted(protectors.all())]
TASKS = [["ant", "bee"], ["crow"], ["duck", "eel", "fox"]]


def checks(learner: Learner) -> list[Check]:
    return [task.promise.check(learner.method, index) for index, task in enumerate(learner.history_)]


def taught(learner: Learner, count: int = 10) -> Learner:
    for labels in TASKS:
        learner.learn(*make_task(labels, count))
    return learner


@pytest.fixture
def learner(new_learner: NewLearner) -> Learner:
    return taught(new_learner("row", grow_below=0.9, wing=4))


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize(("name", "protector"), [*PAIRS, ("supsup", "supsup")])
def test_every_promise_holds(
    name: str, protector: str, optimiser: str, new_learner: NewLearner, tmp_path: Path
) -> None:
    options = {"protector": protector, "optimiser": optimiser, "weight_decay": 0.01}
    learner = taught(new_learner(name, grow_below=0.9, wing=4, **options))
    learner.save(tmp_path / "model.oar")
    tolerance = protectors.find(protector).tolerance
    for check in (*checks(learner), *checks(load(tmp_path / "model.oar"))):
        assert check.holds and check.same_machine and check.tolerance == tolerance
        if not tolerance:  # bit for bit
            assert (check.changed, check.difference) == ([], 0.0)
        assert check.compared > 0


@pytest.mark.parametrize("name", sorted(set(methods.all()) - set(PROTECTED)))
def test_other_methods_promise_nothing(name: str, new_learner: NewLearner) -> None:
    few = {option: 1 for option in options_of(name) if option.endswith("epochs")}
    learner = new_learner(name, **few).learn(*make_task(["ant", "bee"], 5))
    assert learner.history_[0].promise is None
    assert learner.method.capacity() is None


def test_a_few_images_of_a_task_are_kept(new_learner: NewLearner) -> None:
    learner = taught(new_learner("row"), count=40)
    kept = [task.promise.images for task in learner.history_]
    assert [len(images) for images in kept] == [8, 4, PROBES]  # a tenth of each class is kept out of training
    assert all(images.dtype == torch.uint8 for images in kept)


def test_without_calibration_images_those_trained_on_are_kept(new_learner: NewLearner) -> None:
    learner = new_learner("row", calibration=0.0).learn(*make_task(["ant", "bee"], 3))
    assert len(learner.history_[0].promise.images) == 6
    assert checks(learner)[0].holds


def test_constants_are_kept_as_a_hash_and_answers_as_they_are(learner: Learner) -> None:
    promise = learner.history_[0].promise
    assert {"features", "distances", "wp_logits"} <= set(promise.answers)
    assert set(promise.constants) == {"means", "whitening"}
    assert len(promise.images) == len(learner.method.gaussians[0].means)  # as many as classes, and yet told apart


def test_a_promise_survives_its_file(learner: Learner) -> None:
    again = Learner.from_state(*copy.deepcopy(learner.state()))
    assert [check.changed for check in checks(again)] == [[], [], []]
    assert [task.describe() for task in again.history_] == [task.describe() for task in learner.history_]


@torch.no_grad()
def test_a_weight_that_an_old_task_uses_breaks_its_promise(learner: Learner) -> None:
    bottleneck = learner.method.protector.layers[0].bottlenecks[0]
    bottleneck.fc1.bias[bottleneck.hidden_used] += 0.01
    first = checks(learner)[0]
    assert not first.holds
    assert "features" in first.changed and "whitening" not in first.changed
    assert 0 < first.difference < math.inf


@pytest.mark.parametrize("name", ["means", "whitening"])
@torch.no_grad()
def test_a_changed_statistic_breaks_the_promise_on_any_machine(name: str, learner: Learner) -> None:
    getattr(learner.method.gaussians[1], name)[0, 0] += 1e-6
    task = learner.history_[1]
    assert name in task.promise.check(learner.method, 1).changed
    foreign = Promise(task.promise.images, task.promise.answers, task.promise.constants, elsewhere(task.promise))
    check = foreign.check(learner.method, 1)
    assert not check.same_machine and not check.holds
    assert checks(learner)[0].holds


def elsewhere(promise: Promise) -> dict:
    return {**promise.machine, "cpu": "another kind"}


@pytest.mark.parametrize(("shift", "holds"), [(0.0, True), (TOLERANCE / 10, True), (TOLERANCE * 3, False)])
def test_on_another_machine_answers_are_held_to_a_tolerance(shift: float, holds: bool, learner: Learner) -> None:
    promise = learner.history_[0].promise
    moved = {name: value + shift * value.abs().max() for name, value in promise.answers.items()}
    here = Promise(promise.images, moved, promise.constants, promise.machine).check(learner.method, 0)
    there = Promise(promise.images, moved, promise.constants, elsewhere(promise)).check(learner.method, 0)
    assert here.holds == (shift == 0)
    assert there.holds == holds
    assert there.difference == pytest.approx(shift, rel=1e-2)


def test_what_is_no_number_any_more_is_broken_everywhere(learner: Learner) -> None:
    promise = learner.history_[0].promise
    with torch.no_grad():
        learner.method.wp_heads[0].bias.fill_(math.nan)
    check = Promise(promise.images, promise.answers, promise.constants, elsewhere(promise)).check(learner.method, 0)
    assert check.changed == ["wp_logits"]
    assert not check.holds


def test_it_is_asked_with_the_threads_it_answered_with(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    promise, before, used = learner.history_[0].promise, torch.get_num_threads(), []
    elsewhere = Promise(
        promise.images, promise.answers, promise.constants, {**promise.machine, "threads": before + 1}
    )
    promised = learner.method.promised

    def notice_threads(images: torch.Tensor, task: int) -> dict[str, torch.Tensor]:
        used.append(torch.get_num_threads())
        return promised(images, task)

    monkeypatch.setattr(learner.method, "promised", notice_threads)
    assert elsewhere.check(learner.method, 0).same_machine
    assert used == [before + 1]
    assert torch.get_num_threads() == before


def test_a_limit_on_instructions_makes_another_machine(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN rounds otherwise on the same processor when it is told to leave instructions alone."""
    promise = learner.history_[0].promise
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert not promise.check(learner.method, 0).same_machine
    assert promise.check(learner.method, 0).holds
