"""Grids of real processes: one that breaks, several at a time, and a grid that is killed."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from experiments.test_grid import MINI, Heard, make_ten_classes
from oarlock import OarlockError
from oarlock.experiments import grid
from oarlock.experiments.plan import Plan, Request, Settings
from oarlock.experiments.processes import Processes
from oarlock.locks import alone_in
from oarlock.report.run_page import write_report

work = partial(grid.work, report=write_report)


@pytest.fixture(scope="module")
def ten_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ten_classes(tmp_path_factory.mktemp("data") / "ten.npz")


def matrices(out: Path) -> dict[str, list[list[float]]]:
    found = sorted(out.glob("*/*/*/result.json"))
    return {str(path.parent.relative_to(out)): json.loads(path.read_text())["accuracy"] for path in found}


def test_a_real_run_and_one_that_breaks(ten_classes: Path, tmp_path: Path) -> None:
    settings = Settings(MINI, data=str(ten_classes), partial=True)
    out, request = tmp_path / "out", Request(settings, ["slda"], 2)
    (run, _) = Plan().extended(request).runs()
    damaged = out / run.directory / "checkpoint" / "state.safetensors"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("no checkpoint")
    (out / "bench.json").write_text("{}")
    (broken,) = work([request], out, pool=Processes(2), display=Heard())
    assert "damaged" in broken.error and broken.run.order == 1
    assert broken.file.read_text().startswith("exit code 2\n") and broken.error in broken.file.read_text()
    assert list(matrices(out)) == ["c10-5t-mini/order-2/slda"]
    result = json.loads((out / MINI / "order-2" / "slda" / "result.json").read_text())
    assert (result["protocol"], result["order"], result["threads"], result["partial"]) == (MINI, 2, 1, True)
    assert (out / MINI / "order-2" / "slda" / "report.html").exists()
    assert not list(out.rglob(".output"))


def wait_until_nobody_is_at_work_in(directory: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            with alone_in(directory):
                return
        except OarlockError:
            assert time.monotonic() < deadline, "a run trains on without its grid"
            time.sleep(0.05)


def start(out: Path, archive: Path, *more: str) -> subprocess.Popen:
    arguments = ["bench", "--protocol", MINI, "--methods", "slda,finetune", "--orders", "2", "--data", str(archive)]
    arguments += ["--partial", "--set", "finetune.epochs=40", *more, "--out", str(out)]
    code = "from oarlock.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def one_at_a_time(ten_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[float]]]:
    """The grid that nothing happened to."""
    out = tmp_path_factory.mktemp("grids") / "whole"
    assert start(out, ten_classes).wait(600) == 0
    assert len(matrices(out)) == 4
    return matrices(out)


@pytest.mark.slow
def test_numbers_do_not_depend_on_the_jobs(
    one_at_a_time: dict[str, list[list[float]]], ten_classes: Path, tmp_path: Path
) -> None:
    assert start(tmp_path / "out", ten_classes, "--jobs", "2").wait(600) == 0
    assert matrices(tmp_path / "out") == one_at_a_time


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_half_way_and_started_again_it_ends_with_the_same_numbers(
    number: int, one_at_a_time: dict[str, list[list[float]]], ten_classes: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(out, ten_classes, "--jobs", "2")
    events = out / MINI / "order-1" / "finetune" / "events.jsonl"
    deadline = time.monotonic() + 300
    while not (events.exists() and '"task"' in events.read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert ("--resume" in printed) == (number == signal.SIGTERM)
    wait_until_nobody_is_at_work_in(events.parent)
    size = events.stat().st_size
    assert not (events.parent / "result.json").exists() and not (events.parent / "error.txt").exists()
    assert start(out, ten_classes).wait(600) == 0
    assert size < events.stat().st_size
    assert matrices(out) == one_at_a_time
