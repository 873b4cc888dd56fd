"""Grids on Ray: what passes through the store, two machines that share no disk, and the end of one of them."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from conftest import Command
from experiments.test_grid import MINI, Heard, make_ten_classes
from oarlock import OarlockError
from oarlock.experiments import grid, ray_runs
from oarlock.experiments.config import RunConfig
from oarlock.experiments.plan import Request, Settings
from oarlock.experiments.ray_runs import CHECKPOINT, Copied, RayPool, do_run
from oarlock.experiments.run import run
from oarlock.report.formats import render
from oarlock.report.run_page import write_report
from oarlock.report.tables import find_columns, tabulate
from oarlock.stores import Store

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
work = partial(grid.work, report=write_report)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(MINI, data=str(make_ten_classes(tmp_path_factory.mktemp("data") / "ten.npz")), partial=True)


# The store


@pytest.fixture
def store() -> Iterator[Store]:
    MemoryFileSystem.store.clear()
    yield Store("memory://bench/run")
    MemoryFileSystem.store.clear()


def test_a_run_goes_to_the_store_and_comes_back(store: Store, tmp_path: Path) -> None:
    here = tmp_path / "here"
    for name in ("config.json", "events.jsonl", CHECKPOINT, "model.oar", "result.json", ".lock", ".output"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
    store.send(here / "config.json", "error.txt")
    written: list[str] = []
    store.send = lambda file, name, send=store.send: (written.append(name), send(file, name))  # type: ignore[method-assign,misc]
    Copied(here, store).send()
    assert written == ["config.json", "model.oar", "events.jsonl", CHECKPOINT, "result.json"]  # the result at last
    assert set(store.names()) == set(written)  # and no error any more
    there = Copied(tmp_path / "there", store)
    there.fetch()
    assert (there.directory / CHECKPOINT).read_text() == CHECKPOINT
    written.clear()
    there.send_checkpoint()
    assert written == []  # it is the one that was fetched
    (there.directory / "new").write_text("further")
    (there.directory / "new").rename(there.directory / CHECKPOINT)
    there.send_checkpoint()
    there.send_checkpoint()
    assert written == ["config.json", "events.jsonl", CHECKPOINT]
    assert store.read(CHECKPOINT) == b"further"


def test_a_checkpoint_goes_to_the_store_before_there_is_an_event(store: Store, tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).parent.mkdir()
    (tmp_path / CHECKPOINT).write_text("the first phase is done")
    (tmp_path / "config.json").write_text("{}")
    Copied(tmp_path, store).send_checkpoint()
    assert store.names() == [CHECKPOINT, "config.json"]


class Fake:
    """A process that ends after it has written a checkpoint, or goes on for ever."""

    endless = False
    asked: list[str] = []  # noqa: RUF012 (emptied by the test)

    def __init__(self, config: Any, directory: Path) -> None:
        self.directory, self.looks = directory, 0
        self.begun = (directory / CHECKPOINT).exists()

    def ended(self) -> bool:
        self.looks += 1
        if self.looks == 2 and self.endless:
            raise KeyboardInterrupt
        for name in ("config.json", "events.jsonl", CHECKPOINT):
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_text(f"{name} {self.looks}")
        return self.looks == 2

    def conclude(self) -> str | None:
        (self.directory / "result.json").write_text(f"resumed: {self.begun}")
        return None

    def ask_to_stop(self) -> None:
        self.asked.append("stop")

    def wait_for_stop(self) -> None:
        self.asked.append("wait")


def test_a_run_that_is_stopped_leaves_its_checkpoint_in_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_runs, "Process", Fake)
    monkeypatch.setattr(ray_runs, "LOOK", 0.0)
    monkeypatch.setattr(Fake, "endless", True)
    monkeypatch.setattr(Fake, "asked", [])
    config = RunConfig("sample")
    with pytest.raises(KeyboardInterrupt):
        do_run(config, "memory://bench/run")
    assert Fake.asked == ["stop", "wait"] and store.read(CHECKPOINT) == f"{CHECKPOINT} 1".encode()
    monkeypatch.setattr(Fake, "endless", False)
    assert do_run(config, "memory://bench/run") is None
    assert store.read("result.json") == b"resumed: True"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--store", "file:///tmp"], "--store goes with --on"),
        (["--on", "ray", "--jobs", "2"], "--jobs is for processes"),
        (["--on", "dask"], "--on dask"),
        (["--on", "ray://"], "--on ray://"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], words: str, oarlock: Command, here: Path, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock("bench", "--protocol", MINI, "--out", "out", *arguments) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and not list(here.iterdir())


class FakeRay:
    """Does tasks at once, in this process."""

    class exceptions:
        class RayError(Exception):
            pass

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: SimpleNamespace(
            options=lambda **room: SimpleNamespace(remote=partial(_try, function))
        )

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return tasks, []

    def get(self, task: Any) -> Any:
        if isinstance(task, OarlockError):
            raise self.exceptions.RayError("a long story") from task
        if isinstance(task, Exception):
            raise self.exceptions.RayError("a long story\nof a lost machine")
        return task


def _try(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as problem:
        return problem


class Quick:
    """Does a run in this process."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        run(config, directory, resume=(directory / "config.json").exists())

    def ended(self) -> bool:
        return True

    def conclude(self) -> str | None:
        return None


