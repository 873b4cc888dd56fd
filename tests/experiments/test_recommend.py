"""What suits somebody's photographs is found on photos that were held out of learning."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Command, make_images
from oarlock import Learner, OarlockError
from oarlock.experiments import recommend
from oarlock.experiments.recommend import Candidate, Split, Trial, candidates, ranked

PICO = ["--trunk", "vit_pico", "--threads", 1]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, name in enumerate(("ant", "bee", "cow", "dog", "elk", "few")):
        (folder / name).mkdir()
        for index, image in enumerate(make_images(number, 3 if name == "few" else 8)):
            Image.fromarray(image).save(folder / name / f"{index}.png")
    return folder


def test_no_photo_is_on_two_sides_and_every_split_of_a_seed_is_the_same(photos: Path) -> None:
    split = Split.of(photos, seed=3)
    learned = [path for task in split.tasks for path in task.files]
    sides = [set(learned), set(split.held_out.files), set(split.left_out)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 5 * 8  # and a class of three is passed over
    assert {path.parent.name for path in learned} == set(split.held_out.labels)
    assert not {path.parent.name for path in split.left_out} & set(split.held_out.labels)
    assert [path.parent.name for path in split.held_out.files] == split.held_out.labels
    assert split == Split.of(photos, seed=3) != Split.of(photos, seed=4)


def test_a_trial_says_what_a_learner_of_the_same_photos_says(photos: Path) -> None:
    split = Split.of(photos)
    (trial,) = recommend.recommend(split, [Candidate("vit_pico", "slda")], seconds=0)
    learner = Learner("slda", trunk="vit_pico")
    for task in split.tasks:
        learner.learn(task.files, task.labels)
    assert trial.accuracy == learner.score(split.held_out.files, split.held_out.labels)
    assert trial.auroc is not None and trial.seconds > 0 and trial.milliseconds > 0


def test_time_that_is_over_ends_the_trials_but_the_first_is_tried(photos: Path) -> None:
    wanted = [Candidate("vit_pico", "slda"), Candidate("vit_pico", "finetune")]
    assert [trial.candidate for trial in recommend.recommend(Split.of(photos), wanted, seconds=0)] == wanted[:1]


def test_the_likeliest_of_both_come_first_and_most_right_answers_win() -> None:
    wanted = candidates(["a", "b"], ["oar", "slda"])
    assert (
        wanted[0] == ("a", "oar") and set(wanted[1:3]) == {("a", "slda"), ("b", "oar")} and wanted[3] == ("b", "slda")
    )
    assert {candidate.trunk for candidate in candidates()} >= {"efficientnet_lite0", "vit_pico"}
    trials = [Trial(Candidate("a", str(n)), right, auroc, "own", 1, 1) for n, (right, auroc) in enumerate(
        [(0.5, 0.9), (0.7, None), (0.7, 0.6)])]  # fmt: skip
    assert [one.candidate.method for one in ranked(trials)] == ["2", "1", "0"]


def test_what_is_recommended_can_be_done(
    oarlock: Command,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert oarlock("recommend", photos, *PICO, "--method", "slda", "--method", "finetune") == 0
    shown = capsys.readouterr().out
    assert "Tried: 2 of 2 candidates." in shown and "standard error" in shown
    command = shlex.split(shown.splitlines()[-1].removeprefix("try it: "))
    monkeypatch.chdir(tmp_path)
    assert oarlock(*command[1:]) == 0
    assert (tmp_path / "model.oar").exists()


def test_lines_of_json_have_the_best_first(
    oarlock: Command, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("recommend", photos, *PICO, "--method", "slda", "--method", "finetune", "--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found[0]["accuracy"] >= found[1]["accuracy"] and {one["method"] for one in found} == {"slda", "finetune"}
    assert all(np.isfinite(one["auroc"]) for one in found)


def test_too_few_classes_are_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(photos / "ant")
    (tmp_path / "few").symlink_to(photos / "few")
    with pytest.raises(OarlockError, match="1 classes of at least 4 images"):
        Split.of(tmp_path)
