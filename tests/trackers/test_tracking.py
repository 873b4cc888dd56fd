"""What is logged about runs, grids and lessons, read back and compared with their results."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Command
from contract.conftest import RaiseAt
from experiments.test_grid import MINI, FakeProcess, fakes, ten_classes
from experiments.test_run import OPTIONS, make_archive
from modelfile.conftest import write_classes
from oarlock import session as checkpoints
from oarlock import trackers as room
from oarlock.experiments import metrics
from oarlock.experiments.config import RunConfig
from oarlock.experiments.run import NoDisplay, run
from oarlock.experiments.series import run_several
from oarlock.report.run_page import write_report
from oarlock.trackers import Tracker, trackers
from oarlock.trackers.logbook import Logbook
from oarlock.trackers.tracking import RunTracking, logged
from trackers.reading import Logged, read_mlflow, read_tensorboard, read_wandb

__all__ = ["fakes", "ten_classes"]
HERE = [name for name in ("tensorboard", "mlflow", "wandb") if find_spec(name)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    archive = make_archive(tmp_path_factory.mktemp("data") / "four.npz")
    return RunConfig(str(archive), memory=8, threads=1, options=OPTIONS)


@pytest.fixture(scope="module")
def followed(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that all trackers have followed, offline; its folder is the one to read them in."""
    folder = tmp_path_factory.mktemp("followed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("MLFLOW_TRACKING_URI", (folder / "store").as_uri())
        for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
            patch.setenv(name, "true")
        with RunTracking(NoDisplay(), HERE, folder / "run") as tracking:
            run(config, folder / "run", display=tracking)
            tracking.reporting(write_report)(folder / "run")
        yield folder


def expected(directory: Path) -> dict[tuple[str, int], float]:
    """What a run's files say, told on its own."""
    values: dict[tuple[str, int], float] = {}
    for line in (directory / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "epoch":
            task, _, epoch = event["position"]
            values[f"loss/task-{task + 1}/{event['phase']}", epoch] = event["loss"]
    result = json.loads((directory / "result.json").read_text())
    for name in ("accuracy", "til_accuracy"):
        for count, row in enumerate(result[name], 1):
            values |= {(f"{name}/task-{task}", count): value for task, value in enumerate(row, 1)}
    for count, free in enumerate(result["free_capacity"], 1):
        values["free_capacity", count] = free
        for name in ("aca", "aia", "forgetting"):
            values[name, count] = getattr(metrics, name)(result["accuracy"][:count])
    tasks = len(result["tasks"])
    assert [values[name, tasks] for name in ("aca", "aia", "forgetting")] == [
        result[name] for name in ("aca", "aia", "forgetting")
    ]
    for name in ("task_id_accuracy", "ood_auroc", "ood_fpr95", "entries"):
        values[name, tasks] = result[name]
    values |= {(f"seconds/{name}", tasks): value for name, value in result["seconds"].items()}
    return {key: value for key, value in values.items() if value is not None}


def assert_same(logged: Logged, wanted: Mapping[tuple[str, int], float], relative: float = 0.0) -> None:
    assert logged.keys() == wanted.keys()
    assert all(len(values) == 1 for values in logged.values())  # each of them once
    assert {key: value for key, (value,) in logged.items()} == pytest.approx(wanted, rel=relative, abs=0)


FLOAT32 = float(np.finfo(np.float32).eps)  # as TensorBoard keeps numbers


def test_tensorboard_has_what_the_result_says(followed: Path) -> None:
    found, texts = read_tensorboard(followed / "run" / "tensorboard")
    assert_same(found, expected(followed / "run"), FLOAT32)
    assert texts == {"settings", "result.json", "report.html"}


def test_mlflow_has_what_the_result_says(followed: Path) -> None:
    found, files, status = read_mlflow()
    assert_same(found, expected(followed / "run"))
    assert (files, status) == ({"result.json", "report.html"}, "FINISHED")


def test_wandb_has_what_the_result_says(followed: Path) -> None:
    found, files = read_wandb(followed)
    assert_same(found, expected(followed / "run"))
    assert files == {"result.json", "report.html"}


class Written(Tracker):
    """Keeps all it hears; `failing` is what it refuses to do."""

    package = "oarlock"
    books: list["Written"] = []  # noqa: RUF012 (emptied by the fixture)
    failing = ""

    def __init__(self, title: str, folder: Path, settings: Mapping[str, Any]) -> None:
        if self.failing == "open":
            raise OSError("the server does not answer\nat all")
        self.title, self.folder, self.settings = title, folder, settings
        self.values: Logged = {}
        self.files: list[str] = []
        self.ended: bool | None = None
        self.books.append(self)

    def log(self, values: Mapping[str, float], axis: str, step: int) -> None:
        if self.failing == "log":
            raise OSError("the server is gone")
        for name, value in values.items():
            self.values.setdefault((name, step), []).append(value)

    def attach(self, file: Path) -> None:
        self.files.append(file.name)

    def close(self, finished: bool) -> None:
        self.ended = finished


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> type[Written]:
    monkeypatch.setattr(trackers, "entries", {**trackers.all(), "written": Written})
    monkeypatch.setattr(Written, "name", "written", raising=False)
    monkeypatch.setattr(Written, "books", [])
    monkeypatch.setattr(Written, "failing", "")
    return Written


class Stopping(RaiseAt, NoDisplay):
    """A display that stops the run."""


def test_a_run_that_goes_on_is_told_from_its_beginning(
    config: RunConfig, written: type[Written], oarlock: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    with (
        pytest.raises(KeyboardInterrupt),
        RunTracking(Stopping("checkpoint", 9, KeyboardInterrupt), ["written"], here / "run") as tracking,
    ):
        run(config, here / "run", display=tracking)
    assert oarlock("run", "--resume", "--out", "run", "--track", "written") == 0
    stopped, whole = written.books
    assert (stopped.ended, whole.ended, whole.files) == (False, True, ["result.json", "report.html"])
    assert 0 < len(stopped.values) < len(whole.values)
    assert_same(whole.values, expected(here / "run"))


def test_finished_runs_are_logged_from_their_files(followed: Path, written: type[Written], here: Path) -> None:
    shutil.copytree(followed / "run", here / "run")
    (here / "run" / "tensorboard").rename(here / "before")
    assert logged(write_report, ["written"])(here / "run") == here / "run" / "report.html"
    (book,) = written.books
    assert_same(book.values, expected(here / "run"))
    assert (book.title, book.settings["memory"], book.ended) == ("run oar", 8, True)


def write_page(directory: Path) -> Path:
    (directory / "report.html").write_text("a page")
    return directory / "report.html"


class StartingMethods(NoDisplay):
    def on_method(self, name: str, number: int, count: int) -> None:
        pass


def test_every_run_of_several_methods_has_a_book(config: RunConfig, written: type[Written], here: Path) -> None:
    configs = [replace(config, method=name, options={}) for name in ("slda", "ncm")]
    with RunTracking(StartingMethods(), ["written"], here / "runs") as tracking:
        report = tracking.reporting(write_page)
        run_several(configs, here / "runs", display=tracking, report=report)
    assert [book.title for book in written.books] == ["slda slda", "ncm ncm"]
    assert all(book.ended and book.files == ["result.json", "report.html"] for book in written.books)


def test_a_grid_logs_each_run_when_it_is_finished(
    ten_classes: Path, fakes: type[FakeProcess], oarlock: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Path] = []

    class Book(Logbook):
        @classmethod
        def of_run(cls, names: Any, directory: Path) -> "Book":
            assert names == ["tensorboard"]
            return cls([])

        def conclude(self, directory: Path, page: Path) -> None:
            assert page.exists()
            told.append(directory.relative_to("out"))

    monkeypatch.setattr("oarlock.trackers.tracking.Logbook", Book)
    monkeypatch.setattr("oarlock.report.run_page.write_report", write_page)
    arguments = ["--methods", "slda,finetune", "--data", ten_classes, "--partial", "--out", "out"]
    assert oarlock("bench", "--protocol", MINI, *arguments, "--track", "tensorboard") == 0
    assert told == [Path(MINI, "order-1", name) for name in ("slda", "finetune")]


def test_a_lesson_is_logged_beside_its_model(oarlock: Command, here: Path, written: type[Written]) -> None:
    write_classes(here / "photos", "ant", "bee")
    small = ["--trunk", "vit_pico", "--method", "finetune", "--epochs", 2]
    new = ["learn", "m.oar", "photos", *small, "--track", "written"]
    assert oarlock(*new) == oarlock(*new) == 0  # the second one has nothing to learn
    (book,) = written.books
    assert (book.title, book.folder, book.ended) == ("m.oar task 1", Path("m.oar.tracked/task-1"), True)
    losses = [key for key in book.values if key[0].startswith("loss/task-1/")]
    assert len(losses) >= 2 and not any(np.isnan(book.values[key]).any() for key in losses)
    assert book.values["classes", 1] == [2] and book.values["bytes", 1] == [(here / "m.oar").stat().st_size]


@pytest.mark.parametrize(
    ("name", "words"), [("tensorbored", "no tracker 'tensorbored'"), ("mlflow", "oarlock[track]")]
)
@pytest.mark.parametrize("command", ["run", "bench", "learn"])
def test_a_tracker_that_is_not_there_is_a_sentence_before_anything_begins(
    command: str,
    name: str,
    words: str,
    oarlock: Command,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(room, "find_spec", lambda package: None)
    write_classes(here / "photos", "ant", "bee")
    what = {"run": ["sample"], "bench": ["--protocol", MINI], "learn": ["m.oar", "photos"]}[command]
    assert oarlock(command, *what, "--track", name) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("oarlock: ") and words in printed.err and printed.err.count("\n") == 1
    assert {path.name for path in here.iterdir()} == {"photos"}


def test_a_tracker_that_cannot_be_opened_is_a_sentence(
    config: RunConfig, written: type[Written], oarlock: Command, here: Path, capsys: pytest.CaptureFixture
) -> None:
    written.failing = "open"
    assert oarlock("run", config.source, "--out", "run", "--track", "written") == 2
    assert capsys.readouterr().err == "oarlock: --track written: the server does not answer\n"


def test_a_tracker_that_fails_later_does_not_stop_the_run(followed: Path, written: type[Written], here: Path) -> None:
    shutil.copytree(followed / "run", here / "run")
    written.failing = "log"
    with pytest.warns(UserWarning, match="written hears no more of this run: the server is gone"):
        logged(write_report, ["written"])(here / "run")


def test_a_tracker_of_ones_own_is_one_file(followed: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/how-to/track.md has it."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "track.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.setattr(trackers, "entries", trackers.all())
    exec(compile(code, "lines.py", "exec"), {})
    shutil.copytree(followed / "run", here / "run")
    logged(write_report, ["lines"])(here / "run")
    lines = [json.loads(line) for line in (here / "run" / "logged.jsonl").read_text().splitlines()]
    told: Logged = {}
    for line in lines:
        step = line.pop("epoch", None) or line.pop("tasks", None)
        for name, value in line.items() if step else ():
            told.setdefault((name, step), []).append(value)
    assert_same(told, expected(here / "run"))
    assert lines[-1] == {"finished": True}
