"""`oarlock unknowns`: rejected images become groups that can be named and learned."""

import errno
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import oarlock as package
from conftest import Command, make_task
from modelfile.conftest import names_in, write_classes
from oarlock import Learner
from oarlock.errors import OarlockError
from oarlock.modelfile.unknowns import group_images
from oarlock.nets.trunks import Trunk

ALL = 0.05  # of known images to accept, so few that hardly anything passes


@pytest.fixture(scope="module")
def model(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "shop.oar"
    learner = Learner("slda", trunk=tiny_trunk, calibration=0.5)
    learner.learn(*make_task(["ant", "bee", "cow"], 20)).save(path)
    return path


@pytest.fixture
def learner(model: Path) -> Learner:
    return package.load(model)


@pytest.fixture
def folder(here: Path) -> Path:
    """Kinds of images that were never learned, which vary as much as those learned; kinds share file names."""
    return write_classes(here / "mixed", "fox", "owl", "viper", count=6)


def kinds_in(group: Path, here: Path) -> Counter:
    return Counter(
        original.parent.name
        for copy in group.iterdir()
        for original in here.glob("mixed/*/*")
        if original.read_bytes() == copy.read_bytes()
    )


def test_groups_hold_one_kind_each_and_the_images_stay_where_they_were(
    oarlock: Command, model: Path, folder: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock("unknowns", model, folder, "out", "--accept", ALL) == 0
    out = capsys.readouterr().out
    assert names_in(here / "out") == {"group-1", "group-2", "group-3", "groups.json"}
    kinds = [kinds_in(here / "out" / f"group-{number}", here) for number in (1, 2, 3)]
    assert sorted(kind for counts in kinds for kind in counts) == ["fox", "owl", "viper"]
    assert all(list(counts.values()) == [6] for counts in kinds)
    assert len(list(folder.rglob("*.png"))) == 18
    assert "18 of 18 images unknown" in out and f"oarlock learn {model} out" in out
    assert all(f"group-{number}" in out for number in (1, 2, 3))


def test_groups_json_says_what_was_put_where_and_how_far_from_the_centre(
    oarlock: Command, model: Path, folder: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock("unknowns", model, folder, "out", "--accept", ALL, "--json") == 0
    content = json.loads((here / "out" / "groups.json").read_text())
    assert json.loads(capsys.readouterr().out) == content
    assert (content["images"], content["unknown"], content["accept"]) == (18, 18, ALL)
    for group in content["groups"]:
        files = group["files"]
        assert names_in(here / "out" / group["folder"]) == {file["file"] for file in files}
        assert all((here / "out" / group["folder"] / f["file"]).samefile(f["from"]) is False for f in files)
        distances = [file["distance"] for file in files]
        assert distances == sorted(distances) and np.mean(distances) == pytest.approx(group["mean_distance"])
        assert group["images"] == len(files) and group["nearest"]["folder"] != group["folder"]
        assert group["nearest"]["distance"] > group["mean_distance"]


def test_the_number_of_groups_can_be_given(oarlock: Command, model: Path, folder: Path, here: Path) -> None:
    for number in (1, 5):
        assert oarlock("unknowns", model, folder, f"out-{number}", "--accept", ALL, "--groups", number) == 0
        sizes = [group["images"] for group in json.loads((here / f"out-{number}/groups.json").read_text())["groups"]]
        assert len(sizes) == number and sum(sizes) == 18 and sizes == sorted(sizes, reverse=True)
    for number in (0, 19):
        assert oarlock("unknowns", model, folder, "out", "--accept", ALL, "--groups", number) == 2
    assert not (here / "out").exists()


def test_only_rejected_images_are_copied(oarlock: Command, model: Path, folder: Path, here: Path, learner) -> None:
    write_classes(folder, "ant", "bee", seed=1)
    assert oarlock("unknowns", model, folder, "out", "--accept", 0.8) == 0
    content = json.loads((here / "out" / "groups.json").read_text())
    files = sorted(folder.rglob("*.png"))
    rejected = {str(file) for file, label in zip(files, learner.predict(files, 0.8), strict=True) if label is None}
    assert 0 < len(rejected) < len(files)
    assert {file["from"] for group in content["groups"] for file in group["files"]} == rejected


def test_where_nothing_is_unknown_nothing_is_written(
    oarlock: Command, model: Path, here: Path, learner: Learner, capsys: pytest.CaptureFixture
) -> None:
    known = write_classes(here / "known", "ant", seed=0, count=4)
    assert None not in learner.predict(known, accept=1.0)
    assert oarlock("unknowns", model, known, "out", "--accept", 1) == 0
    assert "none of 4 images is unknown" in capsys.readouterr().out
    assert not (here / "out").exists()


def test_groups_are_ready_to_be_learned(oarlock: Command, model: Path, folder: Path, here: Path, learner) -> None:
    assert oarlock("unknowns", model, folder, "out", "--accept", ALL) == 0
    learner.learn("out")
    assert learner.tasks_[-1] == ["group-1", "group-2", "group-3"]
    answers = learner.predict(folder)
    for kind in np.split(answers, 3):
        assert len(set(kind)) == 1


# What may go wrong


def test_a_folder_that_holds_something_is_left_alone(
    oarlock: Command, model: Path, folder: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    (here / "full").mkdir()
    (here / "full" / ".keep").touch()
    (here / "file").touch()
    (here / "empty").mkdir()
    assert oarlock("unknowns", model, folder, "full") == 2
    assert "full is not empty" in capsys.readouterr().err
    assert oarlock("unknowns", model, folder, "file") == 2
    assert names_in(here / "full") == {".keep"}
    assert oarlock("unknowns", model, folder, "empty", "--accept", ALL) == 0
    assert oarlock("unknowns", model, folder, "new/deep", "--accept", ALL) == 0


def test_damaged_images_are_named_and_left_out(
    oarlock: Command, model: Path, folder: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    (folder / "fox" / "0.png").write_text("not an image")
    assert oarlock("unknowns", model, folder, "out", "--accept", ALL) == 1
    out, err = capsys.readouterr()
    assert "fox/0.png: not a readable image" in err and "17 of 17 images" in out
    (here / "nothing").mkdir()
    assert oarlock("unknowns", model, "nothing", "other") == 2
    assert "no images in this folder" in capsys.readouterr().err


@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_a_copy_that_fails_leaves_nothing_behind(
    problem: BaseException, oarlock: Command, model: Path, folder: Path, here: Path, monkeypatch, capsys
) -> None:
    copies = 0
    copy2 = shutil.copy2

    def fails(*arguments: object) -> None:
        nonlocal copies
        copies += 1
        if copies > 5:
            raise problem
        copy2(*arguments)

    monkeypatch.setattr(shutil, "copy2", fails)
    before = names_in(here)
    stopped = isinstance(problem, KeyboardInterrupt)
    assert oarlock("unknowns", model, folder, "out", "--accept", ALL) == (130 if stopped else 2)
    assert ("out cannot be written (No space left on device)" in capsys.readouterr().err) is not stopped
    assert names_in(here) == before


def test_a_link_becomes_a_copy_of_what_it_leads_to(oarlock: Command, model: Path, folder: Path, here: Path) -> None:
    (here / "links").mkdir()
    (here / "links" / "a.png").symlink_to(folder / "fox" / "0.png")
    assert oarlock("unknowns", model, "links", "out", "--accept", ALL) == 0
    copy = here / "out" / "group-1" / "a.png"
    assert not copy.is_symlink() and copy.read_bytes() == (folder / "fox" / "0.png").read_bytes()


def test_groups_may_go_where_a_link_leads(oarlock: Command, model: Path, folder: Path, here: Path) -> None:
    (here / "disk").mkdir()
    (here / "out").symlink_to("disk")
    assert oarlock("unknowns", model, folder, "out", "--accept", ALL) == 0
    assert (here / "out").is_symlink() and (here / "disk" / "groups.json").exists()


# The same from Python


def test_images_in_any_form_are_grouped_the_same_way(learner: Learner, folder: Path) -> None:
    files = sorted(folder.rglob("*.png"))
    found = group_images(learner, files)
    pictures = np.stack([np.asarray(Image.open(file)) for file in files])
    assert np.array_equal(group_images(learner, pictures).groups, found.groups)
    assert np.array_equal(group_images(learner, folder).groups, found.groups)
    assert len(found.centres) == 3 and found.distances.shape == found.groups.shape == (18,)
    again = group_images(learner, files, groups=3)
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))


def test_one_image_is_one_group(learner: Learner, folder: Path) -> None:
    found = group_images(learner, [folder / "fox" / "0.png"])
    assert found.groups.tolist() == [0] and found.distances.tolist() == [0.0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_equal_images_are_not_spread_over_groups(learner: Learner, folder: Path) -> None:
    files = [folder / "fox" / "0.png"] * 5
    assert group_images(learner, files).groups.tolist() == [0] * 5
    assert group_images(learner, files, groups=3).groups.tolist() == [0] * 5


def test_a_learner_that_keeps_no_known_images_needs_a_number_of_groups(tiny_trunk: Trunk, folder: Path) -> None:
    learner = Learner("slda", trunk=tiny_trunk, calibration=0).learn(*make_task(["ant"], 8))
    with pytest.raises(OarlockError, match="too few to choose a number of groups"):
        group_images(learner, folder)
    assert len(group_images(learner, folder, groups=2).centres) == 2
