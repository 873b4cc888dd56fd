"""A score that is not a number is not known, and the model says what is wrong with it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Command, make_task
from oarlock import Learner
from oarlock.errors import OarlockError
from oarlock.methods.slda import Slda
from oarlock.modelfile.unknowns import group_images
from oarlock.nets.trunks import Trunk
from oarlock.prediction import Prediction

IMAGES, LABELS = make_task(["ant", "bee"], 10)
ASTRAY = r"not numbers \(NaN\), for training went astray"


@pytest.fixture
def learner(tiny_trunk: Trunk) -> Learner:
    return Learner("slda", trunk=tiny_trunk).learn(IMAGES, LABELS)


@pytest.fixture
def astray(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> Learner:
    """Every second image's in-distribution score is NaN."""
    whole = Slda.in_distribution

    def broken(method: Slda, encoded: torch.Tensor) -> torch.Tensor:
        scores = whole(method, encoded).clone()
        scores[::2] = torch.nan
        return scores

    monkeypatch.setattr(Slda, "in_distribution", broken)
    return learner


def test_only_what_reaches_the_threshold_is_known() -> None:
    nan, inf = torch.nan, torch.inf
    known = torch.tensor([1.0, nan, inf, -inf, 0.0, 1.0])
    scores = torch.zeros(6, 2)
    scores[5, 1] = nan
    scores[4, 0] = -inf  # a task that was not asked
    answers = Prediction(scores, known)
    assert answers.known(0.0).tolist() == [True, False, True, False, True, False]
    assert answers.known(math.nan).tolist() == [False] * 6
    assert answers.known(None).tolist() == [True, False, True, True, True, False]


def test_images_without_a_score_are_unknown_and_counted(astray: Learner) -> None:
    with pytest.warns(UserWarning, match=f"the scores of 10 of 20 images are {ASTRAY}"):
        answers = astray.predict(IMAGES, accept=1)
    assert answers[::2].tolist() == [None] * 10
    assert answers[1::2].tolist().count(None) < 3


def test_a_line_cannot_be_drawn_by_scores_that_are_no_numbers(astray: Learner) -> None:
    with pytest.warns(UserWarning, match=f"the scores of known images are {ASTRAY}"):
        astray.learn(*make_task(["cow", "dog"], 10))
    with pytest.raises(OarlockError, match=f"the scores of known images are {ASTRAY}"):
        astray.threshold(0.95)


@pytest.mark.parametrize("options", [(), ("--accept", 1)])
def test_the_command_says_so_once_and_writes_json_that_can_be_read(
    options: tuple[object, ...],
    astray: Learner,
    oarlock: Command,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    astray.save(here / "a.oar")
    (here / "in").mkdir()
    for number in range(4):
        Image.fromarray(IMAGES[number]).save(here / "in" / f"{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.filters", [])  # those of a program, not of these tests
        assert oarlock("predict", here / "a.oar", "in", "--json", *options) == 0
    out, err = capsys.readouterr()
    answers = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert [answer["unknown"] for answer in answers] == [True, False, True, False]
    assert [answer["score"] is None for answer in answers] == [True, False, True, False]
    assert err.count("oarlock: note: the scores of 2 of 4 images are not numbers (NaN)") == 1


def test_features_that_are_no_numbers_are_not_grouped(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner.trunk, "forward", lambda images: torch.full((len(images), 24), np.nan))
    with pytest.raises(OarlockError, match="are not numbers"):
        group_images(learner, IMAGES, groups=2)


def test_an_infinite_score_is_no_answer_either() -> None:
    scores = torch.tensor([[0.0, 1.0], [0.0, torch.inf], [-torch.inf, 0.0]])
    assert Prediction(scores, torch.zeros(3)).are_numbers().tolist() == [True, False, True]
