"""Detectors side by side on a trained model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from conftest import Command, make_images, make_task
from contract.conftest import small_options
from experiments.test_run import OPTIONS, make_archive
from oarlock import Learner, load
from oarlock.experiments.config import RunConfig
from oarlock.experiments.detection import usable
from oarlock.experiments.run import run
from oarlock.nets.trunks import Trunk

KNOWN = make_task(["ant", "bee", "cow"], 6, seed=1)


@pytest.fixture(scope="module")
def model(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.oar"
    learner = Learner("oar", trunk=tiny_trunk, memory=12, **small_options("oar"), calibration=0.3)
    learner.learn(*make_task(["ant", "bee"])).learn(*make_task(["cow"])).save(path)
    return path


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strangers")
    for number, image in enumerate(make_images(9, 7)):
        Image.fromarray(image).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("known") / "known.npz"
    images, labels = KNOWN
    np.savez(path, train_x=images, train_y=labels, test_x=images, test_y=labels)
    return path


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_detector_s_figures_are_those_of_a_model_that_has_it(
    oarlock: Command, model: Path, strangers: Path, known: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("detect", model, "--unknown", strangers, "--data", known, "--json") == 0
    found = {one["detector"]: one for one in lines(capsys)}
    learner = load(model)
    assert list(found) == sorted(found, key=lambda name: (-found[name]["auroc"], name))
    assert sorted(found) == usable(learner.method.at_hand()) and len(found) == 20
    for name in ("own", "vim", "energy", "gen", "nearest"):
        other = Learner(
            "oar", trunk=learner.trunk, memory=12, **{**small_options("oar"), "detector": name}, calibration=0.3
        )
        other.learn(*make_task(["ant", "bee"])).learn(*make_task(["cow"]))
        scores = other.in_distribution(KNOWN[0]), other.in_distribution(make_images(9, 7))
        truth = np.repeat([1, 0], [len(one) for one in scores])
        assert found[name]["auroc"] == pytest.approx(roc_auc_score(truth, np.concatenate(scores)), abs=1e-4)
        assert found[name]["accepted"] == pytest.approx(float(np.mean(scores[0] >= other.threshold(0.95))), abs=1e-4)


def test_a_plain_folder_of_known_images_is_tested_as_a_whole(
    oarlock: Command, model: Path, strangers: Path, known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (image, label) in enumerate(zip(*KNOWN, strict=True)):
        (tmp_path / "shop" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "shop" / label / f"{number}.png")
    assert oarlock("detect", model, "--unknown", strangers, "--data", tmp_path / "shop") == 0
    assert f"{len(KNOWN[0])} images of its classes, 7 of none" in capsys.readouterr().out
    found = []
    for data in (tmp_path / "shop", known):
        assert oarlock("detect", model, "--unknown", strangers, "--data", data, "--json") == 0
        found.append({one["detector"]: one["auroc"] for one in lines(capsys)})
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_without_other_images_the_known_are_those_the_model_kept(
    oarlock: Command, model: Path, strangers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("detect", model, "--unknown", strangers, "--out", tmp_path / "plots") == 0
    shown = capsys.readouterr().out
    assert f"{len(load(model).calibration)} images kept for thresholds, 7 of none" in shown
    assert "own (the model's)" in shown
    assert (tmp_path / "plots" / "detectors.svg").read_text().count("AUROC") == 20
    Image.open(tmp_path / "plots" / "detectors.png").verify()


def test_a_run_has_its_own_images_and_takes_the_plot(
    oarlock: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(RunConfig(str(make_archive(tmp_path / "four.npz")), memory=8, threads=1, options=OPTIONS), tmp_path / "run")
    measured = json.loads((tmp_path / "run" / "result.json").read_text())["ood_auroc"]
    assert oarlock("detect", tmp_path / "run", "--json") == 0
    found = {one["detector"]: one for one in lines(capsys)}
    assert found["own"]["auroc"] == pytest.approx(measured, abs=1e-4)
    assert (tmp_path / "run" / "detectors.svg").exists()


def test_mistakes_are_one_line(
    oarlock: Command,
    model: Path,
    strangers: Path,
    tiny_trunk: Trunk,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert oarlock("detect", model) == 2
    assert "say where some are with --unknown" in capsys.readouterr().err
    bare = Learner("oar", trunk=tiny_trunk, memory=12, **small_options("oar"), calibration=0.0)
    bare.learn(*make_task(["ant", "bee"])).save(tmp_path / "bare.oar")
    assert oarlock("detect", tmp_path / "bare.oar", "--unknown", strangers) == 2
    assert "with --data" in capsys.readouterr().err
