"""What every method must do, whatever it is; a new method is covered as soon as it is registered."""

import copy
import dataclasses
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oarlock
from conftest import make_images, make_task
from contract.conftest import (
    SMALL,
    Checkpoints,
    NewLearner,
    RaiseAt,
    Stopped,
    assert_same,
    differs,
    options_of,
    resumed,
    small_learner,
    snapshot,
    teach,
)
from oarlock import Learner, OarlockError
from oarlock.data.images import prepare
from oarlock.data.sources import Labelled, Source
from oarlock.data.streams import Stream
from oarlock.detectors import detectors
from oarlock.experiments import protocols
from oarlock.experiments.evaluation import Evaluator, Record
from oarlock.methods import config_class, methods
from oarlock.methods._base import Method
from oarlock.nets.trunks import Trunk
from oarlock.tasks import FinishedTask
from oarlock.training import TaskData

METHODS = sorted(methods.all())
ANSWERS_MOVE = {"more", "ease"}  # whose heads are tuned again, or who ask the subspaces of later tasks as well
PROTECTED = [name for name in METHODS if methods.all()[name].protected]
GATED = [name for name in PROTECTED if config_class(methods.all()[name]).protector == "hat"]  # by default
TASKS = [make_task([0, 1]), make_task([2, 3]), make_task([4, 5])]
TEST = np.concatenate([make_images(label, 4, seed=1) for label in range(6)])

After = Callable[[str, int], Learner]

every_method = pytest.mark.parametrize("name", METHODS)
every_gated_method = pytest.mark.parametrize("name", GATED)


def taught(learner: Learner, tasks: list) -> Learner:
    for task in tasks:
        learner.learn(*task)
    return learner


@pytest.fixture(scope="module")
def after(tiny_trunk: Trunk) -> After:
    """Learners of the first so many tasks: taught once for each method, and a copy for each test."""
    known: dict[tuple[str, int], Learner] = {}

    def copied(name: str, tasks: int) -> Learner:
        if (name, tasks) not in known:
            known[name, tasks] = taught(small_learner(tiny_trunk, name), TASKS[:tasks])
        return copy.deepcopy(known[name, tasks])

    return copied


# Tasks of any kind


@every_method
def test_one_class_is_a_task(name: str, new_learner: NewLearner) -> None:
    learner = taught(new_learner(name), [make_task(["only"])])
    assert learner.classes_.tolist() == ["only"]
    assert learner.predict(TEST).tolist() == ["only"] * len(TEST)
    assert np.allclose(learner.predict_proba(TEST), 1)


@every_method
def test_classes_can_be_learned_one_at_a_time(name: str, new_learner: NewLearner) -> None:
    learner = taught(new_learner(name), [make_task([label]) for label in range(3)])
    assert learner.classes_.tolist() == [0, 1, 2]
    assert learner.predict_proba(TEST).shape == (len(TEST), 3)


@every_method
def test_tasks_may_be_uneven(name: str, new_learner: NewLearner) -> None:
    learner = taught(new_learner(name), [make_task([0, 1, 2]), make_task([3]), make_task([4, 5])])
    probability = learner.predict_proba(TEST)
    assert learner.tasks_ == [[0, 1, 2], [3], [4, 5]]
    assert probability.shape == (len(TEST), 6)
    assert np.isfinite(probability).all()
    assert np.allclose(probability.sum(1), 1)
    assert np.isfinite(learner.in_distribution(TEST)).all()


@every_method
@pytest.mark.parametrize("labels", [[[7, 3], [5]], [["seven", "three"], ["five"]]], ids=["integers", "strings"])
def test_answers_are_the_labels_that_were_taught(name: str, labels: list, new_learner: NewLearner) -> None:
    tasks = [make_task(names) for names in labels]
    learner = taught(new_learner(name), tasks)
    assert learner.classes_.tolist() == [label for task in labels for label in task]
    answers = learner.predict(tasks[0][0])
    assert set(answers.tolist()) <= set(learner.classes_.tolist())
    assert answers.tolist() == learner.classes_[learner.predict_proba(tasks[0][0]).argmax(1)].tolist()


