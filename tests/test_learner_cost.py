"""What a task costs does not grow with the number of tasks before it: counted in passes of images, not in seconds.
And that the scripts which measure seconds and megabytes measure what they say."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import oarlock
from conftest import make_task
from contract.conftest import small_options
from oarlock import Learner, learner, tasks
from oarlock.nets.protectors.hat import Hat
from oarlock.nets.trunks import Trunk
from oarlock.tasks import calibration_limit, hold_out

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CLASSES = 2  # of a task
Limit = Callable[[int], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Bounds the calibration images."""

    def set_limit(images: int) -> None:
        for module in (learner, tasks):
            monkeypatch.setattr(module, "calibration_limit", lambda _: images)

    return set_limit


def labels_of(task: int) -> list[int]:
    return [CLASSES * task + number for number in range(CLASSES)]


def teach(trunk: Trunk, tasks: int, images: int, memory: int = 24) -> Learner:
    taught = Learner("oar", trunk=trunk, memory=memory, calibration=0.5, **small_options("oar"))
    for task in range(tasks):
        taught.learn(*make_task(labels_of(task), images))
    return taught


def calibration_counts(taught: Learner) -> list[int]:
    return taught.calibration.labels.bincount(minlength=len(taught.classes_)).tolist()


def test_calibration_images_are_bounded_and_all_classes_have_some(tiny_trunk: Trunk, limit: Limit) -> None:
    limit(12)
    taught = Learner("oar", trunk=tiny_trunk, memory=24, calibration=0.5, **small_options("oar"))
    counts = []
    for labels, images in (([0, 1], 20), ([2], 4), ([3, 4], 20), ([5], 20)):
        prepared = taught.prepare_task(*make_task(labels, images))
        taught.learn(*make_task(labels, images))
        counts.append(calibration_counts(taught))
        assert len(prepared.calibration) == sum(counts[-1][-len(labels) :])  # what could not be kept is trained on
        assert len(taught.calibration.encoded) == len(taught.calibration.images) == sum(counts[-1])
    assert counts == [[6, 6], [5, 5, 2], [3, 3, 2, 2, 2], [2, 2, 2, 2, 2, 2]]


def test_calibration_images_that_stay_keep_their_features_and_labels(tiny_trunk: Trunk, limit: Limit) -> None:
    limit(12)
    taught = teach(tiny_trunk, tasks=3, images=20)
    store, method = taught.calibration, taught.method
    torch.testing.assert_close(store.encoded, method.encode(store.images, method.feature_sets(3)))
    pictures, names = make_task(list(range(6)), 20)
    label_of = {picture.transpose(2, 0, 1).tobytes(): name for picture, name in zip(pictures, names, strict=True)}
    assert [label_of[image.numpy().tobytes()] for image in store.images] == store.labels.tolist()


def test_there_is_one_image_of_every_class_where_classes_are_more_than_the_limit(
    tiny_trunk: Trunk, limit: Limit
) -> None:
    limit(3)
    assert calibration_counts(teach(tiny_trunk, tasks=2, images=10)) == [1, 1, 1, 1]


def test_below_the_limit_calibration_is_what_it_is_without(tiny_trunk: Trunk, limit: Limit) -> None:
    learners = []
    for images in (20, 10**6):  # of calibration, five of each class
        limit(images)
        learners.append(teach(tiny_trunk, tasks=2, images=10))
    one, other = (taught.calibration for taught in learners)
    assert torch.equal(one.images, other.images) and torch.equal(one.encoded, other.encoded)
    assert one.labels.tolist() == other.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert learners[0].threshold(0.9) == learners[1].threshold(0.9)


