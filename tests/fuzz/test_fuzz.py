"""A file from a stranger is refused in a sentence, or taken for good and then answers: a few hundred mutants of every
kind of file. `make fuzz N=20000` has more."""

import random
import socket
import urllib.request
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import pytest
import torch

from fuzz.cases import play
from fuzz.mutations import mutated, signed, taken_apart
from fuzz.runner import _lines, outcomes
from fuzz.subjects import Subject
from oarlock import OarlockError
from oarlock.files import read_tensors, write_tensors

CASES = 300


def test_no_mutant_does_anything_but_be_refused_or_answer() -> None:
    found = list(outcomes(0, CASES))
    assert [one for one in found if one.finding] == []
    assert [one.number for one in found] == list(range(CASES))
    ends = [one.end for one in found]
    assert ends.count("refused") > CASES / 2 and ends.count("loaded") > CASES / 50


# The net itself


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.oar"
    write_tensors(path, "model", {"x": torch.arange(9.0)}, {"classes": ["ant", "bee"], "count": 3})
    return path


def using(file: Path, use: Callable[[], object]) -> str:
    """What is found when a mutant is used so."""
    return play(5, [Subject("x", file, lambda path, chance: use() and None)]).finding


def test_refusals_and_answers_are_no_findings(file: Path) -> None:
    def refuse() -> None:
        raise OarlockError("it is no model")

    before = file.read_bytes()
    assert using(file, refuse) == using(file, lambda: None) == ""
    assert file.read_bytes() == before


def test_what_else_happens_is_a_finding(file: Path) -> None:
    assert "ZeroDivisionError" in using(file, lambda: 1 / 0)
    assert "a connection to" in using(file, lambda: urllib.request.urlopen("http://127.0.0.1:9/x"))
    assert "a connection to" in using(file, lambda: socket.create_connection(("127.0.0.1", 9)))
    assert "MB of memory" in using(file, lambda: bytearray(b"x" * 300 * 2**20))


def test_what_takes_too_long_is_a_finding(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.cases.SECONDS", 0.05)
    assert "TooLong" in using(file, lambda: any(never for never in repeat(False)))


def test_what_sleeps_is_a_finding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.runner.SECONDS", 0.1)
    monkeypatch.setattr("fuzz.runner.PATIENCE", 0.1)
    assert list(_lines(["sleep", "60"])) == ["no answer for 0.2 s"]


def test_half_of_the_mutants_have_a_checksum_that_fits_and_a_number_makes_the_same_again(file: Path) -> None:
    mutants = [mutated(file, random.Random(number)) for number in range(200)]
    assert mutants == [mutated(file, random.Random(number)) for number in range(200)]
    fits = 0
    for content, _ in mutants:
        file.write_bytes(content)
        try:
            fits += read_tensors(file, "model")[0] is not None
        except OarlockError as refusal:
            fits += "checksum" not in str(refusal) and "not an Oarlock" not in str(refusal)
    assert 60 < fits < 140
    write_tensors(file, "model", {"x": torch.arange(9.0)}, {"classes": ["ant", "bee"], "count": 3})


def test_what_is_signed_again_is_read_as_if_it_had_been_written_so(file: Path) -> None:
    tensors, described = taken_apart(file.read_bytes())
    described["count"] = 4
    file.write_bytes(signed(tensors, described, random.Random(0), []))
    assert read_tensors(file, "model")[1]["count"] == 4
