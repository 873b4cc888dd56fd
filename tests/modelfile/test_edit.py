"""Corrections to a model file: what they change, what they leave alone, and the way back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Command, make_task
from modelfile.conftest import Teach, names_in
from oarlock import Learner, OarlockError, load
from oarlock.files import fingerprint, read_tensors
from oarlock.modelfile import edit
from oarlock.modelfile.paths import model_paths
from oarlock.nets.trunks import Trunk

IMAGES, _ = make_task(["ant", "bee", "crow"], 4, seed=1)


def content(model: Path) -> tuple[str, dict[str, Any]]:
    tensors, description = read_tensors(model, "model")
    return fingerprint(tensors), description


# Names


def test_a_class_has_another_name_and_nothing_else_changes(oarlock: Command, model: Path) -> None:
    before, numbers = content(model), load(model).predict_proba(IMAGES)
    assert oarlock("rename", model, "bee", "bumblebee") == 0
    learner = load(model)
    assert learner.classes_.tolist() == ["ant", "bumblebee"]
    assert np.array_equal(learner.predict_proba(IMAGES), numbers)
    assert content(model)[0] == before[0]  # every tensor
    (note,) = learner.edits_
    assert (note.edit, note.labels, note.tasks) == ("rename", ["bee", "bumblebee"], 1)
    assert note.when is not None
    assert names_in(model.parent) == {"shop.oar"}


def test_what_was_corrected_is_shown(oarlock: Command, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert oarlock("rename", model, "bee", "caf\x1b[31m") == 0
    assert "renamed: bee is now called caf�[31m" in capsys.readouterr().out
    assert oarlock("inspect", model) == 0
    shown = capsys.readouterr().out
    assert "bee renamed to caf�[31m" in shown and "\x1b" not in shown
    assert oarlock("inspect", model, "--json") == 0
    assert json.loads(capsys.readouterr().out)["edits"][0]["labels"] == ["bee", "caf\x1b[31m"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rename", "cow", "dog"], "has no class 'cow'; its classes: 'ant', 'bee'"),
        (["rename", "ant", "bee"], "there is a class 'bee' already: to make one class of both, merge them"),
        (["rename", "ant", "x" * 2000], "the new name is"),
        (["undo"], "was not kept as it was before"),
    ],
)
def test_a_mistake_is_named_and_leaves_the_model_alone(
    arguments: list[str], said: str, oarlock: Command, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model.read_bytes()
    command, *others = arguments
    assert oarlock(command, model, *others) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert model.read_bytes() == before and names_in(model.parent) == {"shop.oar"}


def test_what_is_not_there_is_not_made(oarlock: Command, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert oarlock("rename", here / "no.oar", "a", "b") == 2
    assert "there is no file" in capsys.readouterr().err
    assert names_in(here) == set()


def test_numbers_are_numbers_on_a_command_line_too(oarlock: Command, tiny_trunk: Trunk, here: Path) -> None:
    Learner("slda", trunk=tiny_trunk).learn(*make_task([3, 5], 5)).save(here / "n.oar")
    assert oarlock("rename", here / "n.oar", 3, 4) == 0
    assert load(here / "n.oar").classes_.tolist() == [4, 5]
    with pytest.raises(OarlockError, match="are numbers"):
        edit.rename(here / "n.oar", 4, "four")


# The way back


def test_a_lesson_is_undone(oarlock: Command, model: Path, photos: Path) -> None:
    model.chmod(0o600)
    before = model.read_bytes()
    assert oarlock("learn", model, photos, "--keep-previous") == 0
    assert names_in(model.parent) == {"shop.oar", "shop.oar.previous"}
    assert model_paths(model).previous.stat().st_mode & 0o777 == 0o600
    assert oarlock("undo", model) == 0
    assert model.read_bytes() == before and model.stat().st_mode & 0o777 == 0o600
    assert names_in(model.parent) == {"shop.oar"}


def test_what_is_kept_is_always_one_step_back(oarlock: Command, model: Path) -> None:
    """Also when only an earlier step asked for it: another step would be the wrong one to undo."""
    assert oarlock("rename", model, "ant", "emmet", "--keep-previous") == 0
    between = model.read_bytes()
    assert oarlock("rename", model, "emmet", "pismire") == 0
    assert oarlock("undo", model) == 0
    assert model.read_bytes() == between


def test_a_model_is_not_less_private_for_having_been_undone(oarlock: Command, model: Path) -> None:
    assert oarlock("rename", model, "ant", "emmet", "--keep-previous") == 0
    model.chmod(0o600)
    assert oarlock("undo", model) == 0
    assert model.stat().st_mode & 0o777 == 0o600


def test_what_is_kept_is_read_before_it_takes_the_place(
    oarlock: Command, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("rename", model, "ant", "emmet", "--keep-previous") == 0
    after = model.read_bytes()
    model_paths(model).previous.write_bytes(after[:1000])
    assert oarlock("undo", model) == 2
    assert "shop.oar.previous is not an Oarlock model file, or it is damaged" in capsys.readouterr().err
    assert model.read_bytes() == after


def test_after_a_step_that_was_interrupted_there_is_nothing_to_undo(
    oarlock: Command, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_paths(model).previous.write_bytes(model.read_bytes())
    assert oarlock("undo", model) == 2
    assert "there is nothing to undo" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["undo"], ["rename", "ant", "emmet", "--keep-previous"]])
def test_a_link_in_the_place_of_what_is_kept_is_not_followed(
    arguments: list[str], oarlock: Command, model: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "thesis.txt").write_text("two years of work")
    model_paths(model).previous.symlink_to(here / "thesis.txt")
    before = model.read_bytes()
    assert oarlock(arguments[0], model, *arguments[1:]) == 2
    assert "is a link, which is not followed" in capsys.readouterr().err
    assert model.read_bytes() == before and (here / "thesis.txt").read_text() == "two years of work"


# One at a time


def test_a_model_that_is_being_taught_is_left_alone(
    oarlock: Command, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from oarlock.modelfile.paths import only_writer

    with only_writer(model):
        assert oarlock("rename", model, "ant", "emmet") == 2
        assert oarlock("undo", model) == 2
    assert capsys.readouterr().err.count("another process is teaching") == 2


def test_a_lesson_that_was_interrupted_goes_on_first(
    oarlock: Command, interrupted: Teach, model: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert interrupted("checkpoint", 2, model, photos) == 130
    assert oarlock("rename", model, "ant", "emmet") == 2
    assert "learning was interrupted on" in capsys.readouterr().err
    assert oarlock("learn", model, photos) == 0
    assert oarlock("rename", model, "ant", "emmet") == 0
    assert load(model).tasks_ == [["emmet", "bee"], ["crow", "duck"]]
