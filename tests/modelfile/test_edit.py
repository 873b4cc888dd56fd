"""Corrections to a model file: what they change, what they leave alone, and the way back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Command, make_task
from modelfile.conftest import Teach, names_in, write_classes
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
        (["merge", "ant", "cow"], "has no class 'cow'"),
        (["merge", "ant", "ant"], "are one class already: name two"),
        (["forget", "cow"], "has no class 'cow'; its classes: 'ant', 'bee'"),
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


# Merged


def test_two_classes_become_one(
    oarlock: Command, model: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("learn", model, photos) == 0
    before, values = load(model), content(model)[0]
    assert oarlock("merge", model, "duck", "ant") == 0
    assert "merged: ant is now duck" in capsys.readouterr().out
    after = load(model)
    assert after.tasks_ == [["duck", "bee"], ["crow", "duck"]]
    old, new = before.predict_proba(IMAGES), after.predict_proba(IMAGES)
    np.testing.assert_allclose(new, np.stack([old[:, 0] + old[:, 3], old[:, 1], old[:, 2]], 1), rtol=1e-5)
    assert content(model)[0] == values
    assert oarlock("verify", model) == 0
    assert oarlock("predict", model, photos / "duck", "--accept", 1, "--json") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()[-8:]]
    assert {answer["task"] for answer in answers} == {2}  # whose column of the class says more
    assert {answer["label"] for answer in answers if not answer["unknown"]} == {"duck"}
    assert oarlock("inspect", model) == 0
    assert "ant merged into duck" in capsys.readouterr().out


# More


@pytest.fixture
def more(here: Path) -> Path:
    """Other photos of a known class, and a new one."""
    return write_classes(here / "more", "bee", "crow", seed=5)


def test_more_photos_are_learned_as_part_of_the_next_task(
    oarlock: Command, model: Path, taught: Path, more: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("learn", model, more, "--more") == 0
    assert "learned task 2: bee (8 images), crow (8 images)" in capsys.readouterr().out
    load(taught).learn(more, more=True).save(tmp_path / "by-hand.oar")
    assert content(model)[0] == content(tmp_path / "by-hand.oar")[0]
    assert load(model).classes_.tolist() == ["ant", "bee", "crow"]
    assert oarlock("verify", model) == 0
    assert oarlock("inspect", model) == 0
    assert "task 2: more photos of bee" in capsys.readouterr().out


def test_the_very_same_photos_are_not_learned_again(
    oarlock: Command, model: Path, more: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("learn", model, more, "--more") == 0
    before = model.read_bytes()
    assert oarlock("learn", model, more, "--more") == 0
    assert "these very images were learned already" in capsys.readouterr().out
    assert model.read_bytes() == before and names_in(model.parent) == {"shop.oar"}


def test_more_that_was_interrupted_goes_on(
    oarlock: Command, interrupted: Teach, model: Path, taught: Path, more: Path, tmp_path: Path
) -> None:
    assert interrupted("checkpoint", 3, model, more, "--more") == 130
    assert oarlock("learn", model, more / ".." / "more", "--only", "bee") == 0  # known, so there is nothing to learn,
    assert model_paths(model).checkpoint.exists()  # and what was interrupted still can go on
    assert oarlock("learn", model, more, "--more", "--json") == 0
    load(taught).learn(more, more=True).save(tmp_path / "whole.oar")
    assert content(model)[0] == content(tmp_path / "whole.oar")[0]
    assert names_in(model.parent) == {"shop.oar"}


def test_more_and_strict_are_a_contradiction(
    oarlock: Command, model: Path, more: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("learn", model, more, "--more", "--strict") == 2
    assert "choose one of the two" in capsys.readouterr().err


def test_a_memory_has_room_for_every_part_of_a_class(
    oarlock: Command, model: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = write_classes(here / "many", "bee", *(f"class {number}" for number in range(6)), count=2)
    assert oarlock("learn", model, many, "--more") == 2
    assert "--memory 9" in capsys.readouterr().err


# Forgotten


def test_a_class_is_forgotten_and_so_is_what_was_kept_before(
    oarlock: Command, model: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("learn", model, photos, "--keep-previous") == 0
    assert oarlock("forget", model, "bee") == 0
    assert "forgotten: bee" in capsys.readouterr().out
    assert names_in(model.parent) == {"shop.oar"}
    assert load(model).tasks_ == [["ant"], ["crow", "duck"]]
    assert b"bee" not in model.read_bytes()
    assert oarlock("verify", model) == 0
    assert oarlock("inspect", model) == 0
    assert "a class forgotten, of 2 tasks" in capsys.readouterr().out
    assert oarlock("undo", model) == 2


def test_it_is_kept_only_where_that_is_asked_for(oarlock: Command, model: Path) -> None:
    before = model.read_bytes()
    assert oarlock("forget", model, "bee", "--keep-previous") == 0
    assert oarlock("undo", model) == 0
    assert model.read_bytes() == before


def test_what_was_half_learned_from_it_is_gone_as_well(
    oarlock: Command, interrupted: Teach, model: Path, photos: Path
) -> None:
    assert interrupted("checkpoint", 2, model, photos) == 130
    assert oarlock("forget", model, "bee") == 0
    assert names_in(model.parent) == {"shop.oar"}


def test_what_cannot_be_removed_is_named_before_anything_changes(
    oarlock: Command, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_paths(model).previous.mkdir()
    before = model.read_bytes()
    assert oarlock("forget", model, "bee") == 2
    assert "shop.oar.previous cannot be removed" in capsys.readouterr().err
    assert model.read_bytes() == before


def test_who_cannot_forget_keeps_the_model_as_it_is(
    oarlock: Command, tiny_trunk: Trunk, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"epochs": 1, "adapt_last": 1, "width": 8}
    Learner("icarl", trunk=tiny_trunk, memory=8, **few).learn(*make_task(["ant", "bee"], 5)).save(here / "i.oar")
    before = (here / "i.oar").read_bytes()
    assert oarlock("forget", here / "i.oar", "ant") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "icarl cannot forget a class" in line
    assert (here / "i.oar").read_bytes() == before


def test_what_is_measured_by_task_is_not_of_classes_in_parts(
    oarlock: Command, model: Path, more: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("learn", model, more, "--more") == 0
    assert oarlock("theory", model, "--data", "sample") == 2
    assert "one class was learned in parts" in capsys.readouterr().err
