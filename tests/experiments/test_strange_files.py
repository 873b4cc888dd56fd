"""What a run's directory says is not trusted either: read right, or refused in a sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from oarlock.errors import OarlockError
from oarlock.experiments.config import saved_config
from oarlock.experiments.eta import Progress
from oarlock.experiments.plan import Plan
from oarlock.experiments.result import read_run_files
from oarlock.experiments.run import NoDisplay, run
from oarlock.experiments.series import saved_configs
from oarlock.files import read_tensors, write_tensors

FIXTURES = Path(__file__).parents[1] / "fixtures"
RUNS = {"methods": ["oar", "slda"], "settings": {"source": "sample"}}
COLUMN = {"format": 4, "settings": {"protocol": "c10-5t-mini"}, "methods": {"oar": {"orders": 1, "options": {}}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    shutil.copytree(FIXTURES / "format-3" / "run", folder)
    (folder / "runs.json").write_text(json.dumps(RUNS))
    (folder / "bench.json").write_text(json.dumps({"c10-5t-mini": COLUMN}))
    return folder


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": saved_config,
    "result.json": read_run_files,
    "theory.json": read_run_files,
    "runs.json": saved_configs,
    "bench.json": Plan.load,
}


@pytest.mark.parametrize("name", READERS)
def test_what_was_written_is_read(folder: Path, name: str) -> None:
    assert READERS[name](folder)


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("config.json", ["threads"], 10**6, "threads is 1000000"),
        ("config.json", ["format"], "3", "format is '3'"),
        ("config.json", ["format"], 99, "newer Oarlock"),
        ("config.json", ["options"], {"lr": [1]}, "options.lr"),
        ("config.json", ["increment"], {"a": 1}, "increment"),
        ("config.json", ["protocol"], "../x", "no protocol"),
        ("config.json", ["method"], 7, "method is 7"),
        ("result.json", ["tasks"], [["a", []]], r"tasks\[0\]\[1\]"),
        ("result.json", ["aca"], 1e300, "aca is 1e"),
        ("result.json", ["config"], [], "config is"),
        ("result.json", ["versions"], {"torch": 2}, "versions.torch"),
        ("result.json", ["images_per_class"], {"train": [1]}, "images_per_class.train"),
        ("result.json", ["seconds"], {"train": True, "evaluate": 1}, "seconds.train"),
        ("result.json", ["variants", "row", "accuracy"], [[1.0]], "one row per task"),
        ("theory.json", ["theorem3", "risk"], [0.5], "theorem3.risk"),
        ("theory.json", ["theorem3"], [], "theorem3 is"),
        ("theory.json", ["alpha"], "x", "alpha is 'x'"),
        ("theory.json", ["tasks"], 3, "tasks is 3"),
        ("runs.json", ["methods"], [5], "methods"),
        ("runs.json", ["methods"], ["../x"], "no method '../x'"),
        ("runs.json", ["settings"], {"source": 5}, "settings.source"),
        ("bench.json", ["c10-5t-mini", "settings", "memory"], "../../x", "memory"),
        ("bench.json", ["c10-5t-mini", "settings", "protocol"], "../../x", "no protocol"),
        ("bench.json", ["c10-5t-mini", "settings", "protocol"], "c10-5t", "under the name 'c10-5t-mini'"),
        ("bench.json", ["c10-5t-mini", "methods"], {"../x": {"orders": 1}}, "no method '../x'"),
        ("bench.json", ["c10-5t-mini", "methods", "oar", "orders"], 10**9, "orders is 1000000000"),
        ("bench.json", ["c10-5t-mini", "format"], 99, "newer Oarlock"),
    ],
)
def test_what_no_run_wrote_is_refused_by_file_and_place(
    folder: Path, name: str, path: list[str], value: Any, message: str
) -> None:
    content = json.loads((folder / name).read_text())
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(OarlockError, match=message) as refused:
        READERS[name](folder)
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("known_scores", torch.zeros(4, dtype=torch.bfloat16)),
        ("example_images", torch.zeros(3, dtype=torch.uint8)),
        ("example_images", torch.zeros((), dtype=torch.uint8)),
        ("task_confusion", torch.zeros(2, 2, dtype=torch.complex64)),
    ],
)
def test_tensors_of_a_strange_type_or_shape_are_refused(folder: Path, name: str, tensor: torch.Tensor) -> None:
    path = folder / "evaluation.safetensors"
    tensors, description = read_tensors(path, "evaluation")
    write_tensors(path, "evaluation", tensors | {name: tensor}, description)
    with pytest.raises(OarlockError, match=rf"evaluation.safetensors: '{name}' is"):
        read_run_files(folder)


def test_events_that_nobody_logged_are_passed_over(folder: Path) -> None:
    lines = [
        '{"event": "task", "task": 0}',
        "[]",
        "7",
        '{"event": 5}',
        '{"task": 9}',
        '{"event": "task", "task": "x"}',
    ]
    (folder / "events.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n")
    assert Progress.of(folder).finished == 1


NOWHERE = dict.fromkeys(("cpu", "instructions", "torch", "device"), "unknown")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["record"], {}, "record has no 'accuracy'"),
        (["record", "accuracy"], [], "measurements after each of 1 tasks"),
        (["record", "accuracy"], [[1.0, 2.0]], "measurements after each of 1 tasks"),
        (["record", "free_capacity"], [["x"]], r"free_capacity\[0\]\[0\]"),
        (["promises"], [], "what each of 1 finished tasks promised"),
        (["promises"], [{"machine": {"threads": 0} | NOWHERE, "constants": {}}], "threads is 0"),
        (["data"], ["x"], r"data\[0\]"),
    ],
)
def test_a_stopped_run_with_strange_measurements_does_not_go_on(
    here: Path, path: list[str], value: Any, message: str
) -> None:
    shutil.copytree(FIXTURES / "format-3" / "stopped-run", "run")
    shutil.copy(FIXTURES / "format-1" / "four.npz", "four.npz")
    file = Path("run", "checkpoint", "state.safetensors")
    tensors, description = read_tensors(file, "checkpoint")
    place = description["facts"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    write_tensors(file, "checkpoint", tensors, description)
    with pytest.raises(OarlockError, match=message):
        run(saved_config(Path("run")), Path("run"), resume=True, display=NoDisplay())
