"""Grids of runs: what is run, how many at a time, and how a grid goes on after any kind of end."""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Command, make_images
from oarlock import OarlockError
from oarlock.data.datasets import datasets
from oarlock.experiments import grid as working
from oarlock.experiments import processes
from oarlock.experiments.eta import AtWork, Eta, Progress
from oarlock.experiments.grid import Broken, finished
from oarlock.experiments.plan import Plan, PlannedRun, Request, Settings
from oarlock.experiments.processes import Processes
from oarlock.locks import alone_in
from report.test_comparison import result_of

MINI = "c10-5t-mini"


def write_page(directory: Path) -> None:
    (directory / "report.html").write_text("a page")


work = partial(working.work, report=write_page, pool=Processes())


def make_ten_classes(path: Path) -> Path:
    """An archive with CIFAR-10's classes: six train and three test images each."""
    numbers = range(10)
    np.savez(
        path,
        train_x=np.concatenate([make_images(number, 6, 32) for number in numbers]),
        train_y=np.repeat(numbers, 6),
        test_x=np.concatenate([make_images(number, 3, 32, seed=1) for number in numbers]),
        test_y=np.repeat(numbers, 3),
        classes=np.array(datasets.find("cifar10").classes),
    )
    return path


@pytest.fixture(scope="module")
def ten_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ten_classes(tmp_path_factory.mktemp("data") / "ten.npz")


@pytest.fixture
def settings(ten_classes: Path) -> Settings:
    return Settings(MINI, data=str(ten_classes), partial=True)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


class Heard:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.at_work = self.most = 0

    def on_start(self, runs: int, finished: int) -> None:
        self.runs, self.kept = runs, finished

    def on_run(self, run: PlannedRun, tasks: int) -> None:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        assert tasks == 5

    def on_progress(self, run: PlannedRun, progress: Progress) -> None:
        pass

    def on_finished(self, run: PlannedRun, aca: float, seconds: float) -> None:
        self.at_work -= 1
        self.ended.append(str(run))

    def on_broken(self, run: PlannedRun, error: str) -> None:
        self.at_work -= 1
        self.ended.append(f"{run}: {error}")

    def on_left(self, left: object) -> None:
        pass


class FakeProcess:
    """Ends at once with a result, or breaks; `breaking` and `endless` name the methods that do otherwise."""

    breaking: tuple[str, ...] = ()
    endless: tuple[str, ...] = ()
    started: list[Path] = []  # noqa: RUF012 (emptied by the fixture)
    stopped: list[Path] = []  # noqa: RUF012

    def __init__(self, config: Any, directory: Path) -> None:
        self.config, self.directory = config, directory
        self.started.append(directory)
        directory.mkdir(parents=True, exist_ok=True)

    def ended(self) -> bool:
        return self.config.method not in self.endless

    def conclude(self) -> str | None:
        error = self.directory / "error.txt"
        if self.config.method in self.breaking:
            error.write_text("no luck\n")
            return "no luck"
        error.unlink(missing_ok=True)
        result = result_of(self.config.method, order=self.config.order)
        (self.directory / "result.json").write_text(json.dumps(result))
        return None

    def ask_to_stop(self) -> None:
        self.stopped.append(self.directory)

    def wait_for_stop(self) -> None:
        pass


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    """No run is really done, and nothing is waited for."""
    monkeypatch.setattr(processes, "Process", FakeProcess)
    monkeypatch.setattr(working, "LOOK", 0.0)
    for name in ("started", "stopped"):
        monkeypatch.setattr(FakeProcess, name, [])
    for name in ("breaking", "endless"):
        monkeypatch.setattr(FakeProcess, name, ())
    return FakeProcess


# What is run


def test_all_methods_on_the_first_order_come_before_the_second(
    settings: Settings, fakes: type[FakeProcess], tmp_path: Path
) -> None:
    heard = Heard()
    assert work([Request(settings, ["slda", "finetune"], 2)], tmp_path / "out", display=heard) == []
    assert [path.relative_to(tmp_path / "out" / MINI) for path in fakes.started] == [
        Path("order-1/slda"),
        Path("order-1/finetune"),
        Path("order-2/slda"),
        Path("order-2/finetune"),
    ]
    assert (heard.runs, heard.kept, heard.most) == (4, 0, 1)


def test_a_run_is_configured_as_the_protocol_says(ten_classes: Path) -> None:
    settings = Settings(MINI, "half", str(ten_classes), partial=True, seed=3, threads=2)
    (run,) = Plan().extended(Request(settings, ["row"], 1, {"row": {"tau": "2"}})).runs()
    config = run.config()
    assert run.directory == Path("c10-5t-mini-half/order-1/row")
    assert (config.protocol, config.source, config.partial) == (MINI, str(ten_classes), True)
    assert (config.memory, config.order, config.seed, config.threads) == (100, 1, 3, 2)
    assert config.options == {"tau": "2"}


def test_readings_share_a_training(settings: Settings) -> None:
    plan = Plan().extended(Request(settings, ["row-wp", "row", "row-wp-md"], 2))
    assert [(run.order, run.method) for run in plan.runs()] == [(1, "row"), (2, "row")]
    assert plan.orders(MINI) == {"row-wp": 2, "row": 2, "row-wp-md": 2}


