"""Runs: what they leave on disk, that they repeat, and that a stopped one ends as if it had never been stopped."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import oarlock
from conftest import Command, make_images
from contract.conftest import RaiseAt
from oarlock import OarlockError
from oarlock import session as checkpoints
from oarlock.data.streams import Stream
from oarlock.experiments.config import RunConfig, saved_config
from oarlock.experiments.evaluation import Record
from oarlock.experiments.run import NoDisplay, run
from oarlock.files import read_tensors
from oarlock.methods.row import TrainWpHead
from oarlock.nets.trunks import Trunk
from oarlock.training import Phase

EPOCHS = {"epochs": 2, "wp_epochs": 2, "ood_epochs": 2}
OPTIONS = {"adapt_last": 1, "width": 8, "batch": 8, "head_batch": 8, "few": 0, **EPOCHS}
FIELDS = {
    *("method", "protocol", "order", "seed", "memory", "trunk", "config", "threads", "tasks"),
    *("accuracy", "til_accuracy", "task_id_accuracy", "aca", "aia", "forgetting", "ood_auroc"),
    *("entries", "seconds", "peak_mb", "free_capacity", "overlap", "versions"),
}
POSITIONS = [
    *[(0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 1, 2), (0, 2, 0), (0, 3, 0)],
    *[(1, 0, 1), (1, 0, 2), (1, 1, 0), (1, 1, 1), (1, 1, 2), (1, 2, 0), (1, 2, 1), (1, 2, 2), (1, 3, 0)],
]  # one task has no OOD heads to tune


def make_archive(path: Path, *, classes: int = 4, test_seed: int = 1, shift: int = 0, unknown: bool = True) -> Path:
    """Classes "a", "b", … with 12 train and 6 test images each, 32 pixels wide."""
    numbers = range(classes)
    arrays = {
        "train_x": np.concatenate([make_images(number, 12, 32) for number in numbers]),
        "train_y": np.repeat(numbers, 12),
        "test_x": np.concatenate([make_images(number, 6, 32, seed=test_seed) for number in numbers]),
        "test_y": np.roll(np.repeat(numbers, 6), shift),
        "classes": np.array(list("abcdefgh")[:classes]),
    }
    if unknown:
        arrays["unknown_x"] = make_images(50, 8, 32)
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archive(tmp_path_factory.mktemp("data") / "four.npz")


@pytest.fixture(scope="module")
def config(archive: Path) -> RunConfig:
    return RunConfig(str(archive), memory=8, threads=1, options=OPTIONS)


@pytest.fixture(scope="module")
def finished(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    run(config, out)
    return out


def result_of(out: Path) -> dict[str, Any]:
    """Without what time and the machine decide."""
    result = json.loads((out / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("seconds", "peak_mb")}


def assert_same_run(one: Path, other: Path) -> None:
    assert result_of(one) == result_of(other)
    for name, kind in (("model.oar", "model"), ("evaluation.safetensors", "evaluation")):
        (tensors, description), (others, other_description) = (read_tensors(out / name, kind) for out in (one, other))
        assert description == other_description
        assert tensors.keys() == others.keys()
        assert [key for key, value in tensors.items() if not torch.equal(value, others[key])] == []


def events_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


# One run in a directory


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_another_process_began_or_ended_in_the_meantime_is_left_alone(
    resume: bool, config: RunConfig, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def stream(self: RunConfig, *, original: Callable = RunConfig.stream) -> Stream:
        if not out.exists():
            shutil.copytree(finished, out)  # while this process was reading its data
        return original(self)

    monkeypatch.setattr(RunConfig, "stream", stream)
    if resume:
        assert run(config, out, resume=True).to_json() == json.loads((finished / "result.json").read_text())
    else:
        with pytest.raises(OarlockError, match="holds a run"):
            run(replace(config, seed=1), out)
    for name in ("config.json", "result.json"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_image_that_stopped_a_run_may_be_removed_and_those_used_may_not_change(part: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "photos", tmp_path / "run"
    for number, name in enumerate("abcd"):
        for of, seed in (("train", 0), ("test", 1)):
            (folder / of / name).mkdir(parents=True)
            for index, image in enumerate(make_images(number, 6, 32, seed)):
                Image.fromarray(image).save(folder / of / name / f"{index}.png")
    broken, used = folder / part / "d" / "0.png", folder / part / "a" / "0.png"
    broken.write_bytes(broken.read_bytes()[:60])
    config = RunConfig(str(folder), method="slda", memory=8, threads=1)
    with pytest.raises(OarlockError, match=r"0\.png: not a readable image"):
        run(config, out)
    broken.unlink()
    pixels = used.read_bytes()
    used.write_bytes(pixels + b"more")
    with pytest.raises(OarlockError, match="are not those the run"):
        run(config, out, resume=True)
    used.write_bytes(pixels)
    assert run(config, out, resume=True).tasks == [["a", "b"], ["c", "d"]]


# What a run leaves


def test_the_directory_holds_what_the_design_says(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {"config.json", "events.jsonl", "checkpoint", "model.oar", "result.json"} <= names
    assert not list(finished.rglob("*.tmp"))


def test_the_result_has_every_field(finished: Path, config: RunConfig) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert set(result) >= FIELDS
    assert result["tasks"] == [["a", "b"], ["c", "d"]]
    assert [result[key] for key in ("method", "order", "seed", "memory", "trunk", "threads")] == [
        "oar", 0, 0, 8, "vit_pico", 1,
    ]  # fmt: skip
    assert OPTIONS.items() <= result["config"].items()
    assert set(result["config"]) > set(OPTIONS)  # written out in full
    assert set(result["seconds"]) == {"train", "evaluate"}
    assert result["peak_mb"] > 0
    assert result["overlap"] in ("yes", "no", "unknown")
    assert result["entries"] == oarlock.load(finished / "model.oar").entries()
    assert {"oarlock", "python", "torch"} <= set(result["versions"])


def test_matrices_are_lower_triangular_and_numbers_follow_from_them(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    accuracy = result["accuracy"]
    for matrix in (accuracy, result["til_accuracy"], *(r["accuracy"] for r in result["variants"].values())):
        assert [len(row) for row in matrix] == [1, 2]
        assert all(0 <= value <= 100 for row in matrix for value in row)
    assert result["aca"] == pytest.approx(np.mean(accuracy[1]))
    assert result["aia"] == pytest.approx(np.mean([accuracy[0][0], np.mean(accuracy[1])]))
    assert result["forgetting"] == pytest.approx(accuracy[0][0] - accuracy[1][0])
    assert 0 <= result["ood_auroc"] <= 1
    assert len(result["free_capacity"]) == 2
    assert all(0 <= share <= 1 for share in result["free_capacity"])


def test_finished_tasks_did_not_change(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert result["unchanged"]["changed"] == 0
    assert result["unchanged"]["compared"] > 0
    assert result["til_accuracy"][0][0] == result["til_accuracy"][1][0]


def test_a_finished_task_that_changed_is_counted(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(self: TrainWpHead, *, original: Callable = TrainWpHead.finish) -> None:
        original(self)
        self.row.wp_heads[0].bias.data[0] += self.task.index  # nothing in the first task

    monkeypatch.setattr(TrainWpHead, "finish", finish)
    unchanged = run(config, tmp_path / "run").unchanged
    assert unchanged["changed"] == 12  # one of the two logits of the first task's 12 test images


def test_the_saved_model_has_the_accuracy_that_the_result_reports(finished: Path, archive: Path) -> None:
    learner, arrays = oarlock.load(finished / "model.oar"), np.load(archive)
    answers = learner.predict(arrays["test_x"]) == arrays["classes"][arrays["test_y"]]
    by_task = [100 * answers[arrays["test_y"] // 2 == task].mean() for task in (0, 1)]
    assert json.loads((finished / "result.json").read_text())["accuracy"][-1] == pytest.approx(by_task)


def test_config_json_repeats_the_run(finished: Path, config: RunConfig) -> None:
    saved = saved_config(finished)
    assert saved.options.items() > OPTIONS.items()
    assert (saved.source, saved.threads, saved.increment) == (config.source, 1, 2)


def test_events_tell_every_epoch_and_task_in_order(finished: Path) -> None:
    events = events_of(finished)
    assert [tuple(e["position"]) for e in events if e["event"] == "epoch"] == [p for p in POSITIONS if p[2]]
    assert [e["task"] for e in events if e["event"] == "task"] == [0, 1]
    assert events[-1]["event"] == "finished"
    assert [e["time"] for e in events] == sorted(e["time"] for e in events)


def test_one_task_has_no_forgetting_and_without_unknowns_there_is_no_auroc(tmp_path: Path) -> None:
    source = make_archive(tmp_path / "two.npz", classes=2, unknown=False)
    result = run(RunConfig(str(source), memory=4, threads=1, options=OPTIONS), tmp_path / "out")
    assert result.forgetting is None
    assert result.ood_auroc is None
    assert [len(row) for row in result.accuracy] == [1]


def test_uneven_tasks_a_named_order_and_validation_are_kept(archive: Path, tmp_path: Path) -> None:
    settings = {"increment": [1, 2], "order": ["d", "a", "c"], "validation": 0.25}
    result = run(RunConfig(str(archive), memory=8, threads=1, options=OPTIONS, **settings), tmp_path / "out")
    assert result.tasks == [["d"], ["a", "c"]]
    assert {key: getattr(result, key) for key in settings} == settings
    assert result.ood_auroc is None  # unknown inputs are for the test alone


# The same again


def test_the_same_settings_give_the_same_run(finished: Path, config: RunConfig, tmp_path: Path) -> None:
    run(config, tmp_path / "again")
    assert_same_run(tmp_path / "again", finished)


def test_another_seed_gives_another_model(finished: Path, config: RunConfig, tmp_path: Path) -> None:
    run(RunConfig(**{**vars(config), "seed": 1}), tmp_path / "other")
    one, other = (oarlock.load(out / "model.oar") for out in (finished, tmp_path / "other"))
    assert not torch.equal(one.method.wp_heads[0].weight, other.method.wp_heads[0].weight)


def test_test_images_and_labels_have_no_influence_on_the_model(
    finished: Path, config: RunConfig, tmp_path: Path
) -> None:
    source = make_archive(tmp_path / "four.npz", test_seed=5, shift=7, unknown=False)
    run(RunConfig(**{**vars(config), "source": str(source)}), tmp_path / "out")
    (tensors, _), (others, _) = (read_tensors(out / "model.oar", "model") for out in (finished, tmp_path / "out"))
    assert all(torch.equal(value, others[key]) for key, value in tensors.items())


# Stopped and resumed


class StopAt(RaiseAt, NoDisplay):
    """Stops a run at a checkpoint, after a number of steps, or when a task was measured."""

    def on_evaluated(self, record: Record) -> None:
        self._happened("evaluated")


EVERY_EPOCH, ONLY_PHASES = 0.0, 1e9


@pytest.mark.parametrize(
    ("event", "number", "error", "seconds"),
    [
        ("phase", 0, KeyboardInterrupt, EVERY_EPOCH),  # before anything was saved
        ("step", 4, KeyboardInterrupt, EVERY_EPOCH),
        ("step", 4, KeyboardInterrupt, ONLY_PHASES),
        ("checkpoint", 5, RuntimeError, EVERY_EPOCH),
        ("evaluated", 0, KeyboardInterrupt, EVERY_EPOCH),
        ("step", 20, RuntimeError, EVERY_EPOCH),
        ("step", 25, RuntimeError, ONLY_PHASES),
        ("checkpoint", 15, KeyboardInterrupt, EVERY_EPOCH),
    ],
)
def test_a_stopped_run_that_is_resumed_equals_the_one_that_was_not(
    event: str,
    number: int,
    error: type[BaseException],
    seconds: float,
    finished: Path,
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", seconds)
    with pytest.raises(error):
        run(config, tmp_path / "out", display=StopAt(event, number, error))
    assert not (tmp_path / "out" / "result.json").exists()
    run(config, tmp_path / "out", resume=True)
    assert_same_run(tmp_path / "out", finished)


def test_a_run_may_be_stopped_again_and_again(
    finished: Path, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    steps, stops = random.Random(0), 0
    while True:
        try:
            stop = StopAt("checkpoint", steps.randint(2, 4), KeyboardInterrupt)
            run(config, tmp_path / "out", resume=True, display=stop)
        except KeyboardInterrupt:
            stops += 1
        else:
            break
    assert stops >= 3
    assert_same_run(tmp_path / "out", finished)


def test_resuming_the_finished_run_returns_its_result_and_writes_nothing(finished: Path, config: RunConfig) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    result = run(config, finished, resume=True, display=StopAt("phase", 0, AssertionError))
    assert result.to_json() == json.loads((finished / "result.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_a_run_stopped_just_before_its_result_was_written_is_concluded(
    finished: Path, config: RunConfig, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    (tmp_path / "out" / "result.json").unlink()
    (tmp_path / "out" / "model.oar").unlink()
    run(config, tmp_path / "out", resume=True, display=StopAt("phase", 0, AssertionError))
    assert_same_run(tmp_path / "out", finished)


def test_resuming_where_nothing_is_starts_the_run(finished: Path, config: RunConfig, tmp_path: Path) -> None:
    run(config, tmp_path / "out", resume=True)
    assert_same_run(tmp_path / "out", finished)


CHANGES: dict[str, Any] = {
    "seed": 1,
    "memory": 9,
    "increment": [2, 2],
    "order": 1,
    "validation": 0.2,
    "calibration": 0.2,
    "threads": 2,
    "options": {**OPTIONS, "epochs": 3},
}


@pytest.mark.parametrize("setting", CHANGES)
def test_resuming_with_another_setting_is_refused_by_its_name(
    setting: str, finished: Path, config: RunConfig, tmp_path: Path
) -> None:
    other = RunConfig(**{**vars(config), setting: CHANGES[setting]})
    unfinished = tmp_path / "unfinished"
    shutil.copytree(finished, unfinished)
    (unfinished / "result.json").unlink()
    for out in (finished, unfinished):
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
        with pytest.raises(OarlockError, match=f"has {setting} = "):
            run(other, out, resume=True)
        assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_options_written_as_text_are_the_same_options(finished: Path, config: RunConfig) -> None:
    as_text = {key: str(value) for key, value in OPTIONS.items()}
    assert run(RunConfig(**{**vars(config), "options": as_text}), finished, resume=True).seed == 0


def test_a_directory_in_use_is_refused(finished: Path, config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("two years of work")
    for out, why in ((finished, "holds a run"), (tmp_path, "is not empty and holds no run")):
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
        with pytest.raises(OarlockError, match=why):
            run(config, out)
        assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_resuming_in_a_directory_of_other_things_is_refused(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("two years of work")
    with pytest.raises(OarlockError, match="holds no run"):
        run(config, tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_second_process_on_the_same_run_is_refused(config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"

    class RunAgain(NoDisplay):
        def on_phase(self, task: int, phase: Phase) -> None:
            with pytest.raises(OarlockError, match="another process"):
                run(config, out, resume=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, out, display=RunAgain())


def test_resuming_with_other_images_is_refused(config: RunConfig, tmp_path: Path) -> None:
    source = make_archive(tmp_path / "data.npz")
    ours = RunConfig(**{**vars(config), "source": str(source)})
    with pytest.raises(KeyboardInterrupt):
        run(ours, tmp_path / "out", display=StopAt("checkpoint", 3, KeyboardInterrupt))
    make_archive(source, test_seed=2)
    with pytest.raises(OarlockError, match="not those the run"):
        run(ours, tmp_path / "out", resume=True)


ODD = [
    *('{"threads": "2"}', '{"threads": 0}', '{"threads": 1000000000000}', '{"threads": true}', '{"options": []}'),
    *(
        '{"method": ["row"]}',
        '{"memory": 1.5}',
        '{"format": "4"}',
        '{"format": 99}',
        '{"seed": NaN}',
        '{"validation": NaN}',
        '{"test": {}}',
    ),
]


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "7",
        "null",
        '{"method": "row"}',
        "[" * 200_000,
        *(one.replace("{", '{"source": "x", ', 1) for one in ODD),
    ],
    ids=lambda content: content[:40],
)
def test_a_damaged_config_is_refused(config: RunConfig, tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(OarlockError, match="damaged"):
        run(config, tmp_path, resume=True)


def test_events_go_into_no_file_that_somebody_put_there(config: RunConfig, tmp_path: Path) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_text("precious")
    with pytest.raises(KeyboardInterrupt):
        run(config, out, display=StopAt("phase", 0, KeyboardInterrupt))
    (out / "events.jsonl").unlink(missing_ok=True)
    (out / "events.jsonl").symlink_to(victim)
    with pytest.raises(OarlockError, match=r"events\.jsonl cannot be written .it is a link"):
        run(config, out, resume=True)
    assert victim.read_text() == "precious"


def test_an_empty_directory_may_be_used(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "out", display=StopAt("phase", 0, KeyboardInterrupt))
    assert (tmp_path / "out" / "config.json").exists()


def test_a_damaged_checkpoint_is_refused(config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(config, out, display=StopAt("checkpoint", 3, KeyboardInterrupt))
    (state,) = (out / "checkpoint").iterdir()
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    with pytest.raises(OarlockError, match="damaged"):
        run(config, out, resume=True)


def test_a_memory_too_small_for_the_last_task_is_refused_before_the_first(config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(OarlockError, match=r"memory of 3.*4 classes"):
        run(RunConfig(**{**vars(config), "memory": 3}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Killed

KILLED = """
import os, signal, sys
from pathlib import Path
import oarlock.session as session
from oarlock.cli import main
session.CHECKPOINT_SECONDS = 0.0
event, number, now = sys.argv[1], int(sys.argv[2]), 0
def killing(cls, name):
    original = getattr(cls, name)
    def wrapped(self, *args, **kwargs):
        global now
        if now == number:
            os.kill(os.getpid(), signal.SIGKILL)
        now += 1
        return original(self, *args, **kwargs)
    setattr(cls, name, wrapped)
