"""`oarlock inspect`: what it says is what is there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import oarlock as package
from conftest import Command, make_task
from modelfile.conftest import write_classes
from oarlock import Learner
from oarlock.nets.trunks import Trunk

LastJson = Callable[[], dict[str, Any]]


@pytest.fixture
def older(oarlock: Command, model: Path, photos: Path, day: None) -> Path:
    assert oarlock("learn", model, write_classes(photos, "eel", count=5)) == 0
    return model


def test_every_class_is_listed_with_its_task_date_and_images(
    oarlock: Command, older: Path, last_json: LastJson
) -> None:
    assert oarlock("inspect", older, "--json") == 0
    facts = last_json()
    assert [task["task"] for task in facts["tasks"]] == [1, 2]
    assert [task["learned"] for task in facts["tasks"]] == [None, "2024-02-29T12:30:00+00:00"]
    seen = {row["label"]: row["images"] for task in facts["tasks"] for row in task["classes"]}
    assert seen == {"ant": 8, "bee": 8, "crow": 8, "duck": 8, "eel": 5}


def test_memory_capacity_and_entries_are_the_learners(oarlock: Command, older: Path, last_json: LastJson) -> None:
    assert oarlock("inspect", older, "--json") == 0
    facts, learner = last_json(), package.load(older)
    rows = [row for task in facts["tasks"] for row in task["classes"]]
    assert [row["memory"] for row in rows] == [1] * 5  # ⌊8 / 5⌋ each
    assert [row["calibration"] for row in rows] == [1] * 5
    assert facts["memory"] == {"room": 8, "images": 5}
    assert facts["free_capacity"] == learner.method.capacity().free
    assert facts["wings"] == [0] * len(learner.method.protector.layers)
    assert facts["entries"] == learner.entries()
    assert facts["trunk"] == {"name": "tiny", "source": "random", "embedded": True, "overlap": "no"}


def test_parts_add_up_to_the_file(oarlock: Command, older: Path, last_json: LastJson) -> None:
    assert oarlock("inspect", older, "--json") == 0
    facts, learner = last_json(), package.load(older)
    parts = facts["bytes_by_part"]
    assert sum(parts.values()) == facts["bytes"] == older.stat().st_size
    assert all(size > 0 for size in parts.values())
    assert parts["memory"] == sum(
        value.numel() * value.element_size() for value in learner.method.memory.state_dict().values()
    )


def test_the_terminal_shows_the_same(oarlock: Command, older: Path, capsys: pytest.CaptureFixture) -> None:
    capsys.readouterr()
    assert oarlock("inspect", older) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if "crow" in line).split() == ["2", "2024-02-29", "crow", "8", "1", "1"]
    assert next(line for line in lines if "ant" in line).split() == ["1", "–", "ant", "8", "1", "1"]
    text = "\n".join(lines)
    for part in (
        "tiny (in the file)",
        "5 images, room for 8",
        "free capacity",
        "no wings",
        "oarlock verify",
        "entries",
    ):
        assert part in text


def test_a_method_without_gates_and_memory_has_none_to_tell(
    oarlock: Command, tiny_trunk: Trunk, last_json: LastJson, capsys: pytest.CaptureFixture
) -> None:
    Learner("slda", trunk=tiny_trunk).learn(*make_task([4, 9])).save("slda.oar")
    assert oarlock("inspect", "slda.oar", "--json") == 0
    facts = last_json()
    assert (facts["free_capacity"], facts["wings"], facts["memory"]["room"]) == (None, None, None)
    assert [row["label"] for row in facts["tasks"][0]["classes"]] == [4, 9]
    assert facts["trunk"]["overlap"] == "unknown"
    assert facts["bytes_by_part"]["probes"] == 0
    assert oarlock("inspect", "slda.oar") == 0
    assert "none: finished tasks may change" in capsys.readouterr().out