def test_what_is_held_out_of_many_images_is_a_part_of_what_the_share_asks_for() -> None:
    labels = torch.tensor([0, 1, 1] * 5000)
    held, limit = hold_out(labels, 0.1, seed=0, task=3), calibration_limit(len(labels))
    assert labels[held].bincount().tolist() == [limit // 2] * 2
    crowded = hold_out(labels, 0.1, seed=0, task=3, before=torch.tensor([200] * 5))
    assert labels[crowded].bincount().tolist() == [limit // 7] * 2
    assert held[crowded].all()
    assert torch.nonzero(held).double().mean() == pytest.approx(7500, rel=0.1)  # from all over the class


def test_passes_of_a_task_do_not_grow_with_the_tasks_before_it(
    tiny_trunk: Trunk, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads are trained on kept features, so that all passes are those of the other parts."""
    passes, forward = [0], Hat.forward

    def counting(self: Hat, activations: Tensor, *arguments: object, **options: object) -> Tensor:
        passes[-1] += len(activations)
        return forward(self, activations, *arguments, **options)

    monkeypatch.setattr(Hat, "forward", counting)
    memory, calibration, images = 24, 24, 40
    limit(calibration)
    taught = Learner("oar", trunk=tiny_trunk, memory=memory, calibration=0.3, **small_options("oar"))
    own = []
    for task in range(6):
        prepared = taught.prepare_task(*make_task(labels_of(task), images))
        own.append(len(prepared.task.images) * (2 * taught.method.config.epochs + 1))  # with as many of the memory
        passes.append(0)
        taught.learn(*make_task(labels_of(task), images))
    besides = [all_passes - of_own for all_passes, of_own in zip(passes[1:], own, strict=True)]
    assert len(taught.calibration) == calibration and len(taught.method.memory) == memory
    assert (
        max(besides) <= 2 * memory + 2 * calibration + 8
    )  # new images under all tasks, old ones under the new; probes
    assert besides[5] <= 1.1 * besides[3]
    assert max(own[2:]) <= 1.1 * own[2]


# The scripts


def test_learn_cost_books_all_time_of_every_task_to_its_parts(
    tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learner, "load_trunk", lambda *_: tiny_trunk)
    arguments = ["learn_cost.py", "sample", "--increment", "1", "--tasks", "7", "--images", "10", "--memory", "14"]
    arguments += ["--set", "few=0"]
    monkeypatch.setattr(sys, "argv", arguments)
    script = runpy.run_path(str(BENCHMARKS / "learn_cost.py"), run_name="__main__")
    line = json.loads(capsys.readouterr().out)
    parts = {"images", "features", "within-task head", "memory", "OOD heads", "calibration, promise"}
    assert line["seconds"].keys() == parts
    assert all(len(seconds) == 7 for seconds in line["seconds"].values())
    assert (line["calibration_images"], line["memory_images"]) == ([1, 2, 3, 4, 5, 6, 7], 14)
    assert line["compared_from"] == 3
    assert script["first_complete"]([160, 320, 480, 640, 800, 960, *[980] * 6]) == 5
    assert script["first_complete"]([160, 320, 480, 640, 800, 960, 980]) == 2  # too few tasks are left
    for task, whole in enumerate(line["seconds_of_task"]):
        assert sum(seconds[task] for seconds in line["seconds"].values()) == pytest.approx(whole, abs=0.05)
    assert line["share_of_heads"][0] == line["seconds"]["OOD heads"][0] == 0  # a single task has nothing foreign
    assert line["share_of_heads"][6] > 0 and line["growth"] > 0


def test_many_tasks_goes_on_where_it_was_stopped_and_draws(
    tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(learner, "load_trunk", lambda *_: tiny_trunk)
    out, plot = tmp_path / "out", tmp_path / "plot.svg"

    def run(*arguments: object) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["many_tasks.py", *map(str, arguments), "--out", str(out)])
        runpy.run_path(str(BENCHMARKS / "many_tasks.py"), run_name="__main__")
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    small = ["sample", "--classes", 1, "--images", 6, "--asked", 4, "--memory", 20, "--set", "few=0"]
    first, second = run(*small, "--tasks", 2), run(*small, "--tasks", 10)
    assert [line.get("task") for line in first] == [1, 2, None]
    assert [line.get("task") for line in second] == [*range(3, 11), None]
    assert len((out / "lines.jsonl").read_text().splitlines()) == len(oarlock.load(out / "model.oar").tasks_) == 10
    assert {"seconds", "wings", "ms_all", "ms_fast", "ms_shortlist", "mb", "peak_mb"} < second[2].keys()
    assert second[-1]["growth"]["seconds"] > 0
    run("--plot", plot)
    assert "milliseconds an image" in plot.read_text()


@pytest.mark.slow
def test_memory_looks_at_both_commands() -> None:
    command = [sys.executable, str(BENCHMARKS / "memory.py"), "--images", "30,60", "--pixels", "32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = json.loads(done.stdout)
    for step in ("learn", "predict"):
        for anonymous, peak in zip(line["anonymous_mb"][step], line["peak_mb"][step], strict=True):
            assert 50 < anonymous < peak
