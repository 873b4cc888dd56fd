"""Files of earlier formats, written by the code of then and kept in `fixtures/format-…`: models of a tiny trunk on
three tasks with what they answered (of format 3 also one whose trunk is tuned), a finished run, and one that was
stopped in the middle of its second task; of format 2 also a fourth task of `row.oar`, half learned."""

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
from modelfile.conftest import write_classes
from oarlock import Learner, OarlockError, load
from oarlock.experiments import series
from oarlock.experiments.config import saved_config
from oarlock.experiments.plan import Plan
from oarlock.experiments.result import RunResult, read_run_files
from oarlock.experiments.run import NoDisplay, run
from oarlock.files import fingerprint, read_tensors
from oarlock.modelfile.inspect import verify
from oarlock.modelfile.paths import model_paths
from oarlock.upgrades import FORMAT, upgrade_method, upgrade_options

FIXTURES = Path(__file__).parent / "fixtures"
OLD = FIXTURES / "format-1"
BEFORE_OAR = ("format-1", "format-2")  # whose `row` is today's `oar`
EXPECTED = {
    f"{old.name}/{name}": answers
    for old in sorted(FIXTURES.glob("format-*"))
    for name, answers in json.loads((old / "expected.json").read_text(encoding="utf-8")).items()
}
IMAGES, _ = make_task(["ant", "bee", "cow", "dog", "elk"], 4, seed=1)

every_model = pytest.mark.parametrize("name", sorted(EXPECTED))
every_format = pytest.mark.parametrize("old", sorted(FIXTURES.glob("format-*")), ids=lambda path: path.name)


@every_model
def test_an_old_model_answers_what_it_answered(name: str) -> None:
    learner, expected = oarlock.load(FIXTURES / f"{name}.oar"), EXPECTED[name]
    # Written on one processor and read on any: rounding differs, answers do not.
    np.testing.assert_allclose(learner.predict_proba(IMAGES), expected["probabilities"], atol=1e-4)
    np.testing.assert_allclose(learner.in_distribution(IMAGES), expected["in_distribution"], rtol=1e-3, atol=1e-3)
    assert learner.predict(IMAGES).tolist() == expected["labels"]
    assert learner.predict(IMAGES, accept=0.9).tolist() == expected["accepted"]


@every_model
def test_an_old_model_goes_on_and_is_written_as_a_new_one(name: str, tmp_path: Path) -> None:
    learner = oarlock.load(FIXTURES / f"{name}.oar")
    before = learner.predict_proba(IMAGES)
    learner.save(tmp_path / "new.oar")
    assert read_tensors(tmp_path / "new.oar", "model")[1]["format"] == FORMAT
    again = oarlock.load(tmp_path / "new.oar")
    assert np.array_equal(again.predict_proba(IMAGES), before)
    again.learn(*make_task(["fox"]))
    assert again.tasks_ == [["ant", "bee"], ["cow"], ["dog", "elk"], ["fox"]]


@pytest.mark.parametrize(
    ("name", "today"),
    [
        *[("format-1/row", "oar"), ("format-1/row-paper", "row"), ("format-1/row-wp", "row-wp")],
        *[("format-2/row", "oar"), ("format-2/row-paper", "row"), ("format-2/row-plain", "row")],
    ],
)
def test_a_model_has_the_name_that_tells_the_truth(name: str, today: str) -> None:
    """What was called `row` had terms that the paper's method has not; `row-plain` had them set to nothing."""
    assert oarlock.load(FIXTURES / f"{name}.oar").method.name == today


PROMISING = [f"format-1/{name}" for name in ("row", "row-paper", "tpl", "hat")]


PROMISING += ["format-2/row", "format-2/row-paper", "format-2/row-plain", "format-4/row", "format-4/oar-open"]
PROMISING += ["format-5/row", "format-5/oar", "format-5/oar-open", "format-6/oar", "format-6/oar-open"]


@pytest.mark.parametrize("name", PROMISING)
def test_promises_of_an_old_model_hold(name: str) -> None:
    found = verify(FIXTURES / f"{name}.oar")
    assert len(found.tasks) == 3 and found.holds


