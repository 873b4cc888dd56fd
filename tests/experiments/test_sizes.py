"""Model sizes against the paper's table, and against a model that is really there."""

import json

import pytest
from typer.testing import CliRunner

from conftest import make_task
from oarlock import Learner
from oarlock.cli import app
from oarlock.experiments.protocols import PAPER
from oarlock.experiments.sizes import NEAR, sizes
from oarlock.methods import methods


@pytest.fixture(scope="module")
def cells():
    return sizes()


def test_every_method_is_counted_on_every_protocol(cells):
    assert {(cell.method, cell.protocol) for cell in cells} == {(m, p) for m in methods.all() for p in PAPER}
    assert sum(cell.paper is not None for cell in cells) == 13 * 5


def test_every_cell_is_near_the_paper_s_or_says_why_not(cells):
    far = {cell.method for cell in cells if cell.difference is not None and abs(cell.difference) > NEAR}
    assert far == {"hat", "row"}
    assert all(cell.why for cell in cells if cell.difference is not None and abs(cell.difference) > NEAR)


def test_the_reason_given_for_hat_accounts_for_its_difference(cells):
    """With an output for every class of the stream in each head, the paper's numbers."""
    for cell in cells:
        if cell.method == "hat":
            tasks, own = PAPER[cell.protocol].tasks, PAPER[cell.protocol].classes_per_task
            missing = tasks * (PAPER[cell.protocol].classes - own) * 385 / 1e6
            assert cell.ours + missing == pytest.approx(cell.paper, abs=NEAR)


def test_slda_keeps_half_of_a_symmetric_covariance(cells):
    (cell,) = (cell for cell in cells if (cell.method, cell.protocol) == ("slda", "c10-5t"))
    images = 1  # their number
    assert round(cell.ours * 1e6) == 21_665_664 + 384 * 385 // 2 + images


def test_row_s_parts_add_up(cells):
    """By the rules in the paper's appendix, from its layer sizes alone."""
    (cell,) = (cell for cell in cells if (cell.method, cell.protocol) == ("row", "c10-5t"))
    adapters = 24 * (2 * 384 * 64 + 64 + 384)
    used = 24 * (64 + 384)  # one bit for every unit, counted as an entry
    per_task = 24 * (64 + 384) + 25 * 768 + 384**2 + 2 * 384 + 385 * (3 + 3 + 2)
    flags = 5  # whether each task's gates are binary yet
    assert round(cell.ours * 1e6) == 21_665_664 + adapters + used + 5 * per_task + flags


def test_what_is_counted_on_the_meta_device_is_what_a_learner_has(tiny_trunk):
    learner = Learner("finetune", trunk=tiny_trunk, width=8, epochs=0, calibration=0.0)
    learner.learn(*make_task([0, 1]))
    trunk = sum(tensor.numel() for tensor in tiny_trunk.tensors().values())
    adapters = 4 * (2 * 24 * 8 + 8 + 24)
    assert learner.entries() == trunk + adapters + 25 * 2


def test_the_command_prints_the_table_and_json():
    printed = CliRunner().invoke(app, ["sizes", "--protocol", "c10-5t"])
    assert printed.exit_code == 0
    assert "23.77" in printed.output and "*" not in printed.output
    assert "* hat" in CliRunner().invoke(app, ["sizes", "--protocol", "c100-10t"]).output
    lines = CliRunner().invoke(app, ["sizes", "--protocol", "c10-5t", "--json"]).output.splitlines()
    assert len(lines) == len(methods.all())
    assert {"method", "protocol", "ours", "paper", "difference", "why"} == set(json.loads(lines[0]))
