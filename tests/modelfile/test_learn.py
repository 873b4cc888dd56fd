"""`oarlock learn`: what it makes of folders, what it refuses, and that the old model is never harmed."""

import json
import os
import shutil
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oarlock as package
from conftest import Command
from modelfile.conftest import SMALL, description_of, names_in, write_classes
from oarlock import Learner, files
from oarlock.files import read_tensors
from oarlock.modelfile.paths import model_paths
from oarlock.report.progress import ProgressBar

SETTINGS = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]


def classes_of(model: Path) -> list[list[str]]:
    return [task["classes"] for task in description_of(model)["tasks"]]


def assert_same_tensors(one: Path, other: Path) -> None:
    (tensors, _), (others, _) = (read_tensors(path, "model") for path in (one, other))
    assert tensors.keys() == others.keys()
    assert [name for name, value in tensors.items() if not torch.equal(value, others[name])] == []


def untouched(model: Path) -> tuple[int, int, int]:
    """What replacing or rewriting the file would change; reading it changes its access time only."""
    facts = model.stat()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


# Teaching


def test_a_new_model_is_created_with_the_settings_given(oarlock: Command, photos: Path, here: Path) -> None:
    assert oarlock("learn", "new.oar", photos, "--memory", 6, "--seed", 3, *SETTINGS) == 0
    description = description_of(here / "new.oar")
    assert (description["method"], description["memory"], description["seed"]) == ("oar", 6, 3)
    assert SMALL.items() <= description["config"].items()
    assert classes_of(here / "new.oar") == [["crow", "duck"]]
    assert names_in(here) == {"new.oar", "photos"}


def test_the_next_task_is_the_one_that_the_library_would_learn(
    oarlock: Command, model: Path, taught: Path, photos: Path, tmp_path: Path
) -> None:
    assert oarlock("learn", model, photos) == 0
    package.load(taught).learn(photos).save(tmp_path / "by-hand.oar")
    assert_same_tensors(model, tmp_path / "by-hand.oar")
    assert names_in(model.parent) == {"shop.oar"}


def test_date_and_images_are_kept(oarlock: Command, model: Path, photos: Path, day: None) -> None:
    write_classes(photos, "eel", count=5)
    assert oarlock("learn", model, photos) == 0
    first, second = description_of(model)["tasks"]
    assert (first["learned"], first["images"]) == (None, [8, 8])
    assert (second["learned"], second["images"]) == ("2024-02-29T12:30:00+00:00", [8, 8, 5])


