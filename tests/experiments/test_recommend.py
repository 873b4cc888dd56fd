"""What suits somebody's photographs is found on photos that were held out of learning."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Command, make_images
from oarlock import Learner, OarlockError
from oarlock.experiments import recommend
from oarlock.experiments.recommend import Candidate, Split, Trial, candidates, ranked
from oarlock.methods import methods

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
    wanted = candidates(["efficientnet_lite0", "vit_pico"], ["oar", "slda"])
    assert wanted[0] == ("efficientnet_lite0", "oar") and wanted[3] == ("vit_pico", "slda")
    assert set(wanted[1:3]) == {("efficientnet_lite0", "slda"), ("vit_pico", "oar")}
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


def test_of_a_folder_that_is_split_test_photos_are_never_looked_at(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "train").symlink_to(photos)
    (tmp_path / "test").symlink_to(photos)
    split = Split.of(tmp_path)
    looked_at = [path for task in split.tasks for path in task.files] + split.held_out.files + split.left_out
    assert {path.parents[1] for path in looked_at} == {tmp_path / "train"}
    assert str(tmp_path / "train") in Trial(Candidate("a", "b"), 0.5, None, "own", 1, 1).command(tmp_path)


def test_what_trains_nothing_is_always_tried_and_bounds_are_not() -> None:
    names = recommend.suggested()
    assert names[0] == "oar" and {"slda", "first", "ease", "row"} <= set(names)
    assert not {"joint", "finetune", "row-wp", "agem"} & set(names) and len(names) == len(set(names))
    trained = [name for name, method in methods.all().items() if hasattr(method.Config, "epochs")]
    assert max(names.index(name) for name in names if name not in trained) < names.index("row")


def test_a_candidate_that_cannot_be_tried_does_not_end_the_others(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(self: Learner, *task: object, **options: object) -> Learner:
        if self.method.name == "finetune":
            raise OarlockError("training diverged")
        return honest(self, *task, **options)

    honest = Learner.learn
    monkeypatch.setattr(Learner, "learn", learn)
    wanted = [Candidate("vit_pico", "finetune"), Candidate("vit_pico", "slda")]
    with pytest.warns(UserWarning, match="finetune on vit_pico: training diverged"):
        tried = list(recommend.recommend(Split.of(photos), wanted, seconds=0))
    assert [trial.candidate.method for trial in tried] == ["slda"]
    with pytest.warns(UserWarning), pytest.raises(OarlockError, match="diverged"):
        list(recommend.recommend(Split.of(photos), wanted[:1], seconds=0))


def test_photos_that_cannot_be_read_are_told_once_and_no_candidate_is_tried_on_them_again(
    oarlock: Command, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ant", "bee", "cow"):
        shutil.copytree(photos / name, tmp_path / name)
        (tmp_path / name / "damaged.jpg").write_text("nothing")
    assert oarlock("recommend", tmp_path, *PICO, "--method", "ncm", "--method", "slda") == 2
    told = capsys.readouterr()
    assert [told.err.count(f"{name}/damaged.jpg") for name in ("ant", "bee", "cow")] == [1, 1, 1]
    assert "slda" not in told.out + told.err


def test_mistakes_are_one_line(
    oarlock: Command, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        ((tmp_path / "nowhere",), "not a folder"),
        ((photos, "--trunk", "nonesuch"), "there is no trunk 'nonesuch'"),
        ((photos, "--method", "nonesuch"), "there is no method 'nonesuch'"),
    ):
        assert oarlock("recommend", *arguments) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


def test_ctrl_c_prints_what_was_tried_until_then(
    oarlock: Command, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(self: Learner, *task: object, **options: object) -> Learner:
        if self.method.name == "finetune":
            raise KeyboardInterrupt
        return honest(self, *task, **options)

    honest = Learner.learn
    monkeypatch.setattr(Learner, "learn", learn)
    assert oarlock("recommend", photos, *PICO, "--method", "slda", "--method", "finetune") == 0
    assert "Tried: 1 of 2 candidates." in capsys.readouterr().out
    assert oarlock("recommend", photos, *PICO, "--method", "finetune") == 130
    assert "Tried" not in capsys.readouterr().out


def test_too_few_classes_are_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(photos / "ant")
    (tmp_path / "few").symlink_to(photos / "few")
    with pytest.raises(OarlockError, match=r"two classes of at least 4 images .*; there is one"):
        Split.of(tmp_path)
