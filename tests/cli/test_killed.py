"""Every command that writes, stopped by SIGKILL or Ctrl-C while it does: what is there is the old or the new, and the
same command again ends as if nothing had happened. (That holds in every phase of a run, and at every file that
learning writes: `experiments/test_run.py`, `modelfile/test_learn_interrupted.py`.)"""

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from conftest import make_images
from experiments.test_run import OPTIONS, make_archive, result_of
from oarlock.experiments.plan import Plan, Request, Settings
from oarlock.files import fingerprint, read_tensors
from report.test_comparison import result_of as result_of_method
from report.test_comparison import save

pytestmark = pytest.mark.slow

State = dict[str, Any]


class Order(NamedTuple):
    """Say when to send what."""

    number: int = 0
    moment: int = -1  # never
    delay: float = 0.0


NEVER = Order()
Do = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def do() -> Iterator[Do]:
    """A command in a process of its own, which may be stopped: its exit code and output."""
    command = [sys.executable, str(Path(__file__).with_name("forked.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as forking:
        assert forking.stdin is not None and forking.stdout is not None

        def run(folder: Path, arguments: list[object], order: Order = NEVER) -> tuple[int, str]:
            log = folder.with_name(f"{folder.name}.log")
            told = {"arguments": [*map(str, arguments)], "folder": str(folder), "log": str(log), **order._asdict()}
            forking.stdin.write(json.dumps(told) + "\n")
            forking.stdin.flush()
            return int(forking.stdout.readline()), log.read_text()

        yield run
        forking.stdin.close()


def changes(printed: str) -> int:
    return int(printed.split()[-2])


# What is there


def model(file: Path) -> Any:
    """A model's content without dates; it is read, so it is whole."""
    if not file.exists():
        return None
    tensors, description = read_tensors(file, "model")
    tasks = [{**task, "learned": None} for task in description.pop("tasks")]
    return fingerprint(tensors), tasks, description


def content(file: Path, folder: Path) -> bytes | None:
    return file.read_bytes().replace(bytes(folder), b"...") if file.exists() else None


def taught(folder: Path) -> State:
    return {"model": model(folder / "shop" / "shop.oar")}


def measured(folder: Path) -> State:
    out = folder / "run"
    tensors = out / "evaluation.safetensors"
    return {
        "result": {**result_of(out), "source": None} if (out / "result.json").exists() else None,
        "model": model(out / "model.oar"),
        "evaluation": fingerprint(read_tensors(tensors, "evaluation")[0]) if tensors.exists() else None,
        "report is whole": (content(out / "report.html", folder) or b"</html>").rstrip().endswith(b"</html>"),
    }


def grouped(folder: Path) -> State:
    files = sorted(path for path in (folder / "groups").rglob("*") if path.is_file())
    return {"groups": [(str(file.relative_to(folder)), content(file, folder)) for file in files]}


def written(*names: str) -> Callable[[Path], State]:
    return lambda folder: {name: content(folder / name, folder) for name in names}


# Commands


class Case(NamedTuple):
    """Hold a command, what there is before, what of it and of the rest is looked at, and how often it is stopped."""

    arguments: Callable[[Path], list[object]]
    begin: str
    state: Callable[[Path], State]
    moments: int = 3


def learn(folder: Path, photos: str = "photos") -> list[object]:
    return ["learn", folder / "shop" / "shop.oar", folder / photos, "--threads", "1"]


def run(folder: Path) -> list[object]:
    settings = [part for key, value in OPTIONS.items() for part in ("--set", f"{key}={value}")]
    return [
        "run",
        folder / "four.npz",
        "--memory",
        "8",
        "--threads",
        "1",
        *settings,
        "--out",
        folder / "run",
        "--resume",
    ]


def resume(folder: Path) -> list[object]:
    return ["run", "--resume", "--out", folder / "run"]


def unknowns(folder: Path) -> list[object]:
    chosen = ["--accept", "0.5", "--groups", "2", "--threads", "1"]
    return ["unknowns", folder / "shop" / "shop.oar", folder / "strange", folder / "groups", *chosen]


def learn_new(folder: Path, photos: str = "photos") -> list[object]:
    small = {"adapt_last": 1, "width": 8, "few": 0}
    settings = [part for key, value in small.items() for part in ("--set", f"{key}={value}")]
    return [*learn(folder, photos), *settings, "--trunk", "vit_pico", "--epochs", "1"]


def learn_more(folder: Path) -> list[object]:
    return [*learn(folder, "again"), "--more", "--keep-previous"]


def correct(*arguments: str) -> Callable[[Path], list[object]]:
    command, *others = arguments
    return lambda folder: [command, folder / "shop" / "shop.oar", *others]


def corrected(folder: Path) -> State:
    previous = folder / "shop" / "shop.oar.previous"
    return {"model": undated(folder / "shop" / "shop.oar"), "previous": undated(previous)}


def undated(file: Path) -> Any:
    found = model(file)
    return found and (*found[:2], {**found[2], "edits": [{**e, "when": None} for e in found[2]["edits"]]})


CASES = {
    "learn new": Case(learn_new, "plain", taught),
    "learn more": Case(learn, "shop", taught),
    "learn --more": Case(learn_more, "shop", corrected),
    "rename": Case(correct("rename", "ant", "emmet", "--keep-previous"), "shop", corrected, moments=2),
    "merge": Case(correct("merge", "ant", "bee"), "shop", corrected, moments=2),
    "forget": Case(correct("forget", "ant"), "kept", corrected),
    "undo": Case(correct("undo"), "kept", corrected, moments=2),
    "run": Case(run, "plain", measured),
    "run --resume": Case(resume, "half", measured),
    "unknowns": Case(unknowns, "shop", grouped),
    "export": Case(
        lambda folder: ["export", folder / "shop" / "shop.oar", "--onnx", folder / "x.onnx"],
        "shop",
        written("x.onnx"),
        moments=1,
    ),
    "compare": Case(
        lambda folder: ["compare", folder / "run", "--out", folder], "whole", written("compare.md", "compare.html")
    ),
    "report": Case(lambda folder: ["report", folder / "run"], "whole", written("run/report.html")),
    "table": Case(
        lambda folder: ["table", folder / "grid", "--out", folder / "table.md"], "grid", written("table.md")
    ),
}
if importlib.util.find_spec("onnxruntime") is None:
    del CASES["export"]


def make_plain(folder: Path) -> None:
    (folder / "shop").mkdir(parents=True)
    make_archive(folder / "four.npz")
    numbers = {"photos/crow": 2, "photos/duck": 3, "known/ant": 0, "known/bee": 1, "strange": 9, "again/bee": 5}
    for name, number in numbers.items():
        (folder / name).mkdir(parents=True)
        for index, image in enumerate(make_images(number, 10, 32)):
            Image.fromarray(image).save(folder / name / f"{index}.png")
    for name in ("x.onnx", "compare.md", "compare.html", "table.md"):
        (folder / name).write_text("what was there before")


def make_grid(folder: Path) -> None:
    plan = Plan().extended(Request(Settings("c10-5t-mini"), ["row", "slda"], 1))
    (folder / "grid").mkdir()
    plan.save(folder / "grid")
    for planned in plan.runs():
        save(folder / "grid" / planned.directory, result_of_method(planned.method))


class Begin:
    """Make what commands begin with, and find out what they come to when nothing happens."""

    def __init__(self, do: Do, base: Path) -> None:
        self.do, self.base = do, base
        self.ends: dict[str, tuple[State, int]] = {}

    def folder(self, name: str) -> Path:
        """Return a folder to be copied."""
        folder = self.base / name
        if folder.exists():
            return folder
        make_plain(folder)
        if name in ("shop", "kept"):
            assert self.do(folder, learn_new(folder, "known"))[0] == 0
        if name == "kept":
            assert self.do(folder, [*learn(folder), "--keep-previous"])[0] == 0
        if name == "grid":
            make_grid(folder)
        if name in ("half", "whole"):
            code, printed = self.do(folder, run(folder))
            assert code == 0, printed
            (folder / "run" / "report.html").write_text("what was there before")
        if name == "half":
            shutil.rmtree(folder / "run")
            assert self.do(folder, run(folder), Order(signal.SIGKILL, changes(printed) // 2))[0] == -signal.SIGKILL
        return folder

    def copy(self, case: Case, to: Path) -> Path:
        folder = self.folder(case.begin)
        shutil.copytree(folder, to)
        return to

    def undisturbed(self, name: str) -> tuple[State, int]:
        """Return what a command comes to, and how many changes that takes."""
        if name not in self.ends:
            case = CASES[name]
            folder = self.copy(case, self.base / f"{name} undisturbed")
            code, printed = self.do(folder, case.arguments(folder))
            assert code == 0, printed
            self.ends[name] = case.state(folder), changes(printed)
        return self.ends[name]


@pytest.fixture(scope="module")
def begin(do: Do, tmp_path_factory: pytest.TempPathFactory) -> Begin:
    return Begin(do, tmp_path_factory.mktemp("begin"))


STOPPED = [
    (name, number, attempt)
    for name, case in CASES.items()
    for number in (signal.SIGKILL, signal.SIGINT)
    for attempt in range(case.moments)
]


@pytest.mark.parametrize(("name", "number", "attempt"), STOPPED)
def test_stopped_at_any_moment_it_leaves_the_old_or_the_new(
    name: str, number: signal.Signals, attempt: int, begin: Begin, do: Do, tmp_path: Path
) -> None:
    """Every other time not just when a file is changed, but a moment later."""
    case, chance = CASES[name], random.Random(f"{name} {number} {attempt}")
    new, count = begin.undisturbed(name)
    folder = begin.copy(case, tmp_path / "here")
    old = case.state(folder)
    assert new != old
    order = Order(number, chance.randrange(count), chance.uniform(0, 0.05) if attempt % 2 else 0.0)

    code, printed = do(folder, case.arguments(folder), order)
    assert code in ((-signal.SIGKILL, 0) if number == signal.SIGKILL else (130, 0)), printed
    assert "Traceback" not in printed
    left = case.state(folder)
    assert [part for part in new if left[part] not in (old[part], new[part])] == []

    code, printed = do(folder, case.arguments(folder))
    assert code == 0 or left == new, printed
    assert case.state(folder) == new
    assert [str(path) for path in folder.rglob(".*") if path.name != ".lock"] == []