@every_method
def test_the_order_of_images_in_a_task_does_not_name_the_classes(name: str, new_learner: NewLearner) -> None:
    images, labels = make_task(["b", "a"])
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[np.argsort(np.array(labels)[order] != "a", kind="stable")]  # "a" comes first now
    learner = new_learner(name).learn(images[order], [labels[i] for i in order])
    assert learner.classes_.tolist() == ["a", "b"]


@every_method
def test_what_was_learned_is_known_again(name: str, new_learner: NewLearner) -> None:
    """Patterns that even a small network tells apart, one task: chance is a third."""
    learner = new_learner(name, epochs=6, wp_epochs=6).learn(*make_task([0, 1, 2]))
    assert learner.score(*make_task([0, 1, 2], 8, seed=1)) > 0.6


@every_method
def test_the_default_views_and_columns_fit_the_scores(name: str, new_learner: NewLearner) -> None:
    learner = taught(new_learner(name), [make_task([0, 1, 2]), make_task([3])])
    method, images = learner.method, prepare(TEST, learner.trunk.card.preprocessing)
    with torch.no_grad():
        encoded = method.encode(images, method.feature_sets(2))
        assert method.scores(encoded).shape == (len(TEST), 4)
        assert method.task_scores(encoded).shape == (len(TEST), 2)
        assert method.in_distribution(encoded).shape == (len(TEST),)
        assert [method.within_task(encoded, task).shape[1] for task in (0, 1)] == [3, 1]
        assert all(read(method, encoded).shape == (len(TEST), 4) for read in method.variants.values())


@every_method
def test_every_detector_that_finds_its_evidence_scores_every_image(name: str, new_learner: NewLearner) -> None:
    learner = taught(new_learner(name), [make_task([0, 1, 2]), make_task([3])])
    method, seen = learner.method, set()
    for detector, one in detectors.all().items():
        if not one.missing(method.evidence):
            method.config = dataclasses.replace(method.config, detector=detector)
            scores = learner.in_distribution(TEST)
            assert scores.shape == (len(TEST),) and np.isfinite(scores).all()
            seen.add(detector)
    assert {"own", "energy"} <= seen


# Determinism


@every_method
def test_the_same_seed_gives_the_same_learner(name: str, new_learner: NewLearner) -> None:
    torch.manual_seed(1)
    one = taught(new_learner(name), TASKS[:2])
    torch.manual_seed(2)  # torch's own generator has no say
    other = taught(new_learner(name), TASKS[:2])
    assert_same(snapshot(one), snapshot(other))
    assert np.array_equal(one.predict_proba(TEST), other.predict_proba(TEST))


@every_method
def test_another_seed_gives_another_learner(name: str, new_learner: NewLearner, after: After) -> None:
    one, other = after(name, 2), taught(new_learner(name, seed=1), TASKS[:2])
    assert differs(snapshot(one), snapshot(other))
    assert not np.array_equal(one.predict_proba(TEST), other.predict_proba(TEST))


@every_gated_method
def test_another_seed_gives_another_learner_from_the_very_same_images(name: str, new_learner: NewLearner) -> None:
    one, other = (taught(new_learner(name, seed=seed, calibration=0.0), TASKS[:2]) for seed in (0, 1))
    first, second = (learner.method.protector.state_dict() for learner in (one, other))
    assert any(not torch.equal(value, second[key]) for key, value in first.items())
    assert not np.array_equal(one.predict_proba(TEST), other.predict_proba(TEST))


