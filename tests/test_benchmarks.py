"""Benchmarks on the tiny trunk: both sides do the same work, one JSON line comes of it. Seconds are not tested."""

import argparse
import copy
import importlib
import json
import runpy
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import make_images, make_task
from oarlock import Learner, OarlockError
from oarlock.experiments.config import RunConfig
from oarlock.experiments.protocols import PROTOCOLS
from oarlock.methods import configure, methods
from oarlock.nets.trunks import Trunk
from oarlock.training import NoCallback, Position, TaskData, run_phases

FOLDER = Path(__file__).parents[1] / "benchmarks"

Benchmark = Callable[..., dict[str, Any]]


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """What benchmarks are made of, by name."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture
def benchmark(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: Callable[[str], ModuleType],
    tiny_trunk: Trunk,
) -> Benchmark:
    """A script run as a program in this process, with the tiny trunk for the bundled one; what it reports."""
    monkeypatch.setattr("oarlock.learner.load_trunk", lambda *_: tiny_trunk)
    monkeypatch.setattr(part("workloads"), "load_trunk", lambda *_: tiny_trunk)

    def run(name: str, *arguments: object) -> dict[str, Any]:
        script = FOLDER / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), "--threads", "1", *map(str, arguments)])
        runpy.run_path(str(script), run_name="__main__")
        (line,) = capsys.readouterr().out.splitlines()
        found: dict[str, Any] = json.loads(line)
        assert found["name"] == name
        assert found["ratio"] > 0
        assert {"goal", "accuracy_difference", "cpu_bf16"} < found.keys()
        return found

    return run


@pytest.fixture
def taught(tiny_trunk: Trunk) -> Callable[..., tuple[Learner, TaskData]]:
    """A learner of one task, and a second task for it."""

    def teach(**options: Any) -> tuple[Learner, TaskData]:
        small = {"width": 8, "batch": 8, "head_batch": 8, "epochs": 1, "memory": 8, "few": 0} | options
        learner = Learner("oar", trunk=tiny_trunk, **small).learn(*make_task([0, 1]))
        return learner, learner.prepare_task(*make_task([2, 3])).task

    return teach


@pytest.mark.parametrize("script", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_every_script_can_be_imported(part: Callable[[str], ModuleType], script: str) -> None:
    assert part(script).__doc__


def test_heads_trained_on_kept_features_are_those_trained_on_new_ones(benchmark: Benchmark) -> None:
    small = ["--data", "sample", "--tasks", 3, "--increment", 2, "--images", 8, "--memory", 12, "--ood-epochs", 2]
    found = benchmark("heads", *small)
    assert found["head_difference"] < 1e-4
    assert found["accuracy_difference"] == 0


@pytest.mark.parametrize("adapted", [[], ["--adapt-last", 1]])
def test_evaluating_a_stream_finds_the_same_accuracies_with_fewer_passes(
    benchmark: Benchmark, adapted: list[object]
) -> None:
    found = benchmark("evaluate", "--data", "sample", "--tasks", 3, "--increment", 2, "--images", 2, *adapted)
    assert found["accuracy_difference"] == 0
    each = 4  # test images of a task
    assert found["passes"] == 3 * each * (3 + 1)
    assert found["reference_passes"] == each * (1 * 2 + 2 * 3 + 3 * 4)


def test_a_model_that_is_read_is_the_one_that_is_mapped(benchmark: Benchmark) -> None:
    found = benchmark("load_model", "--megabytes", 1, "--images", 4, "--repeats", 1)
    assert found["accuracy_difference"] == 0
    assert 0.9 < found["megabytes"] < 2
    assert all(found[name]["ratio"] > 0 for name in ("load", "predict", "save"))


STEP_1 = ["--images", 4, "--batch", 4, "--memory", 4, "--epochs", 2, "--repeats", 1]


@pytest.mark.parametrize("script", ["step1", "step1_late"])
def test_step_1_is_the_same_training_on_both_sides(benchmark: Benchmark, script: str) -> None:
    found = benchmark(script, "--trunk", "vit_pico", "--trunk", "test_vit", "--no-bf16", *STEP_1)
    assert found["accuracy_difference"] == 0 and not found["bf16"]
    assert found["trunks"]["test_vit"]["accuracy_difference"] is None
    assert found["ratio"] == min(of_trunk["ratio"] for of_trunk in found["trunks"].values())
    for of_trunk in found["trunks"].values():
        assert of_trunk["loss_difference"] < 1e-4
        assert of_trunk["gradient_difference"] < 1e-3


@pytest.mark.parametrize("script", ["step1", "step1_late"])
def test_step_1_in_bfloat16_is_the_same_training_but_for_rounding(benchmark: Benchmark, script: str) -> None:
    """On every processor: without instructions for bfloat16 torch rounds in software."""
    found = benchmark(script, "--trunk", "vit_pico", "--trunk", "test_vit", "--bf16", *STEP_1)
    rounding = torch.finfo(torch.bfloat16).eps  # 1/128, twice what a value changes by
    assert found["bf16"]
    assert found["accuracy_difference"] <= 5  # of 100 images; some lie between two classes
    for of_trunk in found["trunks"].values():
        assert of_trunk["loss_difference"] < rounding  # losses are about 1.4, and one step moves them by 0.03 to 0.1
        assert 1e-4 < of_trunk["gradient_difference"] < 4 * rounding  # in float32 below 1e-6


@pytest.mark.parametrize("has", [False, True])
def test_step_1_is_in_bfloat16_where_the_processor_has_it_unless_told_otherwise(
    part: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, has: bool
) -> None:
    sides, parser = part("step1_sides"), argparse.ArgumentParser()
    monkeypatch.setattr(sides, "cpu_bf16", lambda: has)
    sides.add_sizes(parser)
    assert [parser.parse_args(told).bf16 for told in ([], ["--bf16"], ["--no-bf16"])] == [has, True, False]


def test_a_whole_run_ends_alike_on_both_sides(benchmark: Benchmark) -> None:
    found = benchmark("whole_run", "--images", 8, "--test", 4, "--tasks", 2)
    assert found["accuracy_difference"] == 0
    assert found["aca"] == found["reference_aca"] > 0


@pytest.mark.parametrize("adapt_last", [1, None])
def test_a_copy_in_reference_style_gives_our_features_and_scores(
    part: Callable[[str], ModuleType], taught: Callable[..., tuple[Learner, TaskData]], adapt_last: int | None
) -> None:
    learner, _ = taught(adapt_last=adapt_last)
    ours, theirs = learner.method, part("reference").ReferenceRow.like(learner.method)
    images = torch.from_numpy(np.concatenate([make_images(label, 3) for label in (0, 1, 5)])).permute(0, 3, 1, 2)
    with torch.no_grad():
        encoded = [row.encode(images, row.feature_sets(1)) for row in (ours, theirs)]
        scores = [row.scores(sets) for row, sets in zip((ours, theirs), encoded, strict=True)]
    torch.testing.assert_close(*encoded, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*scores, atol=1e-3, rtol=1e-4)
    assert theirs.passes == len(images) * 2


def test_reference_style_computes_gradients_for_the_trunk_and_drops_them(
    monkeypatch: pytest.MonkeyPatch,
    part: Callable[[str], ModuleType],
    taught: Callable[..., tuple[Learner, TaskData]],
) -> None:
    learner, task = taught()
    model, dropped = learner.trunk.model, []

    def watched(set_to_none: bool) -> None:
        dropped.append({name for name, value in model.named_parameters() if value.grad is not None})
        type(model).zero_grad(model, set_to_none)

    monkeypatch.setattr(model, "zero_grad", watched)
    for row in (copy.deepcopy(learner.method), part("reference").ReferenceRow.like(learner.method)):
        row.begin(task)
        run_phases(row.phases(task), task, NoCallback(), Position(task.index, 0, 0))
        assert all(value.grad is None and not value.requires_grad for value in model.parameters())
    steps = -(-len(task.labels) // 8)  # of our side none, of reference style all of step 1
    assert len(dropped) == steps
    assert all({"patch_embed.proj.weight", "blocks.2.mlp.fc2.weight"} < names for names in dropped)


def test_sides_take_turns_and_a_warm_up_does_not_count(part: Callable[[str], ModuleType]) -> None:
    order = ""
    seconds = {"o": iter([9.0, 1.0, 2.0, 3.0]), "t": iter([99.0, 10.0, 20.0, 60.0])}

    def side(name: str) -> Callable[[Any], None]:
        def work(clock: Any) -> None:
            nonlocal order
            order += name
            clock.seconds = next(seconds[name])

        return work

    times = part("measuring").alternate(side("o"), side("t"), repeats=3)
    assert order == "otototot"
    assert times == (2.0, 20.0)
    assert times.ratio == 10


@pytest.mark.parametrize("script", ["predict_10", "predict_20"])
def test_a_shortlist_of_all_tasks_changes_no_answer(benchmark: Benchmark, script: str) -> None:
    small = ["--data", "sample", "--tasks", 3, "--increment", 2, "--train", 8, "--images", 4, "--epochs", 1]
    found = benchmark(script, *small, "--shortlist", 3, "--repeats", 1)
    assert (found["accuracy_difference"], found["answers_kept"], found["shortlist"]) == (0, 100, 3)
    assert 1 <= benchmark(script, *small, "--repeats", 1)["shortlist"] <= 3


def test_the_cost_of_a_prediction_is_measured_for_every_number_of_tasks(
    part: Callable[[str], ModuleType],
    tiny_trunk: Trunk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("oarlock.learner.load_trunk", lambda *_: tiny_trunk)
    monkeypatch.setattr(sys, "argv", ["predict_cost.py", "--threads", "1", "--tasks", "1,4,9", "--images", "5"])
    part("predict_cost").main()
    found = json.loads(capsys.readouterr().out)
    assert found["tasks"] == [1, 4, 9]
    assert {name: len(times) for name, times in found["ms_per_image"].items()} == {
        "reference": 3,
        "all": 3,
        "shortlist": 3,
    }


def test_lines_are_kept_by_name_and_make_the_table_and_plots(
    part: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = part("run_all")
    monkeypatch.setattr(runner, "LINES", tmp_path / "speed.jsonl")
    for ratio in (3.0, 25.0):
        runner.keep("heads", {"name": "heads", "ratio": ratio, "goal": 20, "accuracy_difference": 0.0})
    cost = {
        "tasks": [1, 2],
        "shortlist": 3,
        "ms_per_image": {"reference": [1, 2], "all": [1, 2], "shortlist": [1, 1]},
    }
    runner.keep("predict_cost", cost)
    assert list(runner.read()) == ["heads", "predict_cost"]
    rows = runner.table(runner.read()).splitlines()
    assert rows[2].endswith("| 25.00 | 20 | 0 |") and "pending" in rows[3]
    runner.draw(runner.read())
    assert (tmp_path / "predict_cost.svg").stat().st_size > 1000


# Options


def test_options_of_row_are_varied_once_each_and_tabulated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: Callable[[str], ModuleType],
) -> None:
    vary, search = part("vary_row"), part("search")
    for options in vary.VARIATIONS:
        configure(vary.VariedRow, options)  # refuses an option that there is not
    monkeypatch.setattr(methods, "entries", methods.all())
    ran: list[dict[str, Any]] = []

    def run(config: RunConfig, out: Path) -> SimpleNamespace:
        assert config.validation  # never the test images
        ran.append(config.options)
        return SimpleNamespace(aca=50.0 - len(ran), seconds={"train": 1.0})

    monkeypatch.setattr(search, "run", run)
    monkeypatch.setattr(vary, "VARIATIONS", vary.VARIATIONS[:3])
    file = tmp_path / "row_options.json"
    for arguments in (["--data", "cifar10.npz"], ["--data", "cifar10.npz"], ["--table"]):
        monkeypatch.setattr(sys, "argv", ["vary_row.py", "--out", str(file), *arguments])
        vary.main()
    assert ran == [{}, {"beta": 0.0}, {"gamma": 1.0}]
    assert "| nothing | 49.0 |\n| `beta=0.0` | 48.0 |\n| `gamma=1.0` | 47.0 |\n" in capsys.readouterr().out


def test_a_search_records_a_trial_that_diverges_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Callable[[str], ModuleType]
) -> None:
    search = part("search")

    def run(config: RunConfig, out: Path) -> SimpleNamespace:
        if config.options["beta"] > 1:
            raise OarlockError("training diverged")
        return SimpleNamespace(aca=50.0 + config.options["beta"], seconds={"train": 1.0})

    monkeypatch.setattr(search, "run", run)
    arguments = ["--protocol", "c10-5t-mini", "--methods", "oar", "--option", "beta=0.2,2,0.4"]
    monkeypatch.setattr(sys, "argv", ["search.py", "--data", "cifar10.npz", "--out", str(tmp_path), *arguments])
    search.main()
    trials = json.loads((tmp_path / "c10-5t-mini" / "oar.json").read_text())
    assert [trial["options"] for trial in trials] == [{"beta": 0.4}, {"beta": 0.2}, {"beta": 2.0}]
    assert trials[0]["aca"] == 50.4 and trials[2] == {"options": {"beta": 2.0}, "error": "training diverged"}


ADOPTED = [
    (name, method)
    for name in ("c10-5t-mini", "c10-5t-lite")
    for method, cls in sorted(methods.all().items())
    if PROTOCOLS[name].settings in cls.settings
]


@pytest.mark.parametrize(("protocol", "method"), ADOPTED)
def test_a_trial_starts_from_a_methods_defaults_and_not_from_what_was_adopted_after_it(
    protocol: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Callable[[str], ModuleType]
) -> None:
    search, configs = part("search"), []

    def run(config: RunConfig, out: Path) -> SimpleNamespace:
        configs.append(config)
        return SimpleNamespace(aca=50.0, seconds={"train": 1.0})

    monkeypatch.setattr(search, "run", run)
    of_method, another = methods.find(method), {"slda": "shrinkage=0.3", "fecam": "alpha=3"}.get(method, "width=16")
    for more in ([], ["--option", another]):
        arguments = ["--protocol", protocol, "--methods", method, *more]
        monkeypatch.setattr(sys, "argv", ["search.py", "--data", "cifar10.npz", "--out", str(tmp_path), *arguments])
        search.main()
    trials = json.loads((tmp_path / protocol / f"{method}.json").read_text())
    assert len(trials) == len(configs) == 4
    for trial, config in zip(trials, configs, strict=True):
        assert configure(of_method, config.all_options()) == configure(of_method, trial["options"])


def test_the_discriminant_is_asked_with_and_without_lower_stages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: Callable[[str], ModuleType],
) -> None:
    images = np.concatenate([make_images(label, 12, size=32) for label in range(3)])
    labels, file = np.repeat(range(3), 12), tmp_path / "data.npz"
    np.savez(file, train_x=images, train_y=labels, test_x=255 - images, test_y=labels)
    arguments = [str(file), "--train", "8", "--test", "4"]
    for validation in ([], ["--validation"]):
        monkeypatch.setattr(sys, "argv", ["frozen_lda.py", *arguments, *validation])
        part("frozen_lda").main()
    test, validation_part = map(json.loads, capsys.readouterr().out.splitlines())
    assert validation_part["lda"] == validation_part["lda_with_lower_stages"] == 100  # images like those learned
    assert test["lda"] < 100 and (test["train"], test["test"]) == (24, 12)


def test_photos_in_folders_are_learned_by_both_sides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: Callable[[str], ModuleType],
) -> None:
    for folder, seed in (("train", 0), ("test", 1)):
        for label in range(6):
            (tmp_path / folder / f"kind {label}").mkdir(parents=True)
            for number, image in enumerate(make_images(label, 12, size=32, seed=seed)):
                Image.fromarray(image).save(tmp_path / folder / f"kind {label}" / f"{number}.png")
    folders = [str(tmp_path / "train"), str(tmp_path / "test")]
    sizes = ["--classes", "4", "--increment", "2", "--unknown", "2", "--least", "12", "--memory", "8"]
    options = [
        "--trunk",
        "vit_pico",
        "--set",
        "epochs=1",
        "--set",
        "looks=2",
        "--set",
        "detector=familiar",
        "--detectors",
    ]
    monkeypatch.setattr(sys, "argv", ["photos.py", *folders, *sizes, *options])
    part("photos").main()
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["tasks"], line["pixels"], line["photos"]) == (2, 32, {"test": 48, "unknown": 24})
    assert line["accuracy"] > 80 and line["auroc"] > 0.5 and len(line["baselines"]) == 6
    assert all(one["accuracy"] > 60 and 0 <= one["auroc"] <= 1 for one in line["baselines"].values())
    assert line["learning_in_passes"] > 0 and line["prediction_in_passes"] > 0
    assert line["detectors"].keys() == {"familiar", "direction", "relative", "ridge"}
    assert line["detectors"]["familiar"]["auroc"] == line["auroc"]
    assert all(0.5 < one["auroc_left_out"] <= 1 for one in line["detectors"].values())


def test_a_detector_that_is_always_right_about_tasks_leaves_the_head_alone_to_err(
    part: Callable[[str], ModuleType],
) -> None:
    """Two tasks of two classes; of eight images the head mistakes the last."""
    truth, calibration = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), torch.tensor([0, 1, 2, 3])
    method = SimpleNamespace(
        classes_per_task=[2, 2], tasks_of=lambda classes: classes // 2, class_slice=lambda task: slice(2 * task, None)
    )
    learner = SimpleNamespace(method=method, calibration=SimpleNamespace(labels=calibration))
    within = torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 1, 2, 2, 3, 2]), 4).float()
    columns, kept = (torch.nn.functional.one_hot(labels // 2, 2).float() for labels in (truth, calibration))
    sockets = part("sockets")
    found = sockets.of_detector(learner, columns, kept, within, truth)
    assert (found["aca"], found["task_right"], found["auroc"]) == (87.5, 100.0, 1.0)
    assert found["risk"] == 0.125 and found["bound"] == 0.125 and found["detector_risk"] == 0.0625
    blind = sockets.of_detector(learner, torch.zeros(8, 2), torch.zeros(4, 2), within, truth)
    assert blind["auroc"] == 0.5 and blind["task_right"] == 50.0 and blind["risk"] <= blind["bound"]


VARIED_ROW: list[dict[str, object]] = [
    {"unit_features": True},
    {"unit_trunk": True},
    {"trunk_views": 2},
    {"fresh_wp_heads": True},
    {"foreign": 0.25},
]


@pytest.mark.parametrize(
    ("name", "script", "cls", "variations"),
    [
        ("oar", "varied_row", "VariedRow", VARIED_ROW),
        ("tpl", "tpl_parts", "TplByPart", [{"part": "md_knn"}, {"part": "mls"}]),
    ],
)
def test_a_varied_method_is_the_method_until_a_part_of_it_is_built_otherwise(
    name: str,
    script: str,
    cls: str,
    variations: list[dict[str, object]],
    tiny_trunk: Trunk,
    monkeypatch: pytest.MonkeyPatch,
    part: Callable[[str], ModuleType],
) -> None:
    monkeypatch.setattr(methods, "entries", {**methods.all(), "varied": getattr(part(script), cls)})
    images = np.concatenate([make_images(label, 4, seed=1) for label in range(4)])

    def probabilities(method: str, **options: object) -> np.ndarray:
        adapted = {"few": 0} if name == "oar" else {}
        learner = Learner(method, trunk=tiny_trunk, memory=12, seed=0, epochs=1, width=8, **adapted, **options)
        for labels in ([0, 1], [2, 3]):
            learner.learn(*make_task(labels))
        return learner.predict_proba(images)

    unchanged, *changed = [probabilities("varied", **options) for options in ({}, *variations)]
    assert np.array_equal(unchanged, probabilities(name))
    for a, b in combinations([unchanged, *changed], 2):
        assert not np.array_equal(a, b)


def test_more_photos_are_taught_and_asked_about(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: Callable[[str], ModuleType],
) -> None:
    for label in range(4):
        for folder, images in (("train", make_images(label, 18, 32)), ("test", 255 - make_images(label, 8, 32))):
            (tmp_path / folder / f"kind {label}").mkdir(parents=True)
            for number, image in enumerate(images):
                Image.fromarray(image).save(tmp_path / folder / f"kind {label}" / f"{number}.png")
    folders, sizes = [str(tmp_path / "train"), str(tmp_path / "test")], ["--classes", "4", "--increment", "2"]
    monkeypatch.setattr(sys, "argv", ["more_photos.py", *folders, *sizes, "--trunk", "vit_pico", "--method", "slda"])
    part("more_photos").main()
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["photos"] == {"more": 8, "test": 16} and line["promises hold"]
    assert line["before"]["classes with more"] < 60 < line["after"]["classes with more"]
