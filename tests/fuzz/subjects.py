"""What is mutated: one small file of every kind that Oarlock reads, and what a user would do with it."""

import io
import json
import random
import shutil
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console

from conftest import make_task, make_tiny_convnet, make_tiny_trunk
from contract.conftest import small_learner
from oarlock import Learner, load
from oarlock import session as sessions
from oarlock.experiments.config import saved_config
from oarlock.experiments.plan import Plan
from oarlock.experiments.result import read_run_files
from oarlock.experiments.series import saved_configs
from oarlock.files import read_json
from oarlock.learner import PreparedTask
from oarlock.methods import methods
from oarlock.modelfile.inspect import Verification, check_tasks, inspect
from oarlock.nets.protectors import protectors
from oarlock.nets.trunks import VECTORS, load_trunk
from oarlock.report import print_summary
from oarlock.report.comparison import compare
from oarlock.report.model_terminal import print_inspection, print_verification
from oarlock.report.run_page import write_report
from oarlock.session import Session, read_checkpoint
from oarlock.studio.answers import KEPT
from oarlock.studio.board import Board, class_name
from oarlock.training import Loss, NoCallback, Phase

FIXTURES = Path(__file__).parents[1] / "fixtures"
SMALL = {"width": 8, "adapt_last": 2, "batch": 8, "head_batch": 8}
ONCE = {"epochs": 1, "wp_epochs": 1, "ood_epochs": 1}
ON_LITE = ("row", "tpl")  # on a convolutional network; all others on a transformer
OFTEN = (
    "open",
    "closed",
    "packed",
    "row",
    "slda",
    "icarl",
    "derpp",
    "tpl",
    "l2p",
    "vectors",
)  # no two of them keep the same
OLD = ("format-1/row", "format-1/derpp", "format-2/row-paper", "format-3/oar-tuned", "format-5/oar")

Use = Callable[[Path, random.Random], None]


class Wrong(Exception):
    """A file was taken for good, and what came of it is no answer."""


class Subject(NamedTuple):
    """A file, what is done with it, and how often it has its turn."""

    name: str
    file: Path
    use: Use
    weight: int = 4


def build(folder: Path) -> None:
    """Write all of the files."""
    torch.set_num_threads(1)
    vit, lite = make_tiny_trunk(), make_tiny_convnet()
    tune = {"tune_classes": 2, "tune_steps": 2, "looks": 2}
    learners = {
        "open": Learner("oar", trunk=vit, memory=8, few=0, **SMALL, **ONCE),
        "closed": Learner("oar", trunk=vit, memory=8, **tune, **SMALL, **ONCE),
        "packed": Learner("oar", trunk=lite, size=64, memory=8, **tune, **SMALL, **ONCE),
        **{name: small_learner(lite if name in ON_LITE else vit, name, memory=8, **ONCE) for name in methods.all()},
        **{f"by-{name}": small_learner(vit, "row", memory=8, protector=name, **ONCE) for name in protectors.all()},
        "vectors": small_learner(load_trunk(VECTORS).suited_to([[0.0] * 5]), "row", memory=8, **ONCE),
    }
    for name, learner in learners.items():
        for labels in (["ant", "bee"], ["cow", "dog"]):
            learner.learn(*task_for(learner, labels), when=datetime(2026, 1, 1, tzinfo=UTC))
        learner.save(folder / f"{name}.oar")
    _correct(learners["closed"], folder / "corrected.oar")
    for name in OLD:
        shutil.copy(FIXTURES / f"{name}.oar", folder / f"{name.replace('/', '-')}.oar")
    _write_checkpoints(folder)
    shutil.copytree(FIXTURES / "format-3" / "run", folder / "run")
    shutil.copytree(FIXTURES / "format-3" / "stopped-run", folder / "stopped")
    of_runs = json.loads((folder / "run" / "config.json").read_text())
    (folder / "runs.json").write_text(json.dumps({"methods": [of_runs.pop("method"), "slda"], "settings": of_runs}))
    shares = {"oar": {"orders": 2, "options": {"lr": "0.1"}}, "slda": {"orders": 1, "options": {}}}
    column = {"format": 4, "settings": {"protocol": "c10-5t-mini", "seed": 3, "threads": 1}, "methods": shares}
    (folder / "bench.json").write_text(json.dumps({"c10-5t-mini": column}))
    _write_board(folder)