if event == "step":
    killing(session.Checkpointing, "on_step")
if event == "replace":  # a file was written under its temporary name
    replace = os.replace
    class Replace:
        def __call__(self, *args): return replace(*args)
    killing(Replace, "__call__")
    os.replace = Replace()
sys.argv = ["oarlock", *sys.argv[3:]]
main()
"""


def command_line(config: RunConfig, out: Path) -> list[str]:
    options = [part for key, value in OPTIONS.items() for part in ("--set", f"{key}={value}")]
    return ["run", config.source, "--memory", "8", "--threads", "1", *options, "--out", str(out)]


def start(config: RunConfig, out: Path, event: str, number: int, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-c", KILLED, event, str(number), *command_line(config, out), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


def wait_for(out: Path, lines: int, process: subprocess.Popen) -> None:
    """Until so many events were logged."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        path = out / "events.jsonl"
        if path.exists() and path.read_text().count("\n") >= lines:
            return
        time.sleep(0.002)
    raise AssertionError(f"the run did not get so far: {process.communicate()}")


def test_a_killed_run_that_is_resumed_equals_the_one_that_was_not(
    finished: Path, config: RunConfig, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(config, out, "none", 0)
    wait_for(out, 7, process)  # in the second task
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (out / "result.json").exists()
    run(saved_config(out), out, resume=True)
    assert_same_run(out, finished)
    assert not list(out.rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 4, 7, 11, 13, 17, 19, 22, 24, 25])