def test_it_says_in_a_few_lines_what_was_learned(
    oarlock: Command, model: Path, photos: Path, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock("learn", model, photos) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert len(printed.out.splitlines()) == 4
    for text in (
        "task 2: crow (8 images), duck (8 images)",
        "4 images kept",
        "free capacity",
        str(model),
        "4 classes",
    ):
        assert text in printed.out


def test_json_is_one_object_on_standard_output(
    oarlock: Command, model: Path, photos: Path, capsys: pytest.CaptureFixture
) -> None:
    write_classes(photos, "ant")
    assert oarlock("learn", model, photos, "--json") == 0
    printed = capsys.readouterr()
    outcome = json.loads(printed.out)
    assert (outcome["task"], outcome["classes"], outcome["skipped"]) == (2, {"crow": 8, "duck": 8}, ["ant"])
    assert outcome["calibration"] == {"of_this_task": 2, "of_all": 4}
    assert outcome["bytes"] == model.stat().st_size
    assert "ant" in printed.err


def test_known_classes_are_skipped_with_a_notice(
    oarlock: Command, model: Path, photos: Path, capsys: pytest.CaptureFixture
) -> None:
    (photos / "bee").mkdir()  # what is skipped need not be there any more
    assert oarlock("learn", model, photos) == 0
    assert "skipped, since they are known: bee" in capsys.readouterr().out
    assert classes_of(model) == [["ant", "bee"], ["crow", "duck"]]


def test_with_nothing_new_nothing_is_written(
    oarlock: Command, model: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    write_classes(here / "known", "ant", "bee")
    before = untouched(model)
    assert oarlock("learn", model, "known") == 0
    assert "nothing to do" in capsys.readouterr().out
    assert untouched(model) == before
    assert names_in(model.parent) == {"shop.oar"}


def test_only_some_classes_may_be_chosen(oarlock: Command, model: Path, photos: Path) -> None:
    write_classes(photos, "eel", "fox, red")
    assert oarlock("learn", model, photos, "--only", "eel,crow", "--only", "fox, red") == 0
    assert classes_of(model)[1] == ["crow", "eel", "fox, red"]


def test_epochs_may_change_and_stay(oarlock: Command, model: Path, photos: Path) -> None:
    assert oarlock("learn", model, photos, "--epochs", 1) == 0
    assert description_of(model)["config"]["epochs"] == 1


def test_a_link_to_a_model_stays_a_link(oarlock: Command, model: Path, photos: Path, here: Path) -> None:
    (here / "current.oar").symlink_to(model)
    assert oarlock("learn", "current.oar", photos) == 0
    assert (here / "current.oar").is_symlink()
    assert classes_of(model) == [["ant", "bee"], ["crow", "duck"]]


def test_a_class_of_one_image_is_noted(
    oarlock: Command, model: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    write_classes(here / "few", "eel", count=1)
    assert oarlock("learn", model, "few") == 0
    assert "note: class 'eel' has a single image" in capsys.readouterr().out


# Memory


def test_a_memory_too_small_is_refused_and_may_be_enlarged(
    oarlock: Command, model: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    many = write_classes(here / "many", *(f"class {number}" for number in range(7)), count=2)
    before = model.read_bytes()
    assert oarlock("learn", model, many) == 2
    assert "memory of 8 images" in (said := capsys.readouterr().err) and "--memory 9" in said
    assert model.read_bytes() == before
    assert oarlock("learn", model, many, "--memory", 9) == 0
    assert description_of(model)["memory"] == 9
    assert len(package.load(model).method.memory) == 9


def test_a_smaller_memory_is_refused(
    oarlock: Command, model: Path, photos: Path, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock("learn", model, photos, "--memory", 7) == 2
    assert "can only grow" in capsys.readouterr().err


def test_a_method_without_memory_has_none_to_enlarge(
    oarlock: Command, photos: Path, here: Path, tiny_trunk: Any, capsys: pytest.CaptureFixture
) -> None:
    learner = Learner("slda", trunk=tiny_trunk)
    learner.learn(write_classes(here / "first", "ant", "bee")).save("slda.oar")
    assert oarlock("learn", "slda.oar", photos, "--memory", 500) == 2
    assert "keeps no images" in capsys.readouterr().err
    assert oarlock("learn", "slda.oar", photos, "--epochs", 5) == 2
    assert "no option 'epochs'" in capsys.readouterr().err
    assert oarlock("learn", "slda.oar", photos) == 0


# Refused


def loose_image(folder: Path) -> Path:
    shutil.copy(folder / "crow" / "0.png", folder)
    return folder


def broken_image(folder: Path) -> Path:
    (folder / "duck" / "3.png").write_text("not a picture")
    return folder


def class_without_images(folder: Path) -> Path:
    (folder / "eel").mkdir()
    return folder


def no_classes(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_saying_again_what_a_model_has_is_no_mistake(oarlock: Command, model: Path, photos: Path) -> None:
    again = ["--method", "oar", "--trunk", "tiny", "--seed", 0, "--set", "lr=3e-2"]
    assert oarlock("learn", model, photos, *again, "--protector", "hat", "--detector", "own", *SETTINGS) == 0
    assert package.load(model).tasks_ == [["ant", "bee"], ["crow", "duck"]]


@pytest.mark.parametrize(
    ("mistake", "options", "said"),
    [
        (loose_image, [], "0.png: this image has no class"),
        (broken_image, [], "3.png"),
        (class_without_images, [], "eel: no images in this folder"),
        (no_classes, [], "empty: no class sub-folders"),
        (lambda folder: folder / "nowhere", [], "nowhere: not a folder"),
        (lambda folder: folder, ["--only", "crow,emu"], "no class 'emu'; its classes: 'crow', 'duck'"),
        (lambda folder: write_classes(folder, "bee"), ["--strict"], "'bee' was already learned"),
        (lambda folder: folder, ["--method", "slda"], "keeps its method oar"),
        (lambda folder: folder, ["--trunk", "efficientnet_lite0"], "keeps its trunk tiny: for others"),
        (lambda folder: folder, ["--seed", "7", "--set", "lr=0.77"], "keeps its seed 0, lr 0.03: for others"),
        (lambda folder: folder, ["--detector", "energy"], "keeps its detector own"),
        (lambda folder: folder, ["--set", "magic=1"], "no option 'magic'"),
        (lambda folder: folder, ["--epochs", "-1"], "epochs=-1 makes no sense"),
        (lambda folder: folder, ["--threads", "0"], "threads=0"),
        (lambda folder: folder, ["--device", "abacus"], "device='abacus' cannot be used here"),
    ],
)
def test_a_mistake_is_named_and_leaves_the_model_alone(
    mistake: Any,
    options: list[str],
    said: str,
    oarlock: Command,
    model: Path,
    photos: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    before = untouched(model)
    assert oarlock("learn", model, mistake(photos), *options) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert len(printed.err.splitlines()) == 1
    assert untouched(model) == before
    assert names_in(model.parent) == {"shop.oar"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "magic"], "no method 'magic'"),
        (["--trunk", "oak"], "no trunk 'oak'"),
        (["--set", "memory=5"], "no option 'memory'"),
        (["--set", "epochs=5", "--epochs", "4"], "epochs is given twice"),
        (["--memory", "1"], "--memory 2"),
    ],
)
def test_a_new_model_with_a_mistake_is_not_created(
    options: list[str], said: str, oarlock: Command, photos: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock("learn", "new.oar", photos, *options) == 2
    assert said in capsys.readouterr().err
    assert names_in(here) == {"photos"}


def test_what_is_no_model_is_refused_and_kept(
    oarlock: Command, model: Path, photos: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    (here / "thesis.txt").write_text("two years of work")
    assert oarlock("learn", "thesis.txt", photos) == 2
    assert "thesis.txt is not an Oarlock model" in capsys.readouterr().err
    assert (here / "thesis.txt").read_text() == "two years of work"
    assert oarlock("learn", here, photos) == 2
    assert "is a folder" in capsys.readouterr().err
    assert oarlock("learn", "nowhere/new.oar", photos) == 2
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    assert oarlock("learn", model, photos) == 2
    assert "damaged" in capsys.readouterr().err
    assert model.read_bytes() == content


# Names and links

NAMES = ["two words", "crow\nduck", "größe 🐝", "[bold]red", "unknown", "ant\x1b[31m", "-", "😀" * 20]


def test_any_folder_name_is_a_class(oarlock: Command, here: Path, model: Path, capsys: pytest.CaptureFixture) -> None:
    names = [*NAMES, os.fsdecode(b"caf\xe9")]
    write_classes(here / "odd", *names, count=3)
    assert oarlock("learn", model, "odd", "--memory", 20) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 4
    assert "\x1b" not in printed and "[bold]red" in printed
    learner = package.load(model)
    assert set(learner.tasks_[1]) == set(names)
    assert oarlock("inspect", model) == 0
    assert "two words" in capsys.readouterr().out
    assert oarlock("verify", model) == 0


def test_a_class_called_unknown_is_not_the_answer_unknown(oarlock: Command, here: Path, model: Path) -> None:
    write_classes(here / "odd", "unknown")
    assert oarlock("learn", model, "odd") == 0
    learner = package.load(model)
    images = np.stack([np.asarray(image) for image in learner.calibration.images.permute(0, 2, 3, 1)])
    answers = learner.predict(images, accept=1e-6)  # as only the best known is
    assert None in answers.tolist()
    assert set(answers[[answer is not None for answer in answers]]) <= {"ant", "bee", "unknown"}
    assert "unknown" in learner.predict(images).tolist()


def test_everything_that_is_wrong_with_a_folder_is_said_at_once(
    oarlock: Command, model: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    before = untouched(model)
    folder = write_classes(here / "more", "eel", "fox")
    (folder / "empty").mkdir()
    for name in ("eel/2.png", "eel/5.png", "fox/0.png"):
        (folder / name).write_text("not an image")
    assert oarlock("learn", model, folder) == 2
    problems = capsys.readouterr().err.splitlines()
    assert len(problems) == 4 and all(problem.startswith("oarlock: ") for problem in problems)
    for problem, name in zip(problems, ("empty", "eel/2.png", "eel/5.png", "fox/0.png"), strict=True):
        assert f"{name}: " in problem
    (folder / "empty").rmdir()
    assert oarlock("learn", model, folder) == 2
    assert capsys.readouterr().err.splitlines() == problems[1:]
    assert untouched(model) == before


def test_links_to_images_and_to_class_folders_are_followed_and_circles_are_not(
    oarlock: Command, here: Path, model: Path
) -> None:
    elsewhere = write_classes(here / "elsewhere", "crow", "duck")
    (here / "links" / "eel").mkdir(parents=True)
    for image in (elsewhere / "crow").iterdir():
        (here / "links" / "eel" / image.name).symlink_to(image)
    (here / "links" / "duck").symlink_to(elsewhere / "duck")
    (here / "links" / "eel" / "round").symlink_to(here / "links")
    (here / "links" / "itself").symlink_to(here / "links" / "itself")
    assert oarlock("learn", model, "links") == 2  # it may stand for a class on a disk that is not there
    (here / "links" / "itself").unlink()
    assert oarlock("learn", model, "links") == 0
    assert description_of(model)["tasks"][1]["classes"] == ["duck", "eel"]
    assert description_of(model)["tasks"][1]["images"] == [8, 8]


# Places that cannot be written


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(30, "Read-only file system")])
@pytest.mark.parametrize("writes", range(4))
def test_a_disk_that_fails_leaves_the_old_model_and_learning_goes_on_afterwards(
    writes: int,
    error: OSError,
    oarlock: Command,
    model: Path,
    taught: Path,
    photos: Path,
    day: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Three checkpoints are written, one for each phase; then the model."""
    before, done = model.read_bytes(), 0
    write = files.write_data

    def write_or_fail(file: IO[bytes], tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
        nonlocal done
        done += 1
        if done > writes:
            file.write(b"half of a file")
            file.flush()
            raise error
        write(file, tensors, metadata)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_data", write_or_fail)
        assert oarlock("learn", model, photos) == 2
    said = capsys.readouterr().err
    assert f"cannot be written ({error.strerror})" in said and len(said.splitlines()) == 1
    assert model.read_bytes() == before
    assert names_in(model.parent) - {"shop.oar"} == ({".shop.oar.learning"} if writes else set())
    assert oarlock("learn", model, photos) == 0
    assert ("going on" in capsys.readouterr().out) == (writes > 0)
    package.load(taught).learn(photos).save("by-hand.oar")
    assert_same_tensors(model, Path("by-hand.oar"))


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_learned(
    oarlock: Command, model: Path, photos: Path, capsys: pytest.CaptureFixture
) -> None:
    model_paths(model).lock.mkdir()  # nothing can be written there, not even by an administrator
    assert oarlock("learn", model, photos) == 2
    assert ".shop.oar.lock cannot be written" in capsys.readouterr().err


# One at a time


def test_a_second_process_on_the_same_model_is_refused(
    oarlock: Command,
    model: Path,
    photos: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    others = write_classes(here / "others", "eel")
    (here / "link.oar").symlink_to(model)
    codes: list[int] = []

    def learn_others(*_: object) -> None:
        if not codes:
            codes.extend(oarlock("learn", name, others) for name in (model, "link.oar"))

    with monkeypatch.context() as patched:
        patched.setattr(ProgressBar, "on_phase", learn_others)
        assert oarlock("learn", model, photos) == 0
    assert codes == [2, 2]
    assert capsys.readouterr().err.count("another process is teaching") == 2
    assert classes_of(model) == [["ant", "bee"], ["crow", "duck"]]
    assert oarlock("learn", model, others) == 0
    assert classes_of(model)[2] == ["eel"]