@pytest.mark.parametrize("shared", [True, False])
def test_runs_by_way_of_a_store_are_those_done_here(
    shared: bool, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_runs, "Process", Quick)
    request, here, out = Request(settings, ["slda"], 1), tmp_path / "here", tmp_path / "a folder"
    assert work([request], here, pool=Here(), display=Heard()) == []
    pool = RayPool(FakeRay(), out, None if shared else (tmp_path / "store").as_uri())
    assert pool.jobs == 3
    assert work([request], out, pool=pool, display=Heard()) == []
    assert outcome(out) == outcome(here)
    assert (tmp_path / "store").exists() == (not shared)


@pytest.mark.parametrize(
    ("problem", "words"), [(OarlockError("no room"), "no room"), (OSError(), "of a lost machine")]
)
def test_what_a_machine_got_wrong_is_told_here(
    problem: Exception, words: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: RunConfig, directory: Path) -> None:
        raise problem

    monkeypatch.setattr(ray_runs, "Process", fail)
    pool = RayPool(FakeRay(), tmp_path / "out", None)
    (broken,) = work([Request(settings, ["slda"], 1)], tmp_path / "out", pool=pool, display=Heard())
    assert words in broken.error and words in broken.file.read_text()


# Machines


SMALL_STORE = {"object_store_memory": 80 * 2**20}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without a place to work, and two machines with one each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")  # or they hardly begin on a busy machine
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, **SMALL_STORE})
    cluster.machines = [cluster.add_node(num_cpus=1, **SMALL_STORE) for _ in range(2)]
    yield cluster
    cluster.shutdown()


TIMED = ("seconds", "peak_mb")


def outcome(out: Path) -> dict[str, Any]:
    """Every file of every run that time does not decide, and the table."""
    found: dict[str, Any] = {}
    for path in sorted(out.glob("*/*/*/*")):
        name = str(path.relative_to(out))
        if path.name == "result.json":
            found[name] = {key: value for key, value in json.loads(path.read_text()).items() if key not in TIMED}
        elif path.name in ("config.json", "evaluation.safetensors", "theory.json"):
            found[name] = path.read_bytes()
        elif path.is_file():
            found[name] = "is there"
    found["bench.json"] = (out / "bench.json").read_bytes()
    for measure in ("aca", "aia", "forgetting"):
        found[measure] = render(tabulate(find_columns(out), measure), "csv")
    return found


class AtCheckpoints(Heard):
    """Does something once, as soon as a run has a checkpoint in the store."""

    def __init__(self, store: Path, act: Callable[[], None]) -> None:
        super().__init__()
        self.store, self.act = store, act

    def on_left(self, left: object) -> None:
        if list(self.store.glob(f"*/*/*/{CHECKPOINT}")) and self.act is not None:
            self.act()
            self.act = None


class Here:
    """Does runs in this process, one after the other, for the sake of quick tests."""

    jobs = 1

    def start(self, config: RunConfig, directory: Path) -> "Here":
        run(config, directory)
        return self

    def ended(self) -> bool:
        return True

    def conclude(self) -> str | None:
        return None

    def ask_to_stop(self) -> None:
        pass

    def wait_for_stop(self) -> None:
        pass


