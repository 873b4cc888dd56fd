"""Pages whose tables are made by the commands above them are up to date; so is what pages say of the code."""

import subprocess
import sys
from pathlib import Path

import pytest

from oarlock.experiments.protocols import find
from oarlock.methods import gd, hal, more
from oarlock.methods.row import RowConfig
from oarlock.nets.protectors.hat import HatConfig

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "update_docs.py"


def update(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), str(page), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["docs/results.md", "benchmarks/README.md"])
def test_a_page_says_what_its_commands_print(name: str) -> None:
    page = ROOT / name
    assert "<!-- output -->" in page.read_text(encoding="utf-8")
    assert update(page, "--check").returncode == 0


def test_output_stands_below_the_commands_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    block = "```sh\necho one\nls pyproject.toml\n```\n\n<!-- output -->\n{}<!-- end of output -->\n"
    text = f"# Page\n\n{block}\n```sh\nfalse\n```\n"
    page.write_text(text.format("old\n"), encoding="utf-8")
    assert update(page, "--check").returncode == 1
    assert page.read_text(encoding="utf-8") == text.format("old\n")
    assert update(page).returncode == 0
    assert page.read_text(encoding="utf-8") == text.format("one\npyproject.toml\n")
    assert update(page, "--check").returncode == 0


def test_a_command_that_fails_leaves_the_page_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "```sh\nls no-such-file\n```\n\n<!-- output -->\nold\n<!-- end of output -->\n"
    page.write_text(text, encoding="utf-8")
    assert update(page).returncode == 1
    assert page.read_text(encoding="utf-8") == text


# What pages say of the code


def said(page: str) -> str:
    """A page's words, however its lines are broken."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("choice", "code", "here"),
    [
        ("epochs and rate of the WP head", "the same", f"own rate (`head_lr`), {RowConfig().head_lr}"),
        ("memory at step 3", "of every new class as many images are added as it has", "within the budget"),
        ("an epoch of step 3", "own images once", "as many batches as the whole memory has"),
        ("loss of step 1 at task 1", "1/N", "1/N"),
        ("s within an epoch", "b/B", "s_max at the last batch"),
        ("covariance of a class of n images", "n−1", "divided by n,"),
    ],
)
def test_rows_page_lists_a_difference_from_the_released_code(choice: str, code: str, here: str) -> None:
    """What is said of ours is tested in tests/methods/test_row.py and tests/detectors/test_gaussians.py."""
    lines = (ROOT / "docs/row.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line.strip("|").split("|") for line in lines if line.startswith(f"| {choice} |")]
    assert len(row) == 4 and code in row[2] and here in row[3]


def what_agrees(method: str) -> str:
    """The last column of a method's row in the table of methods."""
    lines = (ROOT / "docs/methods.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line.strip("|").split("|") for line in lines if line.startswith(f"| `{method}` |")]
    return row[-1]


def test_more_s_temperature_is_the_paper_s_and_the_released_code_s_is_named() -> None:
    for text in (what_agrees("more"), " ".join((more.__doc__ or "").split())):
        assert "the released code predicts at temperature 2" in text
    assert more.MoreConfig().tau == 1 and "temperature 1 as in the paper's formula" in what_agrees("more")


def test_gd_s_extra_term_is_owned_up_to() -> None:
    for text in (what_agrees("gd"), " ".join((gd.__doc__ or "").split())):
        assert "Q" in text and "external images only" in text and "in neither" in text


def test_hal_s_penalty_is_named_with_its_source() -> None:
    for text in (what_agrees("hal"), " ".join((hal.__doc__ or "").split())):
        assert "the authors' whole" in text and f"λ = {hal.HalConfig().lamb}" in text


@pytest.mark.parametrize("page", ["docs/row.md", "docs/methods.md", "docs/results.md"])
def test_pages_say_that_the_gates_rate_stays_when_another_learning_rate_is_adopted(page: str) -> None:
    adopted = {method: find("c10-5t-mini").options(method)["lr"] for method in ("hat", "more")}
    rates = ", ".join(f"`{method}` {lr}" for method, lr in adopted.items())
    assert rates in said(page) and f"stays {HatConfig().gate_lr} when `lr` is" in said(page)
    assert "in the paper's protocols both are one rate" in said(page).lower()