@every_format
def test_an_old_run_is_reported_and_compared(
    old: Path, here: Path, oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(old / "run", "run")
    files = read_run_files(Path("run"))
    assert files.certificate is not None
    assert files.result.method == files.certificate.method == saved_config(Path("run")).method == "oar"
    without_wp = "oar-wp" if old.name in BEFORE_OAR else "row-wp"
    assert set(files.result.variants) == {"row", without_wp, "row-wp-md"}
    assert files.result.config["detector"] == "own" and files.result.config["protector"] == "hat"
    assert oarlock("report", "run") == 0 and oarlock("compare", "run", "--json") == 0
    assert "row-wp-md" in capsys.readouterr().out


class Quiet(NoDisplay):
    def on_method(self, name: str, number: int, count: int) -> None:
        pass


def stopped(old: Path, out: Path) -> Path:
    """The stopped run, with the images that it learns from."""
    shutil.copytree(old / "stopped-run", out)
    shutil.copy(OLD / "four.npz", "four.npz")
    return out


@every_format
def test_an_old_run_goes_on_where_it_was_stopped(old: Path, here: Path) -> None:
    """It ends as the uninterrupted one of the old version did, to rounding."""
    out = stopped(old, Path("stopped-run"))
    measured = read_tensors(out / "checkpoint" / "state.safetensors", "checkpoint")[1]["facts"]["record"]
    result, whole = run(saved_config(out), out, resume=True), RunResult.read(old / "run")
    assert result.accuracy[0] == measured["accuracy"][0]
    assert (result.method, result.tasks, result.config) == (whole.method, whole.tasks, whole.config)
    today = set() if old.name in BEFORE_OAR else {"row-wp"}  # then another one
    assert set(result.variants) - today == {"row", "row-wp-md"}
    assert result.unchanged is not None and whole.unchanged is not None
    assert result.unchanged["compared"] <= whole.unchanged["compared"]  # covariances were whole until format 4
    np.testing.assert_allclose([result.aca, result.ood_auroc], [whole.aca, whole.ood_auroc], rtol=0.05)
    if old != OLD:
        return  # no model of the whole run is kept
    now, then = (read_tensors(place / "model.oar", "model")[0] for place in (out, OLD / "run"))
    assert {name for name in now if not name.startswith("trunk.")} == then.keys()  # whose trunk was left out
    for part in ("method.protector.layers.", "method.wp_heads."):
        names = [name for name in now if name.startswith(part)]
        assert names
        for name in names:
            torch.testing.assert_close(now[name], then[name], rtol=1e-2, atol=1e-3)


@every_format
def test_old_runs_that_were_started_together_go_on(old: Path, here: Path) -> None:
    stopped(old, Path("both", "row"))
    settings = json.loads(Path("both", "row", "config.json").read_text())
    runs = {"methods": [settings.pop("method")], "settings": settings}
    Path("both", "runs.json").write_text(json.dumps(runs))
    configs = series.saved_configs(Path("both"))
    done = series.run_several(configs, Path("both"), resume=True, display=Quiet(), report=lambda directory: None)
    assert done == [Path("both", "oar")] and not Path("both", "row").exists()
    assert RunResult.read(done[0]).accuracy[0] == RunResult.read(old / "run").accuracy[0]
    assert [config.method for config in series.saved_configs(Path("both"))] == ["oar"]


def test_runs_of_the_paper_s_protocols_had_the_paper_s_settings(tmp_path: Path) -> None:
    for protocol, today in (("c10-5t-mini", ["oar", "row", "slda"]), ("c10-5t", ["row", "slda"])):
        runs = {"methods": ["row", "row-paper", "slda"], "settings": {"source": "cifar10", "protocol": protocol}}
        (tmp_path / "runs.json").write_text(json.dumps(runs))
        assert [config.method for config in series.saved_configs(tmp_path)] == today


def test_learning_that_an_old_version_began_goes_on(
    here: Path, oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    old, model = FIXTURES / "format-2", here / "shop.oar"
    write_classes(here / "photos", "crow", "duck")
    shutil.copy(old / "row.oar", model)
    shutil.copy(old / "learning.safetensors", model_paths(model).checkpoint)
    assert oarlock("learn", "shop.oar", "photos", "--threads", 1) == 0
    assert "going on where learning was interrupted" in capsys.readouterr().out
    learner = load(model)
    assert (learner.method.name, learner.tasks_[-1]) == ("oar", ["crow", "duck"])


def test_an_old_grid_has_todays_names(tmp_path: Path) -> None:
    shares = {"row": {"orders": 2}, "row-paper": {"orders": 1}, "slda": {"orders": 1}}
    old = {name: {"settings": {"protocol": name}, "methods": shares} for name in ("c10-5t-mini", "c10-5t")}
    (tmp_path / "bench.json").write_text(json.dumps(old))
    plan = Plan.load(tmp_path)
    assert plan.orders("c10-5t-mini") == {"oar": 2, "row": 1, "slda": 1}
    assert plan.orders("c10-5t") == {"row": 2, "slda": 1}
    plan.save(tmp_path)
    assert Plan.load(tmp_path) == plan


def test_options_have_todays_names() -> None:
    assert upgrade_method("row-paper", {"detector": "energy"}) == ("row", {"gamma": 1.0, "detector": "energy"})
    assert upgrade_options("row", {"rejection": "energy"}) == {"detector": "energy"}
    assert upgrade_options("row-wp", {"rejection": "energy"}) == {"detector": "own"}  # which did not look at it
    assert Learner("row", **upgrade_options("row", {"rejection": "claim"})).method.config.detector == "own"


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
