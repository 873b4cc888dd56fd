"""What there is, listed; and what was chosen from the lists, put to use."""

import json
from pathlib import Path

import pytest

from conftest import Command
from experiments.test_run import make_archive

QUICK = ["--memory", 8, "--threads", 1, "--set", "adapt_last=1"]


@pytest.mark.parametrize(
    ("what", "some"), [("methods", {"row", "slda"}), ("detectors", {"own", "energy"}), ("protectors", {"hat"})]
)
def test_a_list_is_a_table_or_lines_of_json(
    what: str, some: set[str], oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock(what) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in some)
    assert oarlock(what, "--json") == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert some <= {one[what.removesuffix("s")] for one in listed}
    assert all(one["what"] for one in listed)


def test_a_detector_says_which_methods_can_use_it(oarlock: Command, capsys: pytest.CaptureFixture[str]) -> None:
    oarlock("detectors", "--json")
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    able = {one["detector"]: one["methods"].split(", ") for one in listed}
    assert {"row", "slda", "finetune"} <= set(able["own"])
    assert "row" in able["softmax"] and "slda" not in able["softmax"]


def test_what_is_put_into_the_sockets_is_in_the_configuration(here: Path, oarlock: Command) -> None:
    archive = make_archive(here / "four.npz")
    chosen = ["--protector", "hat", "--detector", "distance"]
    epochs = [part for name in ("epochs", "wp_epochs", "ood_epochs") for part in ("--set", f"{name}=1")]
    assert oarlock("run", archive, *QUICK, *epochs, *chosen, "--out", "out") == 0
    config = json.loads(Path("out/result.json").read_text())["config"]
    assert (config["protector"], config["detector"]) == ("hat", "distance")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--detector", "nose"], "there is no detector 'nose'; known detectors: distance, energy"),
        (["--protector", "moat"], "there is no protector 'moat'; known protectors: hat"),
        (["--method", "slda", "--detector", "softmax"], "which slda does not have; it can use distance, energy"),
        (["--method", "finetune", "--protector", "hat"], "finetune has no option 'protector'"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: list[str], said: str, here: Path, oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = make_archive(here / "four.npz")
    assert oarlock("run", archive, "--memory", 8, *options, "--out", "out") == 2
    assert said in capsys.readouterr().err and not Path("out").exists()
