"""What a bug report should hold."""

import json

import pytest

import oarlock as package
from conftest import Command
from oarlock import doctor


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test on the small trunk, and no longer than it takes."""
    full = doctor.self_test
    monkeypatch.setattr(doctor, "SECONDS", 0.0)
    monkeypatch.setattr(doctor, "self_test", lambda device: full(device, "vit_pico"))


def test_everything_is_said_as_json(quick: None, oarlock: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert oarlock("doctor", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    parts = ["versions", "system", "machine", "devices", "extras", "trunks", "caches", "self-test"]
    assert list(facts) == parts
    assert facts["versions"]["oarlock"] == package.__version__ and facts["versions"]["torch"]
    assert facts["machine"]["threads"] >= 1 and facts["machine"]["instructions"]
    assert facts["devices"][0] == "cpu"
    assert {"onnx", "studio"} <= facts["extras"].keys() and "dev" not in facts["extras"]
    assert {"vit_pico", "efficientnet_lite0"} <= set(facts["trunks"])
    tested = facts["self-test"]
    assert tested["answered_per_second"] > 0 and tested["learned_per_second"] > 0
    assert tested["right"] > 0.6 and tested["same_from_file"]


def test_the_same_is_text_to_paste(quick: None, oarlock: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert oarlock("doctor") == 0
    said = capsys.readouterr().out
    for line in (
        f"  oarlock: {package.__version__}",
        "self-test",
        "  answered per second: ",
        "  same from file: True",
    ):
        assert line in said
    assert "\x1b" not in said


def test_caches_are_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OARLOCK_DATA", "/somewhere/else")
    assert doctor.caches()["data sets"] == "/somewhere/else"


def test_a_failure_is_part_of_the_report(
    monkeypatch: pytest.MonkeyPatch, oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(device: str) -> dict:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(doctor, "self_test", fail)
    assert oarlock("doctor") == 1
    assert "  failed: RuntimeError: no such instruction" in capsys.readouterr().out


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [
        "torch>=2",
        'fastapi>=0.1; extra == "studio"',
        "no-such-package; extra == 'odd'",
        'ruff; extra == "dev"',
    ]
    monkeypatch.setattr(doctor, "requires", lambda name: needed)
    assert doctor.extras() == {"studio": {"fastapi": doctor.installed("fastapi")}, "odd": {"no-such-package": None}}


def test_a_device_that_is_not_there_is_refused(oarlock: Command) -> None:
    assert oarlock("doctor", "--device", "nonsense") == 2
