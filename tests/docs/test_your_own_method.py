"""The methods of docs/your-own-method.md, as they stand on the page."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import oarlock
from conftest import make_task
from contract import test_contract as contract
from contract.conftest import small_options
from oarlock import Learner
from oarlock.cli import app
from oarlock.methods import methods

PAGE = Path(__file__).parents[2] / "docs" / "your-own-method.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
OPTIONS = {"nearest-mean": {}, "replay": {"epochs": 3, "width": 8, "lr": 0.1, "batch": 8}}


@pytest.fixture(params=range(2), ids=OPTIONS)
def name(request, monkeypatch) -> str:
    monkeypatch.setattr(methods, "entries", methods.all())
    exec(compile(BLOCKS[request.param], str(PAGE), "exec"), {"__name__": "own"})
    return list(OPTIONS)[request.param]


def test_there_are_two_and_they_are_short():
    assert len(BLOCKS) == 2
    assert all(sum(bool(line.strip()) for line in block.splitlines()) < 40 for block in BLOCKS)


def test_it_learns_saves_and_loads(name, tiny_trunk, tmp_path):
    learner = Learner(name, trunk=tiny_trunk, memory=20, **OPTIONS[name])
    for task in ([0, 1], [2], [3, 4, 5]):
        learner.learn(*make_task(task))
    images, labels = make_task([0, 1, 2, 3, 4, 5], 8, seed=1)
    assert learner.score(images, labels) > 0.4  # chance is a sixth
    learner.save(tmp_path / "own.oar")
    again = oarlock.load(tmp_path / "own.oar")
    assert np.array_equal(learner.predict_proba(images), again.predict_proba(images))


@pytest.mark.parametrize(
    "check",
    [
        contract.test_one_class_is_a_task,
        contract.test_tasks_may_be_uneven,
        contract.test_initial_values_are_not_drawn_where_the_weights_are,
    ],
)
def test_it_passes_what_every_method_must(check, name, tiny_trunk, monkeypatch):
    def new_learner(name):
        return Learner(name, trunk=tiny_trunk, memory=12, **small_options(name))

    fixtures = {"name": name, "new_learner": new_learner, "monkeypatch": monkeypatch}
    check(**{parameter: fixtures[parameter] for parameter in inspect.signature(check).parameters})


def test_it_runs_and_is_listed(name, tmp_path):
    images, labels = make_task([0, 1, 2, 3], 8, size=32)
    test_images, _ = make_task([0, 1, 2, 3], 4, size=32, seed=1)
    data = tmp_path / "data.npz"
    numbers = np.array(labels)
    np.savez(
        data, train_x=images, train_y=numbers, test_x=test_images, test_y=np.repeat(range(4), 4), classes=list("abcd")
    )
    settings = [part for key, value in OPTIONS[name].items() for part in ("--set", f"{key}={value}")]
    command = ["run", str(data), "--method", name, "--threads", "1", "--out", str(tmp_path / "run"), *settings]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "report.html").exists()
    assert name in CliRunner().invoke(app, ["methods"]).output
