"""A promise that is a tolerance: checked, printed and written as what it is, and never as bit-identical."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from conftest import make_task
from oarlock import Learner, load
from oarlock.modelfile.inspect import Verification, inspect, verify
from oarlock.nets.protectors.project import Project
from oarlock.report import wording
from oarlock.report.model_terminal import print_inspection, print_verification
from oarlock.tasks import TOLERANCE, Check


@pytest.fixture
def model(tiny_trunk, tmp_path: Path) -> Path:
    options = {"protector": "project", "energy": 0.9, "width": 8, "batch": 8, "epochs": 4, "head_batch": 8}
    learner = Learner("row", trunk=tiny_trunk, memory=12, **options)
    for labels in (["ant", "bee"], ["cow", "dog"]):
        learner.learn(*make_task(labels, 20))
    learner.save(tmp_path / "model.oar")
    return tmp_path / "model.oar"


def printed(show: Any, *things: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    show(*things, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_what_moved_a_little_holds_and_is_not_called_identical(model: Path) -> None:
    verification = verify(model)
    first, last = verification.tasks
    assert first.check.changed and 0 < first.check.difference <= Project.tolerance and first.check.holds
    assert last.check.changed == []
    told = verification.to_json()
    assert told["holds"] and [task["identical"] for task in told["tasks"]] == [False, True]
    assert {task["tolerance"] for task in told["tasks"]} == {Project.tolerance}
    said = printed(print_verification, verification)
    assert "promised is to 10 % of the largest value, not bit for bit; within that" in said
    assert "every promise holds" in said
    assert "to 10 % of the largest value, not bit for bit" in printed(print_inspection, inspect(model))


def test_what_moved_further_breaks_the_promise(model: Path) -> None:
    learner = load(model)
    with torch.no_grad():
        for matrix in learner.method.protector.matrices:
            matrix.bias += 1.0
    check = learner.history_[0].promise.check(learner.method, 0)
    assert check.difference > Project.tolerance and not check.holds
    verification = verify(model)
    broken = Verification(model, "row", [verification.tasks[0]._replace(check=check)])
    assert "beyond that" in printed(print_verification, broken) and "a promise is broken" in printed(
        print_verification, broken
    )


def test_a_statistic_that_changed_is_broken_under_any_tolerance(model: Path) -> None:
    learner = load(model)
    learner.method.gaussians[0].means[0, 0] += 1e-6
    assert not learner.history_[0].promise.check(learner.method, 0).holds


@pytest.mark.parametrize(
    ("tolerance", "same_machine", "difference", "holds"),
    [
        (0.0, True, 1e-9, False),
        (0.0, False, TOLERANCE, True),
        (0.1, True, 0.1, True),
        (0.1, False, 0.1, True),
        (0.1, True, 0.11, False),
        (0.1, True, float("inf"), False),
        (0.1, True, float("nan"), False),
    ],
)
def test_what_may_move(tolerance: float, same_machine: bool, difference: float, holds: bool) -> None:
    assert Check(9, 1, ["features"], difference, same_machine, tolerance).holds == holds


def test_a_runs_result_has_what_moved_and_older_ones_are_read() -> None:
    old, exact = {"compared": 9, "changed": 1}, {"compared": 9, "changed": 0}
    near = old | {"tolerance": 0.1, "difference": 0.02}
    assert wording.is_kept(exact) and not wording.is_kept(old)
    assert wording.is_kept(near)
    assert not wording.is_kept(near | {"difference": 0.2}) and not wording.is_kept(near | {"difference": None})
    assert "bit-identical" in wording.promise(exact) and "bit-identical" not in wording.promise(near)
    assert wording.promise(near).endswith("not bit for bit; they moved by 2 % at most.")
