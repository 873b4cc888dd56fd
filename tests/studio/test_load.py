"""Many clients at once, and a lesson meanwhile: the benchmark of it, with few requests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve_load.py"


@pytest.mark.slow
def test_under_load_no_answer_is_lost_or_another() -> None:
    small = ["--trunk", "vit_pico", "--requests", "200", "--clients", "16", "--photos", "80", "--repeats", "1"]
    command = [sys.executable, str(BENCHMARK), *small, "--threads", "1"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["lost"] == found["wrong"] == found["changed_while_learning"] == 0
    assert found["while_learning"] > 0 and found["new_model_seen"]