def test_a_reading_has_no_options_of_its_own(settings: Settings) -> None:
    names = ["row", "row-wp"]
    for own in ({"lr": "0.1"}, {"tau": "2", "lr": "0.1"}):
        with pytest.raises(OarlockError, match=r"read from row's training, .* options \{'lr': '0.1'\}"):
            Plan().extended(Request(settings, names, 1, {"row": {"tau": "2"}, "row-wp": own}))
    for shared in ({}, {"tau": "2"}):
        Plan().extended(Request(settings, names, 1, {"row": {"tau": "2"}, "row-wp": shared}))
    Plan().extended(Request(settings, ["row-wp"], 1, {"row-wp": {"lr": "0.1"}}))


def test_no_more_than_the_jobs_are_at_work(settings: Settings, fakes: type[FakeProcess], tmp_path: Path) -> None:
    heard = Heard()
    work(
        [Request(settings, ["slda", "finetune", "hat"], 2)],
        tmp_path / "out",
        pool=Processes(4),
        display=heard,
    )
    assert (heard.most, len(heard.ended)) == (4, 6)


# Again


def test_finished_runs_are_kept_and_the_grid_can_grow(
    settings: Settings, fakes: type[FakeProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    work([Request(settings, ["slda"], 1)], out, display=Heard())
    fakes.started.clear()
    heard = Heard()
    half = Settings(MINI, "half", settings.data, partial=True)
    work(
        [Request(settings, ["finetune", "slda"], 2), Request(half, ["slda"], 1)],
        out,
        display=heard,
    )
    assert (heard.runs, heard.kept) == (5, 1)
    assert [str(path.relative_to(out)) for path in fakes.started] == [
        "c10-5t-mini/order-1/finetune",
        "c10-5t-mini/order-2/slda",
        "c10-5t-mini/order-2/finetune",
        "c10-5t-mini-half/order-1/slda",
    ]
    fakes.started.clear()
    work([], out, display=heard)  # as --resume does
    assert (heard.runs, heard.kept, fakes.started) == (5, 5, [])


def test_a_broken_run_is_told_and_tried_again_while_the_rest_is_done(
    settings: Settings, fakes: type[FakeProcess], tmp_path: Path
) -> None:
    out, request = tmp_path / "out", Request(settings, ["slda", "finetune"], 1)
    fakes.breaking = ("slda",)
    (broken,) = work([request], out, display=Heard())
    assert isinstance(broken, Broken) and broken.run.method == "slda"
    assert (broken.error, broken.file.read_text()) == ("no luck", "no luck\n")
    assert finished(out / MINI / "order-1" / "finetune") and not finished(broken.file.parent)
    fakes.breaking, fakes.started[:] = (), []
    assert work([request], out, display=Heard()) == []
    assert fakes.started == [broken.file.parent] and finished(broken.file.parent)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_every_run_at_work_and_says_how_to_go_on(
    number: int,
    ten_classes: Path,
    fakes: type[FakeProcess],
    oarlock: Command,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes.endless = ("slda", "finetune")
    before = signal.getsignal(number)
    look = working._Grid._collect

    def signalled(grid: Any) -> None:
        os.kill(os.getpid(), number)
        look(grid)

    monkeypatch.setattr(working._Grid, "_collect", signalled)
    arguments = ["--methods", "slda,finetune", "--data", ten_classes, "--partial", "--jobs", 2, "--out", "out"]
    assert oarlock("bench", "--protocol", MINI, *arguments) == 130
    assert capsys.readouterr().out.endswith("stopped; continue with: oarlock bench --resume --out out\n")
    assert fakes.stopped == fakes.started and len(fakes.started) == 2
    assert signal.getsignal(number) == before


# Mistakes


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (["--methods", "slda,rowe"], "no method 'rowe'"),
        (["--protocol", "c10-6t"], "no protocol 'c10-6t'"),
        (["--orders", "6"], "choose 1 to 5"),
        (["--orders", "0"], "choose 1 to 5"),
        (["--jobs", "0"], "choose 1 or more"),
        (["--threads", "0"], "threads"),
        (["--memory", "much"], "--memory 'much'"),
        (["--methods", "slda,row", "--memory", "3"], "memory of 3"),
        (["--set", "epochs=1"], "slda has no option 'epochs'"),
        (["--set", "row.epochs=1"], "'row' is not among the methods"),
        (["--set", "epochs"], "write key=value"),
        (["--data", "a", "--data", "b"], "once for each protocol"),
        (["--trunk", "vit_picolo"], "vit_picolo"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    mistake: list[str],
    words: str,
    ten_classes: Path,
    fakes: type[FakeProcess],
    oarlock: Command,
    capsys: pytest.CaptureFixture,
) -> None:
    right = {"--protocol": MINI, "--methods": "slda,finetune", "--data": str(ten_classes), "--out": "out"}
    kept = [part for pair in right.items() if pair[0] not in mistake for part in pair]
    assert oarlock("bench", "--partial", *kept, *mistake) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("oarlock: ") and printed.err.count("\n") == 1
    assert words in printed.err
    assert not fakes.started and not Path("out").exists()


def test_whole_data_is_asked_for_unless_a_part_is_accepted(ten_classes: Path, tmp_path: Path) -> None:
    with pytest.raises(OarlockError, match="--partial"):
        work(
            [Request(Settings(MINI, data=str(ten_classes)), ["slda"], 1)],
            tmp_path / "out",
            display=Heard(),
        )


def test_other_settings_than_planned_are_refused(
    settings: Settings, ten_classes: Path, fakes: type[FakeProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    work(
        [Request(settings, ["slda", "finetune"], 1, {"finetune": {"epochs": "1"}})],
        out,
        display=Heard(),
    )
    other = Settings(MINI, data=str(ten_classes), partial=True, seed=1)
    with pytest.raises(OarlockError, match="planned with seed = 0, not 1"):
        work([Request(other, ["slda"], 1)], out, display=Heard())
    with pytest.raises(OarlockError, match="finetune on c10-5t-mini was planned with the options"):
        work([Request(settings, ["finetune"], 2)], out, display=Heard())
    config = json.dumps({"source": "elsewhere", "method": "slda"})
    (out / MINI / "order-1" / "slda" / "config.json").write_text(config)
    with pytest.raises(OarlockError, match="has source = 'elsewhere'"):
        work([], out, display=Heard())


def test_a_directory_that_is_not_a_grid_or_in_use_is_refused(
    settings: Settings, fakes: type[FakeProcess], tmp_path: Path
) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(OarlockError, match="not empty"):
        work([Request(settings, ["slda"], 1)], tmp_path, display=Heard())
    with pytest.raises(OarlockError, match="no grid of runs"):
        work([], tmp_path / "nothing", display=Heard())
    (tmp_path / "out").mkdir()
    with alone_in(tmp_path / "out"), pytest.raises(OarlockError, match="another process is at work"):
        work([Request(settings, ["slda"], 1)], tmp_path / "out", display=Heard())
    assert not fakes.started


SHARE = '{"c10-5t": {"settings": {"protocol": "c10-5t"}, "methods": {"row": {"orders": %s}}}}'


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"c10-5t": {}}',
        '{"c10-5t": {"settings": {}, "methods": {}}}',
        SHARE % '"1"',
        SHARE % 0,
        SHARE % "true",
    ],
)
def test_a_damaged_plan_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "bench.json").write_text(content)
    with pytest.raises(OarlockError, match=r"bench.json is damaged"):
        Plan.load(tmp_path)


def test_a_plan_without_methods_has_no_runs(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text('{"c10-5t": {"settings": {"protocol": "c10-5t"}, "methods": {}}}')
    assert list(Plan.load(tmp_path).runs()) == []


def test_a_resumed_grid_takes_no_other_settings(oarlock: Command, capsys: pytest.CaptureFixture) -> None:
    assert oarlock("bench", "--resume", "--out", "out", "--seed", 3) == 2
    assert "leave out seed" in capsys.readouterr().err
    assert oarlock("bench", "--out", "out") == 2
    assert "--protocol NAME" in capsys.readouterr().err


# Time left


def test_a_run_is_expected_to_take_as_long_as_its_like(monkeypatch: pytest.MonkeyPatch) -> None:
    slda, row = (PlannedRun(Settings(MINI), 1, name, {}) for name in ("slda", "row"))
    elsewhere = PlannedRun(Settings("c100-10t-mini"), 1, "row", {})
    eta = Eta(jobs=2)
    assert eta.left([slda], []) is None
    eta.learn(slda, 10.0)
    eta.learn(slda, 30.0)
    assert (eta.like(slda), eta.like(row), eta.others(row)) == (20.0, None, 20.0)
    assert eta.others(elsewhere) is None
    eta.learn(row, 100.0)
    assert eta.left([slda, row], []) == (100.0, False)  # not sooner than the longest of them
    assert eta.left([slda, row, row, elsewhere], []) == (110.0, True)
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    state = AtWork(row, tasks=5, first=1, started=now)
    assert state.left(None, None, now) is None
    assert state.left(None, 50.0, now) == pytest.approx(50.0 * 4 / 5)
    now = 1030.0
    state.update(3)  # two tasks in 30 s
    assert state.left(None, 50.0, now) == pytest.approx(75.0 * 2 / 5)  # its own pace tells more
    assert state.left(100.0, None, now + 15) == pytest.approx(40.0 - 15)
    assert state.left(100.0, None, now + 90) == 0.0


def test_the_progress_of_a_run_is_read_from_its_events(tmp_path: Path) -> None:
    assert Progress.of(tmp_path) == (0, "starting")
    lines = [
        '{"event": "epoch", "position": [0, 0, 1], "phase": "features"}',
        '{"event": "task", "task": 0}',
        '{"event": "epoch", "position": [1, 1, 1], "phase": "head"}',
        '{"event": "ta',
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert Progress.of(tmp_path) == (1, "head")