def grid_with_a_machine_lost(cluster: Any, request: Request, tmp_path: Path) -> None:
    here, there, store = tmp_path / "here", tmp_path / "there", tmp_path / "store"
    assert work([request], here, pool=Here(), display=Heard()) == []
    lost = AtCheckpoints(store, lambda: cluster.remove_node(cluster.machines[0], allow_graceful=False))
    with ray_runs.pool_on(f"ray://{cluster.address}", there, store.as_uri()) as pool:
        assert pool.jobs == 2
        assert work([request], there, pool=pool, display=lost) == []
    assert lost.act is None and len(lost.ended) == len(list(here.glob("*/*/*/result.json")))
    assert outcome(there) == outcome(here)
    assert not list(there.rglob("error.txt"))


@needs_ray
@pytest.mark.xdist_group("ray")
def test_a_small_grid_is_the_same_when_a_machine_is_lost(cluster: Any, settings: Settings, tmp_path: Path) -> None:
    grid_with_a_machine_lost(cluster, Request(settings, ["slda"], 2), tmp_path)


SMALL = {"adapt_last": "1", "width": "8", "batch": "8", "epochs": "3"}


@needs_ray
@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_grid_is_the_same_when_a_machine_is_lost(cluster: Any, settings: Settings, tmp_path: Path) -> None:
    options = {"row": {**SMALL, "head_batch": "8", "wp_epochs": "2", "ood_epochs": "2"}, "finetune": SMALL}
    grid_with_a_machine_lost(cluster, Request(settings, ["row", "slda", "finetune"], 2, options), tmp_path)


KILLS = 12
LONG = ["finetune.epochs=40", "row.epochs=10", "row.wp_epochs=5", "row.ood_epochs=5"]


def start(out: Path, settings: Settings, *more: str) -> subprocess.Popen:
    arguments = ["bench", "--protocol", MINI, "--methods", "row,slda,finetune", "--orders", "2", "--partial"]
    arguments += ["--data", str(settings.data), *(part for option in LONG for part in ("--set", option))]
    code = "from oarlock.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments, "--out", str(out), *more], text=True)


@needs_ray
@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_killed_at_any_moment_the_numbers_are_the_same(cluster: Any, settings: Settings, tmp_path: Path) -> None:
    """The grid's process, one of Ray's that works, one that trains, or a machine, again and again."""
    here, out, dice = tmp_path / "here", tmp_path / "there", random.Random(0)
    on = ["--on", f"ray://{cluster.address}", "--store", (tmp_path / "store").as_uri()]
    assert start(here, settings).wait(1800) == 0
    kills, kept, grid_of_runs = 0, dict[Path, bytes](), start(out, settings, *on)
    while kills < KILLS and not complete(out):
        time.sleep(dice.uniform(5, 20))
        if grid_of_runs.poll() is not None:  # it was killed, or a run was broken, which the next call tries again
            grid_of_runs = start(out, settings, *on)
        kills += kill_one(("driver", "worker", "run", "machine")[kills % 4], grid_of_runs, cluster)
        assert all(path.read_bytes() == content for path, content in kept.items())  # what was finished stays
        kept = {path: path.read_bytes() for path in out.glob("*/*/*/result.json")}
    assert kills >= min(KILLS, 4)
    grid_of_runs.terminate()
    grid_of_runs.wait(120)
    assert start(out, settings, *on).wait(1800) == 0
    assert outcome(out) == outcome(here)


def complete(out: Path) -> bool:
    return len(list(out.glob("*/*/*/result.json"))) == 6


def kill_one(kind: str, grid_of_runs: subprocess.Popen, cluster: Any) -> int:
    """Kill what is asked for, if there is such now; return how many were killed."""
    if kind == "driver":
        grid_of_runs.kill()
        return int(grid_of_runs.wait(60) == -signal.SIGKILL)
    if kind == "machine":
        cluster.remove_node(cluster.machines.pop(0), allow_graceful=False)
        cluster.machines.append(cluster.add_node(num_cpus=1, **SMALL_STORE))
        return 1
    mark = {"worker": "ray::do_run", "run": "oarlock.experiments.worker"}[kind]
    victims = [child for child in psutil.Process().children(recursive=True) if mark in command_of(child)]
    for victim in victims[:1]:
        victim.kill()
    return len(victims[:1])


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
