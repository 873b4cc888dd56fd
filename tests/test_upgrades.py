"""Files of an earlier format, written by version 0.1.0 and kept in `fixtures/format-1`: five models of a tiny trunk
on three tasks with what they answered, a finished run, and one that was stopped in the middle of its second task."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

import oarlock
from conftest import Command, make_task
from oarlock import Learner, OarlockError
from oarlock.experiments.result import RunResult, read_run_files
from oarlock.experiments.run import run, saved_config
from oarlock.files import fingerprint, read_tensors
from oarlock.modelfile.inspect import verify
from oarlock.upgrades import FORMAT, upgrade_options

OLD = Path(__file__).parent / "fixtures" / "format-1"
EXPECTED = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))
IMAGES, _ = make_task(["ant", "bee", "cow", "dog", "elk"], 4, seed=1)

every_model = pytest.mark.parametrize("name", sorted(EXPECTED))


@every_model
def test_an_old_model_answers_what_it_answered(name: str) -> None:
    learner, expected = oarlock.load(OLD / f"{name}.oar"), EXPECTED[name]
    # Written on one processor and read on any: rounding differs, answers do not.
    np.testing.assert_allclose(learner.predict_proba(IMAGES), expected["probabilities"], atol=1e-4)
    np.testing.assert_allclose(learner.in_distribution(IMAGES), expected["in_distribution"], rtol=1e-3, atol=1e-3)
    assert learner.predict(IMAGES).tolist() == expected["labels"]
    assert learner.predict(IMAGES, accept=0.9).tolist() == expected["accepted"]


@every_model
def test_an_old_model_goes_on_and_is_written_as_a_new_one(name: str, tmp_path: Path) -> None:
    learner = oarlock.load(OLD / f"{name}.oar")
    before = learner.predict_proba(IMAGES)
    learner.save(tmp_path / "new.oar")
    assert read_tensors(tmp_path / "new.oar", "model")[1]["format"] == FORMAT
    again = oarlock.load(tmp_path / "new.oar")
    assert np.array_equal(again.predict_proba(IMAGES), before)
    again.learn(*make_task(["fox"]))
    assert again.tasks_ == [["ant", "bee"], ["cow"], ["dog", "elk"], ["fox"]]


@pytest.mark.parametrize("name", ["row", "tpl", "hat"])
def test_promises_of_an_old_model_hold(name: str) -> None:
    found = verify(OLD / f"{name}.oar")
    assert len(found.tasks) == 3 and found.holds


def test_an_old_run_is_reported_and_compared(
    here: Path, oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(OLD / "run", "run")
    files = read_run_files(Path("run"))
    assert set(files.result.variants) == {"row-paper", "row-wp", "row-wp-md"}
    assert files.result.config["detector"] == "own" and files.result.config["protector"] == "hat"
    assert oarlock("report", "run") == 0 and oarlock("compare", "run", "--json") == 0
    assert "row-wp-md" in capsys.readouterr().out


def test_an_old_run_goes_on_where_it_was_stopped(here: Path) -> None:
    """It ends as the uninterrupted one of the old version did, to rounding."""
    for name in ("stopped-run", "four.npz"):
        (shutil.copytree if (OLD / name).is_dir() else shutil.copy)(OLD / name, name)
    out = Path("stopped-run")
    measured = read_tensors(out / "checkpoint" / "state.safetensors", "checkpoint")[1]["facts"]["record"]
    result, whole = run(saved_config(out), out, resume=True), RunResult.read(OLD / "run")
    assert result.accuracy[0] == measured["accuracy"][0]
    assert (result.method, result.tasks, result.config) == (whole.method, whole.tasks, whole.config)
    assert result.unchanged is not None and whole.unchanged is not None
    assert result.unchanged["compared"] == whole.unchanged["compared"]
    now, then = (read_tensors(place / "model.oar", "model")[0] for place in (out, OLD / "run"))
    assert {name for name in now if not name.startswith("trunk.")} == then.keys()  # whose trunk was left out
    for part in ("method.protector.layers.", "method.wp_heads."):
        names = [name for name in now if name.startswith(part)]
        assert names
        for name in names:
            torch.testing.assert_close(now[name], then[name], rtol=1e-2, atol=1e-3)


def test_options_have_todays_names() -> None:
    assert upgrade_options({"rejection": "energy"}) == {"detector": "energy"}
    assert Learner("row", **upgrade_options({"rejection": "claim"})).method.config.detector == "own"


# What is to come


def newer(file: Path, out: Path) -> Path:
    """A file whose checksum fits and whose format is not known yet."""
    with safetensors.safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        description = json.loads(opened.metadata()["oarlock"])
    description |= {"format": FORMAT + 1}
    del description["sha256"]
    description["sha256"] = fingerprint(tensors, json.dumps(description))
    safetensors.torch.save_file(tensors, out, {"oarlock": json.dumps(description)})
    return out


def test_a_file_of_a_newer_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OarlockError, match=r"m\.oar was written by a newer Oarlock; please upgrade"):
        oarlock.load(newer(OLD / "row.oar", tmp_path / "m.oar"))


def test_a_result_of_a_newer_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    content = asdict(RunResult.read(OLD / "run")) | {"format": FORMAT + 1}
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(OarlockError, match="was written by a newer Oarlock; please upgrade"):
        RunResult.read(tmp_path)
