"""Risks as samples grow in number, on the synthetic world."""

import json
from functools import partial
from pathlib import Path

import pytest

from conftest import Command
from oarlock.theory.curve import TASKS, curve


def test_with_more_samples_risks_fall_together_and_theorem_1_s_does_not() -> None:
    few, some, many = curve(samples=[1, 4, 32], draws=2)
    for name in ("detector_risk", "theorem3_risk", "corollary_risk", "corollary_bound", "within_task_risk"):
        assert getattr(few, name) > 2 * getattr(some, name) > 4 * getattr(many, name), name
    assert many.corollary_risk < 0.01 and many.within_task_risk < 0.01
    for point in (few, some, many):
        assert point.theorem1_risk >= 1 - 1 / TASKS
        assert point.theorem3_risk <= point.theorem3_bound + 1e-6
        assert point.corollary_risk <= point.corollary_bound + 1e-6


def test_the_curve_is_printed_and_drawn(
    oarlock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("oarlock.theory.curve.curve", partial(curve, samples=[1, 8], draws=1))
    out = tmp_path / "figures"
    assert oarlock("theory", "--curve", "--json", "--out", out) == 0
    points = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [point["samples"] for point in points] == [1, 8]
    names = {path.name: path.read_bytes() for path in out.iterdir()}
    assert names.keys() == {"theory-curve.svg", "theory-curve.png", "theory-curve.html"}
    assert f"{points[1]['corollary_risk']:.4f}".encode() in names["theory-curve.html"]
    assert b"Theorem 1" in names["theory-curve.svg"]
    assert oarlock("theory", "--curve") == 0
    assert f"{points[0]['theorem1_risk']:.4f}" in capsys.readouterr().out