def task_for(learner: Learner, labels: list) -> tuple[np.ndarray, list]:
    """Six inputs of each class, as the learner takes them."""
    if learner.trunk.pictures:
        return make_task(labels, 6, size=max(4, learner.trunk.size // 4 * 4))
    return some_inputs(learner, 6 * len(labels)), [label for label in labels for _ in range(6)]


def some_inputs(learner: Learner, count: int) -> np.ndarray:
    random, size = np.random.default_rng(0), learner.trunk.size
    if learner.trunk.pictures:
        return random.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return random.normal(size=(count, learner.trunk.dim))


def _correct(learner: Learner, file: Path) -> None:
    """Everything that can be noted of a model."""
    learner.learn(*make_task(["ant", "gnu"], 6, seed=1), more=True).merge("cow", "bee")
    learner.rename("ant", "emmet").forget("dog").save(file)


def _write_board(folder: Path) -> None:
    """What the studio keeps, with all that there can be."""
    photos = [kind + digit * 24 for kind in "uf" for digit in "01"]
    board = Board(names=dict.fromkeys(photos[:2], "a.jpg"), learned=photos[3:], reports=[{"classes": {"ant": 1}}])
    board.add(photos[:2], "ant")
    board.throw_away(photos[2:3])
    board.lesson = {"classes": {"ant": photos[:2]}, "groups": [1], "before": None, "settings": {"epochs": 1}}
    (folder / "board.json").write_text(json.dumps(board.to_json()))
    answer = {"name": "a.jpg", "label": "ant", "unknown": False, "probability": 0.5, "task": 1, "score": -3.5}
    said = {photos[0]: answer | {"top": [{"label": "ant", "probability": 0.5}]}}
    (folder / "answers.json").write_text(json.dumps({"model": "0" * 64, "answers": said}))


def _write_checkpoints(folder: Path) -> None:
    """Two of a third task: in the middle of a phase, and between phases."""
    sessions.CHECKPOINT_SECONDS = 0.0
    for name, steps, phases in (("features", 3, 9), ("heads", 99, 1)):
        learner = load(folder / "open.oar")
        learner.set_epochs(3)
        prepared = learner.prepare_task(*make_task(["eel", "fox"], 6))
        go_on(Session(learner, folder / f"{name}.safetensors"), prepared, steps, phases)


def subjects(folder: Path) -> list[Subject]:
    """Return what `build` wrote."""
    models = [Subject(file.stem, file, use_model, 4 if file.stem in OFTEN else 1) for file in folder.glob("*.oar")]
    checkpoints = [Subject(name, folder / f"{name}.safetensors", use_checkpoint) for name in ("features", "heads")]
    run, stopped = folder / "run", folder / "stopped" / "checkpoint" / "state.safetensors"
    others = [
        Subject("stopped", stopped, use_checkpoint, 2),
        Subject("result", run / "result.json", use_run, 6),
        Subject("theory", run / "theory.json", use_run, 4),
        Subject("evaluation", run / "evaluation.safetensors", use_run, 6),
        Subject("config", run / "config.json", use_config, 3),
        Subject("runs", folder / "runs.json", use_runs, 3),
        Subject("bench", folder / "bench.json", use_plan, 3),
        Subject("board", folder / "board.json", use_board, 3),
        Subject("answers", folder / "answers.json", use_answers, 1),
    ]
    return sorted([*models, *checkpoints, *others])


# What is done with a mutant that was taken for good. `chance` says what is done now and then only.


def use_model(file: Path, chance: random.Random) -> None:
    learner = load(file)
    use_learner(learner, chance)
    facts = inspect(file)
    json.dumps(facts, allow_nan=False)
    verified = Verification(file, learner.method.name, check_tasks(learner))
    json.dumps(verified.to_json(), allow_nan=False)
    check_printed(lambda console: print_inspection(facts, console))
    check_printed(lambda console: print_verification(verified, console))


def check_printed(show: Callable[[Console], None]) -> None:
    """What is shown cannot steer the terminal."""
    console = Console(file=io.StringIO(), width=100)
    show(console)
    if "\x1b" in console.file.getvalue():  # type: ignore[attr-defined]
        raise Wrong("an escape character was printed")


def use_learner(learner: Learner, chance: random.Random) -> None:
    check_answers(learner)
    if chance.random() < 0.2:
        check_answers(learner.accelerate())
        learner.accelerate(shortlist=None)
    if chance.random() < 0.1 and len(learner.classes_) > 1:
        first, second = learner.classes_.tolist()[:2]
        check_answers(learner.merge(first, second))
        if learner.method.name in ("oar", "row", "slda") and len(learner.classes_) > 1:
            check_answers(learner.forget(first))
    if chance.random() < 0.25:
        names = [7001, 7002] if isinstance(learner.tasks_[0][0], int) else ["eel", "fox"]
        go_on(Session(learner), learner.prepare_task(*task_for(learner, names)))


def go_on(session: Session, prepared: PreparedTask, steps: int = 1, phases: int = 3) -> None:
    """Learn, until so many steps were done or so many phases begun."""
    try:
        session.learn(prepared, StopAt(steps, phases))
    except Stopped:
        return


def check_answers(learner: Learner) -> None:
    images, classes = some_inputs(learner, 2), len(learner.classes_)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        found = learner.predict_proba(images)
    told = any("not numbers" in str(note.message) for note in notes)
    if found.shape != (2, classes) or not (told or np.allclose(found.sum(1), 1)):
        raise Wrong(f"probabilities {found}")
    if len(learner.calibration):
        learner.predict(images, accept=0.9)


def use_checkpoint(file: Path, chance: random.Random) -> None:
    saved = read_checkpoint(file)
    learner = Learner.from_state(*saved.state)
    if saved.position[1:] == (0, 0):
        use_learner(learner, chance)
    elif learner.trunk.size == 16:
        go_on(Session(learner, saved=saved), learner.prepare_task(*make_task(["eel", "fox"], 6)))


def use_board(file: Path, chance: random.Random) -> None:
    board = Board.from_json(read_json(file))
    if Board.from_json(board.to_json()) != board:
        raise Wrong("it is read as something else the second time")
    board.grouped()
    for group in board.groups:
        class_name(group.name or "none")
    board.release(board.thrown)


def use_answers(file: Path, chance: random.Random) -> None:
    json.dumps(KEPT(read_json(file), ""), allow_nan=False)


def use_run(file: Path, chance: random.Random) -> None:
    files = read_run_files(file.parent)
    check_printed(lambda console: print_summary(files.result, console))
    if chance.random() < 0.2:
        write_report(file.parent).unlink()
    if chance.random() < 0.2:
        json.dumps([method.to_json() for method in compare([file.parent]).methods], allow_nan=False)


def use_config(file: Path, chance: random.Random) -> None:
    config = saved_config(file.parent)
    if config.trunk in ("vit_pico", "tiny"):
        config.learner()


def use_runs(file: Path, chance: random.Random) -> None:
    if not saved_configs(file.parent):
        raise Wrong("there are no runs")


def use_plan(file: Path, chance: random.Random) -> None:
    for planned in Plan.load(file.parent).runs():
        planned.config()
        if planned.directory.is_absolute() or ".." in planned.directory.parts:
            raise Wrong(f"a run would be written to {planned.directory}")


class Stopped(Exception):
    """Raised after so many steps, or when so many phases were begun."""


class StopAt(NoCallback):
    def __init__(self, steps: int, phases: int) -> None:
        self.steps, self.phases = steps, phases

    def on_phase(self, task: int, phase: Phase) -> None:
        self.phases -= 1
        if self.phases < 0:
            raise Stopped

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Stopped
