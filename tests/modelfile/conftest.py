"""Folders of pictures, a small model file, and ways to compare and to interrupt."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from conftest import Command, make_task
from oarlock import Learner
from oarlock import session as checkpoints
from oarlock.files import read_tensors
from oarlock.modelfile import learn as learning
from oarlock.nets.trunks import Trunk
from oarlock.report.progress import ProgressBar

EPOCHS = {"epochs": 2, "wp_epochs": 2, "ood_epochs": 2}
SMALL = {"adapt_last": 1, "width": 8, "batch": 8, "head_batch": 8, "few": 0, **EPOCHS}

Teach = Callable[..., int]


def write_classes(folder: Path, *names: str, count: int = 8, seed: int = 0) -> Path:
    """folder/<class>/<number>.png: pictures whose pattern depends on the class's name."""
    for name in names:
        images, _ = make_task([name], count, seed=seed)
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(folder / name / f"{number}.png")
    return folder


def description_of(model: Path) -> dict[str, Any]:
    return read_tensors(model, "model")[1]


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def work_here(here: Path) -> None:
    """Every test here works in an empty folder."""


@pytest.fixture
def day(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is always the same day, so that equal models are equal files."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2024, 2, 29, 12, 30, tzinfo=UTC)

    monkeypatch.setattr(learning, "datetime", Clock)


@pytest.fixture(scope="session")
def taught(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows two classes; not to be changed."""
    path = tmp_path_factory.mktemp("models") / "shop.oar"
    Learner("oar", trunk=tiny_trunk, memory=8, **SMALL).learn(*make_task(["ant", "bee"], 8)).save(path)
    return path


@pytest.fixture
def model(taught: Path, here: Path) -> Path:
    """A copy of it in a folder of its own."""
    (here / "models").mkdir()
    path = here / "models" / "shop.oar"
    path.write_bytes(taught.read_bytes())
    return path


@pytest.fixture
def photos(here: Path) -> Path:
    """Two new classes."""
    return write_classes(here / "photos", "crow", "duck")


@pytest.fixture
def interrupted(oarlock: Command, monkeypatch: pytest.MonkeyPatch) -> Teach:
    """`oarlock learn` to which something happens at the n-th phase, step or checkpoint."""

    def run(event: str, number: int, *arguments: object, error: BaseException | None = None) -> int:
        seen = 0

        def happens(*_: object) -> None:
            nonlocal seen
            seen += 1
            if seen > number:
                raise error or KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
            patched.setattr(ProgressBar, f"on_{event}", happens)
            code = oarlock("learn", *arguments)
        assert seen == number + 1
        return code

    return run


@pytest.fixture
def last_json(capsys: pytest.CaptureFixture) -> Callable[[], dict[str, Any]]:
    return lambda: json.loads(capsys.readouterr().out.splitlines()[-1])


def command_line(*arguments: object, first: str = "") -> list[str]:
    """The command in a process of its own, with Ctrl-C as in a terminal and a checkpoint after every epoch; some code
    may come first."""
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from oarlock import session; session.CHECKPOINT_SECONDS = 0.0\n"
        f"{first}\n"
        "from oarlock.cli import main; main()"
    )
    return [sys.executable, "-c", start, *map(str, arguments)]
