"""`oarlock verify`: yes, no, and what cannot be promised."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import oarlock as package
from conftest import Command, make_task
from oarlock import Learner
from oarlock.files import read_tensors, write_tensors
from oarlock.nets.trunks import Trunk


@pytest.fixture
def older(oarlock: Command, model: Path, photos: Path) -> Path:
    """The model two tasks later, with its memory full of other classes."""
    assert oarlock("learn", model, photos) == 0
    package.load(model).learn(*make_task(["eel", "fox"], 8)).save(model)
    return model


def rewrite(model: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change a model file and give it the checksum that fits: what no damage could do."""
    tensors, description = read_tensors(model, "model")
    change(tensors, description)
    write_tensors(model, "model", tensors, description)


def test_what_was_promised_holds_after_later_tasks(
    oarlock: Command, older: Path, capsys: pytest.CaptureFixture
) -> None:
    capsys.readouterr()
    assert oarlock("verify", older) == 0
    printed = capsys.readouterr().out
    assert printed.count("yes") == 3
    assert printed.endswith("every promise holds\n")


def test_json_has_every_task(oarlock: Command, older: Path, last_json: Callable[[], dict[str, Any]]) -> None:
    assert oarlock("verify", older, "--json") == 0
    told = last_json()
    assert (told["holds"], told["method"]) == (True, "oar")
    assert [task["classes"] for task in told["tasks"]] == [["ant", "bee"], ["crow", "duck"], ["eel", "fox"]]
    for task in told["tasks"]:
        assert task["identical"] and task["same_machine"] and task["holds"]
        assert (task["changed"], task["difference"]) == ([], 0)
        assert task["recorded_on"]["threads"] == torch.get_num_threads()


def test_a_changed_weight_is_told_by_task_and_name(
    oarlock: Command, older: Path, capsys: pytest.CaptureFixture
) -> None:
    def change(tensors: dict[str, Any], description: dict[str, Any]) -> None:
        tensors["method.wp_heads.1.weight"][0, 0] += 0.5

    rewrite(older, change)
    capsys.readouterr()
    assert oarlock("verify", older) == 1
    printed = capsys.readouterr().out
    assert "task 2: wp_logits changed" in printed
    assert (printed.count(" yes "), printed.count(" no ")) == (2, 1)
    assert printed.endswith("a promise is broken\n")
    assert oarlock("verify", older, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert [task["holds"] for task in told["tasks"]] == [True, False, True]


@pytest.mark.parametrize(("shift", "code", "word"), [(1e-6, 0, "within"), (0.1, 1, "beyond")])
def test_on_another_machine_the_difference_is_told(
    shift: float, code: int, word: str, oarlock: Command, older: Path, capsys: pytest.CaptureFixture
) -> None:
    def change(tensors: dict[str, Any], description: dict[str, Any]) -> None:
        for task in description["tasks"]:
            task["promise"]["machine"]["cpu"] = "Abacus 2"
        tensors["tasks.0.answers.features"] += shift * tensors["tasks.0.answers.features"].abs().max()

    rewrite(older, change)
    capsys.readouterr()
    assert oarlock("verify", older) == code
    printed = capsys.readouterr().out
    assert "task 1: recorded on Abacus 2" in printed and f"features {word} that" in printed
    assert printed.count(" yes ") == 2


def test_a_method_that_promises_nothing_says_so(
    oarlock: Command, tiny_trunk: Trunk, capsys: pytest.CaptureFixture
) -> None:
    Learner("slda", trunk=tiny_trunk).learn(*make_task(["ant", "bee"])).save("slda.oar")
    assert oarlock("verify", "slda.oar") == 0
    assert "slda makes no promise" in capsys.readouterr().out
    assert oarlock("verify", "slda.oar", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == []


def test_a_damaged_or_missing_file_is_refused(oarlock: Command, model: Path, capsys: pytest.CaptureFixture) -> None:
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    for command in ("verify", "inspect"):
        assert oarlock(command, model) == 2
        assert "damaged" in capsys.readouterr().err
        assert oarlock(command, "nowhere.oar") == 2
        assert "no file nowhere.oar" in capsys.readouterr().err
