"""The demo is not a toy: it is held against a linear discriminant that sees all classes at once."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from conftest import Command
from oarlock.data.sources import open_source

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "demo_vs_lda.py"


@pytest.mark.slow
def test_the_demo_leaves_a_report_and_old_tasks_as_they_were(tmp_path: Path, oarlock: Command) -> None:
    out = tmp_path / "demo"
    assert oarlock("demo", "--out", out) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["unchanged"]["compared"] > 100_000 and result["unchanged"]["changed"] == 0
    for task in range(5):
        assert len({row[task] for row in result["til_accuracy"][task:]}) == 1
    assert result["aca"] > 80 and result["trunk"] == "efficientnet_lite0" and result["overlap"] == "yes"
    assert "<svg" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_demo_is_at_least_as_accurate_as_a_linear_discriminant_on_all_classes_at_once():
    spec = importlib.util.spec_from_file_location("demo_vs_lda", SCRIPT)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    row = [benchmark.run_order(order) for order in benchmark.ORDERS]
    assert np.mean(row) >= benchmark.linear_discriminant(open_source("sample"))