@every_method
def test_initial_values_are_not_drawn_where_the_weights_are(
    name: str, new_learner: NewLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generators are the CPU's, and a tensor on another device would refuse them."""
    drawn: list[Tensor] = []  # kept, so that no other gets its place

    def watched(original: Callable) -> Callable:
        def draw(tensor: Tensor, *rest: object, **named: object) -> Tensor:
            if any(isinstance(value, torch.Generator) for value in (*rest, *named.values())):
                drawn.append(tensor)
            return original(tensor, *rest, **named)

        return draw

    for function in ("trunc_normal_", "uniform_", "normal_"):
        monkeypatch.setattr(nn.init, function, watched(getattr(nn.init, function)))
    learner = new_learner(name)
    for task in TASKS[:2]:
        prepared = learner.prepare_task(*task)
        learner.method.begin(prepared.task)
        learner._tasks.append(FinishedTask(prepared.classes, prepared.images, None, None))
    assert drawn or not list(learner.method.parameters())
    weights = {parameter.data_ptr() for parameter in learner.method.parameters()}
    assert not weights & {tensor.data_ptr() for tensor in drawn}


# Files


@every_method
def test_a_saved_learner_predicts_the_same_and_goes_on_the_same(
    name: str, new_learner: NewLearner, tmp_path: Path
) -> None:
    learner = taught(new_learner(name), TASKS[:2])
    learner.save(tmp_path / "model.oar")
    again = oarlock.load(tmp_path / "model.oar")
    assert_same(snapshot(learner), snapshot(again))
    assert np.array_equal(learner.predict_proba(TEST), again.predict_proba(TEST))
    assert np.array_equal(learner.in_distribution(TEST), again.in_distribution(TEST))
    assert_same(*(snapshot(taught(one, TASKS[2:])) for one in (learner, again)))


@pytest.mark.filterwarnings("ignore:an adapter has hardly a free unit left")  # eight are few
@every_method
def test_a_learner_with_the_papers_options_survives_saving_too(
    name: str, new_learner: NewLearner, tmp_path: Path
) -> None:
    papers = protocols.find("c10-5t").options(name)
    own = {option: value for option, value in papers.items() if option not in SMALL and "epochs" not in option}
    learner = taught(new_learner(name, **own, adapt_last=None), TASKS[:2])
    learner.save(tmp_path / "model.oar")
    assert np.array_equal(learner.predict_proba(TEST), oarlock.load(tmp_path / "model.oar").predict_proba(TEST))


# Stopped and resumed


@every_method
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_stopped_anywhere_and_resumed_equals_never_stopped(
    name: str, optimiser: str, new_learner: NewLearner
) -> None:
    if optimiser == "adamw" and "optimiser" not in options_of(name):
        pytest.skip("the method chooses its optimiser")
    whole = taught(new_learner(name, optimiser=optimiser), TASKS[:1])
    kept = Checkpoints(whole)
    teach(whole, TASKS[1], kept)
    expected = snapshot(whole)
    expected_later = snapshot(whole.learn(*TASKS[2]))
    for number, saved in enumerate(kept.seen):
        learner = resumed(saved, TASKS[1])
        assert_same(snapshot(learner), expected)
        if number % 3 == 0:
            assert_same(snapshot(learner.learn(*TASKS[2])), expected_later)


@every_method
def test_a_checkpoint_is_due_after_every_epoch_and_every_phase(name: str, after: After) -> None:
    learner = after(name, 1)
    kept = Checkpoints(learner)
    prepared = teach(learner, TASKS[1], kept)
    phases = learner.method.phases(prepared.task)
    expected = []
    for number, phase in enumerate(phases):
        expected += [(1, number, epoch + 1) for epoch in range(phase.epochs)] + [(1, number + 1, 0)]
    assert [saved.position for saved in kept.seen] == expected


# Refusals and accidents


@every_method
def test_a_class_cannot_be_learned_twice(name: str, after: After) -> None:
    learner = after(name, 1)
    before = snapshot(learner)
    with pytest.raises(OarlockError, match="1"):
        learner.learn(*make_task([7, 1]))
    assert_same(snapshot(learner), before)


BAD_INPUT = {
    "no images": (np.zeros((0, 16, 16, 3), np.uint8), []),
    "fewer labels": (make_images(9, 4), [9]),
    "a wrong type": (make_images(9, 4).astype(np.int64), [9] * 4),
    "a wrong shape": (np.zeros((4, 16, 16, 7), np.uint8), [9] * 4),
    "not numbers": (np.full((4, 16, 16, 3), np.nan), [9] * 4),
    "another kind of label": (make_images(9, 4), ["nine"] * 4),
}


@every_method
@pytest.mark.parametrize("what", BAD_INPUT)
def test_bad_input_is_refused_and_nothing_changes(name: str, what: str, after: After) -> None:
    learner = after(name, 1)
    before = snapshot(learner)
    with pytest.raises(OarlockError):
        learner.learn(*BAD_INPUT[what])
    assert_same(snapshot(learner), before)


@pytest.mark.parametrize("name", [name for name, cls in methods.all().items() if cls.needs_memory])
def test_more_classes_than_the_memory_holds_are_refused(name: str, after: After) -> None:
    learner = after(name, 1)
    before = snapshot(learner)
    with pytest.raises(OarlockError, match="memory of 12 images"):
        learner.learn(*make_task(list(range(20, 40)), 2))
    assert_same(snapshot(learner), before)


@every_method
@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
@pytest.mark.parametrize(("event", "number"), [("phase", 0), ("step", 0), ("step", 7), ("checkpoint", 0)])
def test_an_accident_in_the_middle_leaves_the_learner_as_it_was(
    name: str, event: str, number: int, error: type[BaseException], after: After
) -> None:
    learner = after(name, 1)
    before, answers = snapshot(learner), learner.predict_proba(TEST)
    callback = RaiseAt(event, number, error)
    try:
        learner.learn(*TASKS[1], callback=callback)
    except error:
        assert_same(snapshot(learner), before)
        assert np.array_equal(learner.predict_proba(TEST), answers)
    else:
        assert callback.left >= 0 and event == "step"  # a method may need fewer steps
        return
    learner.learn(*TASKS[1])
    assert_same(snapshot(learner), snapshot(after(name, 2)))


@every_method
def test_an_accident_at_the_last_checkpoint_leaves_the_learner_as_it_was(name: str, after: After) -> None:
    learner, other = after(name, 1), after(name, 1)
    before, kept = snapshot(learner), Checkpoints(other)
    teach(other, TASKS[1], kept)
    with pytest.raises(Stopped):
        learner.learn(*TASKS[1], callback=RaiseAt("checkpoint", len(kept.seen) - 1, Stopped))
    assert_same(snapshot(learner), before)


# Test labels


@every_method
def test_a_method_is_shown_only_the_images_it_was_given(
    name: str, new_learner: NewLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TaskData] = []
    cls: type[Method] = methods.all()[name]

    def begin(self: Method, task: TaskData, *, original=cls.begin) -> None:
        seen.append(task)
        original(self, task)

    def phases(self: Method, task: TaskData, *, original=cls.phases) -> list:
        seen.append(task)
        return original(self, task)

    monkeypatch.setattr(cls, "begin", begin)
    monkeypatch.setattr(cls, "phases", phases)
    learner = new_learner(name)
    for index, (images, labels) in enumerate(TASKS[:2]):
        seen.clear()
        learner.learn(images, labels)
        given = {image.tobytes() for image in images.transpose(0, 3, 1, 2)}
        assert seen
        for task in seen:
            assert {field.name for field in dataclasses.fields(task)} == {
                "index", "images", "labels", "classes", "seed"
            }  # fmt: skip
            assert (task.index, task.classes) == (index, 2)
            assert {image.numpy().tobytes() for image in task.images} <= given
            assert sorted(set(task.labels.tolist())) == [0, 1]
            assert len(task.images) == len(task.labels) == 18  # a tenth is kept for calibration


@every_method
def test_test_images_and_labels_have_no_influence_on_what_is_learned(name: str, new_learner: NewLearner) -> None:
    def learned(test_seed: int, shift: int) -> dict[str, Tensor]:
        classes = ("a", "b", "c", "d")
        train = Labelled(make_task([0, 1, 2, 3])[0], np.repeat(classes, 10))
        test = Labelled(make_task([0, 1, 2, 3], 4, seed=test_seed)[0], np.roll(np.repeat(classes, 4), shift))
        stream = Stream.from_source(Source("small", classes, train, test), 2)
        learner, record = new_learner(name), Record()
        evaluator = Evaluator(stream, learner)
        for task in stream:
            learner.learn(task.train.images, task.train.labels.tolist())
            evaluator.learner = learner
            evaluator.after_task(record)
        return snapshot(learner)

    assert_same(learned(test_seed=1, shift=0), learned(test_seed=2, shift=5))


# What HAT does for every method that it protects


def within_task_accuracy(learner: Learner, task: int, images: Tensor, labels: Tensor) -> float:
    method = learner.method
    encoded = method.encode(images, method.feature_sets(len(learner.tasks_)))
    return (method.within_task(encoded, task).argmax(1) == labels).double().mean().item()


@every_gated_method
@pytest.mark.parametrize(
    "optimiser",
    [
        {"optimiser": "sgd", "momentum": 0.9, "lr": 0.05},
        {"optimiser": "adamw", "lr": 0.01, "gate_lr": 0.01, "head_lr": 0.01},
    ],
    ids=["sgd with momentum", "adamw"],
)
def test_what_a_finished_task_answers_never_changes_again(
    name: str, optimiser: dict, new_learner: NewLearner, tmp_path: Path
) -> None:
    options = {"protector": "hat", "epochs": 4, "width": 6, "grow_below": 0.8, "wing": 5, "weight_decay": 0.01}
    learner = new_learner(name, **options, **optimiser)
    classes = [[0, 1], [2, 3, 4], [5], [6, 7]]
    tests = [make_task(labels, 6, seed=1)[0] for labels in classes]
    tests = [prepare(images, learner.trunk.card.preprocessing) for images in tests]
    truth = [torch.arange(len(labels)).repeat_interleave(6) for labels in classes]
    foreign = prepare(np.concatenate([make_images(9, 5), TEST]), learner.trunk.card.preprocessing)
    promised: list[dict[str, Tensor]] = []
    accuracy: list[float] = []
    weights: list[Tensor] = []

    def ask(learner: Learner, task: int) -> dict[str, Tensor]:
        with torch.no_grad():
            own = learner.method.promised(tests[task], task)
            other = learner.method.promised(foreign, task)
        both = own | {f"foreign {key}": value for key, value in other.items()}
        return {key: value.detach().clone() for key, value in both.items()}

    for index, labels in enumerate(classes):
        learner.learn(*make_task(labels, 20))
        promised.append(ask(learner, index))
        accuracy.append(within_task_accuracy(learner, index, tests[index], truth[index]))
        weights.append(
            torch.cat([p.detach().flatten() for p in learner.method.protector.layers[0].bottlenecks[0].parameters()])
        )
        for earlier in range(index + 1):
            now = ask(learner, earlier)
            assert now.keys() == promised[earlier].keys()
            assert [key for key in now if not torch.equal(now[key], promised[earlier][key])] == []
            if any(key.endswith("logits") for key in now):
                assert within_task_accuracy(learner, earlier, tests[earlier], truth[earlier]) == accuracy[earlier]

    assert "features" in promised[0]
    assert any(key.endswith("logits") for key in promised[0]) == (name not in ANSWERS_MOVE)
    gates = learner.method.protector.gates
    wings = [sum(len(widths) for widths in task.hidden) for task in gates]
    assert wings[-1] > wings[0], "no wing was grown, so the test shows too little"
    overlap = [
        ((one.hidden[layer][0] > 0) & (other.hidden[layer][0] > 0)).any().item()
        for one, other in pairwise(gates)
        for layer in range(len(learner.method.protector.layers))
    ]
    assert any(overlap), "no unit is used by two tasks, so the test shows too little"
    assert any(not torch.equal(a, b) for a, b in pairwise(weights)), "nothing was left to learn with"

    learner.save(tmp_path / "model.oar")
    again = oarlock.load(tmp_path / "model.oar")
    for index in range(len(classes)):
        now = ask(again, index)
        assert [key for key in now if not torch.equal(now[key], promised[index][key])] == []


@every_gated_method
def test_units_that_finished_tasks_use_do_not_move_and_free_ones_do(name: str, new_learner: NewLearner) -> None:
    learner = taught(new_learner(name, protector="hat", weight_decay=0.01, grow_below=0.0), TASKS[:1])
    before = [
        {key: value.clone() for key, value in layer.bottlenecks[0].state_dict().items()}
        for layer in learner.method.protector.layers
    ]
    learner.learn(*TASKS[1])
    moved = {"fc1": 0, "fc2": 0}
    for old, layer in zip(before, learner.method.protector.layers, strict=True):
        now = layer.bottlenecks[0].state_dict()
        hidden, output = old["hidden_used"], old["output_used"]
        kept = {"fc1.weight": hidden[:, None], "fc1.bias": hidden, "fc2.bias": output}
        kept["fc2.weight"] = output[:, None] & hidden[None]
        for key, mask in kept.items():
            same = now[key] == old[key]
            assert (same | ~mask).all()
            moved[key[:3]] += int((~same).sum())
    assert moved["fc1"] > 0
    assert moved["fc2"] > 0