def test_killed_in_any_phase_and_resumed_by_the_command(
    step: int, finished: Path, config: RunConfig, tmp_path: Path
) -> None:
    """Three steps an epoch. Task 1: features 0–5, head 6–11. Task 2: features 12–17, head 18–23, OOD heads 24, 25."""
    out = tmp_path / "out"
    process = start(config, out, "step", step)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL, errors
    epochs = [event for event in events_of(out) if event["event"] == "epoch"] if step >= 3 else []
    assert len(epochs) == (step // 3 if step < 24 else step - 16)
    resumed = start(config, out, "none", 0, "--resume")
    _, errors = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, errors
    assert_same_run(out, finished)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 4, 9, 14, 18, 19, 20])
def test_killed_while_a_file_is_written_and_resumed(
    number: int, finished: Path, config: RunConfig, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(config, out, "replace", number)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL, errors
    resumed = start(config, out, "none", 0, "--resume")
    _, errors = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, errors
    assert_same_run(out, finished)


def test_a_folder_of_photos_is_tested_on_others_and_seen_by_the_trunk_for_photos(
    tmp_path: Path, oarlock: Command, tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("oarlock.learner.load_trunk", lambda name, *_: asked.append(name) or tiny_trunk)
    for folder, classes, count in (("train", "ab", 12), ("test", "ab", 3), ("strange", "c", 4)):
        for label in classes:
            (tmp_path / folder / label).mkdir(parents=True)
            for number, image in enumerate(make_images(ord(label), count, 32)):
                Image.fromarray(image).save(tmp_path / folder / label / f"{number}.png")
    elsewhere = ["--test", tmp_path / "test", "--unknown", tmp_path / "strange"]
    assert oarlock("run", tmp_path / "train", *elsewhere, "--increment", 1, "--out", tmp_path / "out") == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(asked) == {"efficientnet_lite0"} and result["ood_auroc"] is not None
    events = (tmp_path / "out" / "config.json").read_text()
    assert json.loads(events)["test"] == str(tmp_path / "test")
