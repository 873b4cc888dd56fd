"""Finished runs side by side: means computed by hand, refusals, and what is written."""

import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oarlock import OarlockError
from oarlock.cli import main
from oarlock.report.comparison import Comparison, compare
from oarlock.report.comparison_page import write_comparison
from oarlock.report.terminal import print_comparison
from oarlock.upgrades import FORMAT

TASKS = [["cat", "dog"], ["deer", "frog"]]
FIRST = [[90.0], [80.0, 60.0]]  # ACA 70, AIA 80, forgetting 10
SECOND = [[96.0], [82.0, 66.0]]  # ACA 74, AIA 85, forgetting 14


def result_of(method: str = "row", accuracy: list[list[float]] = FIRST, **changes: Any) -> dict[str, Any]:
    """Two tasks of two classes, with the numbers that belong to the accuracy matrix."""
    (learned,), last = accuracy
    aca = sum(last) / 2
    result = {
        "format": FORMAT,
        "method": method,
        "protocol": None,
        "source": "sample",
        "increment": 2,
        "order": 1,
        "validation": 0.0,
        "seed": 0,
        "memory": 200,
        "trunk": "vit_pico",
        "config": {"epochs": 3},
        "threads": 2,
        "tasks": TASKS,
        "accuracy": accuracy,
        "til_accuracy": [[98.0], [98.0, 94.0]],
        "task_id_accuracy": 75.0,
        "aca": aca,
        "aia": (learned + aca) / 2,
        "forgetting": learned - last[0],
        "ood_auroc": 0.8,
        "ood_fpr95": 0.5,
        "entries": 1000,
        "seconds": {"train": 60.0, "evaluate": 4.0},
        "peak_mb": 900.0,
        "free_capacity": None,
        "unchanged": None,
        "variants": {},
        "overlap": "no",
        "versions": {"oarlock": "0.1.0"},
    }
    return result | changes


def variant_of(accuracy: list[list[float]]) -> dict[str, Any]:
    return {name: result_of(accuracy=accuracy)[name] for name in ("accuracy", "aca", "forgetting")}


def save(directory: Path, result: dict[str, Any]) -> Path:
    directory.mkdir(parents=True)
    (directory / "result.json").write_text(json.dumps(result))
    return directory


@pytest.fixture
def two_orders(tmp_path: Path) -> Path:
    """row on two orders, with a variant; slda on the same two."""
    out = tmp_path / "out"
    variants = [{"row-wp": variant_of([[50.0], [40.0, 40.0]])}, {"row-wp": variant_of([[60.0], [40.0, 48.0]])}]
    slower = {"train": 64.0, "evaluate": 6.0}
    save(out / "order-1" / "row", result_of(variants=variants[0]))
    save(out / "order-2" / "row", result_of("row", SECOND, order=2, seconds=slower, variants=variants[1]))
    save(out / "order-1" / "slda", result_of("slda", [[70.0], [65.0, 65.0]], ood_auroc=None))
    save(out / "order-2" / "slda", result_of("slda", [[70.0], [65.0, 65.0]], order=2, ood_auroc=None))
    return out


def html_of(comparison: Comparison, out: Path) -> str:
    return write_comparison(comparison, out).read_text(encoding="utf-8")


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page[page.index("<body>") :]))


# The numbers


def test_means_and_standard_deviations_over_orders(two_orders: Path) -> None:
    comparison = compare([two_orders])
    assert [method.name for method in comparison.methods] == ["row", "slda", "row-wp"]  # by ACA
    row = comparison.methods[0]
    assert row.numbers["aca"] == (72.0, pytest.approx(math.sqrt(8)))  # of 70 and 74
    assert row.numbers["aia"] == (82.5, pytest.approx(math.sqrt(12.5)))  # of 80 and 85
    assert row.numbers["forgetting"] == (12.0, pytest.approx(math.sqrt(8)))  # of 10 and 14
    assert row.numbers["til_accuracy"] == (96.0, 0.0)
    assert row.numbers["seconds"] == (67.0, pytest.approx(math.sqrt(18)))  # of 64 and 70
    assert row.numbers["entries"] == (1000.0, 0.0)
    assert [mean for mean, _ in row.after_each_task] == [93.0, 72.0]
    assert [mean for mean, _ in row.by_task] == [81.0, 63.0]
    assert row.by_task[1].std == pytest.approx(math.sqrt(18))  # of 60 and 66
    assert comparison.methods[1].numbers["ood_auroc"] is None
    assert comparison.warnings == []
    assert (list(comparison.orders), comparison.seeds, comparison.runs) == (["1", "2"], [0], 4)


def test_a_single_run_has_no_deviation(tmp_path: Path) -> None:
    save(tmp_path / "row", result_of())
    (row,) = compare([tmp_path]).methods
    assert row.numbers["aca"] == (70.0, None)
    assert (
        "±"
        not in (write_comparison(compare([tmp_path]), tmp_path).parent / "compare.md").read_text().split("|", 1)[1]
    )


def test_seeds_are_averaged_too(tmp_path: Path) -> None:
    runs = [save(tmp_path / "one", result_of()), save(tmp_path / "two", result_of("row", SECOND, seed=1))]
    (row,) = compare(runs).methods
    assert row.numbers["aca"] == (72.0, pytest.approx(math.sqrt(8)))
    assert row.samples == [("1", 0), ("1", 1)]


def test_a_reading_is_a_method_with_the_costs_of_its_training(two_orders: Path) -> None:
    variant = compare([two_orders]).methods[2]
    assert (variant.name, variant.note) == ("row-wp", "read from row's training")
    assert variant.numbers["aca"] == (42.0, pytest.approx(math.sqrt(8)))  # of 40 and 44
    assert variant.numbers["aia"] == (48.5, pytest.approx(math.sqrt(24.5)))  # of 45 and 52
    assert variant.numbers["forgetting"] == (15.0, pytest.approx(math.sqrt(50)))  # of 10 and 20
    assert variant.numbers["seconds"] == (67.0, pytest.approx(math.sqrt(18)))
    assert variant.numbers["entries"] == (1000.0, 0.0)
    for unknown in ("til_accuracy", "task_id_accuracy", "ood_auroc"):
        assert variant.numbers[unknown] is None


def test_a_run_of_its_own_counts_in_place_of_a_reading(two_orders: Path) -> None:
    save(two_orders / "order-1" / "row-wp", result_of("row-wp", [[99.0], [99.0, 99.0]]))
    mixed = next(method for method in compare([two_orders]).methods if method.name == "row-wp")
    assert (mixed.read_from, len(mixed.samples)) == ("row and row-wp", 2)
    assert mixed.numbers["aca"] == pytest.approx((71.5, 38.89), abs=0.01)  # 99 of its own, 44 read
    save(two_orders / "order-2" / "row-wp", result_of("row-wp", [[99.0], [99.0, 99.0]], order=2))
    first = compare([two_orders]).methods[0]
    assert (first.read_from, first.numbers["aca"]) == (None, (99.0, 0.0))


def test_a_run_found_twice_counts_once(two_orders: Path) -> None:
    again = compare([two_orders, two_orders / "order-1", two_orders / "order-1" / "row"])
    assert again == compare([two_orders])


# What cannot be compared


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"source": "/data/birds.npz"}, "source"),
        ({"tasks": [["cat"], ["dog", "deer", "frog"]]}, "increment"),
        ({"tasks": [["cat", "dog"], ["deer", "bird"]]}, "classes"),
        ({"memory": 100}, "memory is 200 in the one and 100 in the other"),
        ({"trunk": "deit_small_patch16_224"}, "trunk"),
        ({"validation": 0.2}, "validation"),
        (
            {
                "tasks": [["cat", "dog"], ["deer", "frog"], ["ship", "bird"]],
                "accuracy": [*FIRST, [1.0] * 3],
                "til_accuracy": [*FIRST, [1.0] * 3],
            },
            "number of tasks is 2 in the one and 3",
        ),
        ({"method": "row", "order": 2, "config": {"epochs": 4}}, r"\(both are row\): epochs is 3 in the one and 4"),
        ({"method": "row"}, "same run: row, order 1, seed 0"),
    ],
)
def test_runs_that_say_nothing_about_each_other_are_refused(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    runs = [save(tmp_path / "one", result_of()), save(tmp_path / "other", result_of("slda") | changes)]
    with pytest.raises(OarlockError, match=rf"{runs[0]} and {runs[1]} .*{what}"):
        compare(runs)


def test_the_same_tasks_may_be_asked_for_in_two_ways(tmp_path: Path) -> None:
    save(tmp_path / "row", result_of())
    save(tmp_path / "slda", result_of("slda", increment=[2, 2]))
    assert len(compare([tmp_path]).methods) == 2


@pytest.mark.parametrize("other", [{"partial": True}, {"overlap": "yes"}])
def test_runs_on_partial_data_or_another_pre_training_are_not_compared(other: dict[str, Any], tmp_path: Path) -> None:
    one, two = save(tmp_path / "one", result_of()), save(tmp_path / "two", result_of(seed=1) | other)
    with pytest.raises(OarlockError):
        compare([one, two])


def test_different_sets_of_orders_are_warned_of_in_every_output(tmp_path: Path) -> None:
    save(tmp_path / "a", result_of())
    save(tmp_path / "b", result_of("row", SECOND, order=2))
    save(tmp_path / "c", result_of("slda", order=2))
    comparison = compare([tmp_path])
    warning = "different class orders: row on orders 1, 2; slda on order 2."
    assert warning in words(html_of(comparison, tmp_path))
    assert warning in (tmp_path / "compare.md").read_text()
    assert warning in printed(comparison, 200)


def test_an_unfinished_run_is_left_out_and_named(tmp_path: Path) -> None:
    save(tmp_path / "row", result_of())
    (tmp_path / "hat").mkdir()
    (tmp_path / "hat" / "config.json").write_text("{}")
    assert compare([tmp_path]).warnings == [f"Not finished, so left out: {tmp_path / 'hat'}."]


def test_directories_without_finished_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OarlockError, match=r"no directory .*nowhere"):
        compare([tmp_path / "nowhere"])
    with pytest.raises(OarlockError, match=f"no finished run in {tmp_path}$"):
        compare([tmp_path])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OarlockError, match="is not finished"):
        compare([tmp_path])


@pytest.mark.parametrize(
    "content", ["", "[]", '{"method": "row"}', json.dumps(result_of(accuracy=FIRST, aca="high"))]
)
def test_a_damaged_result_is_named(tmp_path: Path, content: str) -> None:
    save(tmp_path / "good", result_of())
    (save(tmp_path / "bad", {}) / "result.json").write_text(content)
    with pytest.raises(OarlockError, match=re.escape(str(tmp_path / "bad" / "result.json"))):
        compare([tmp_path])


def test_a_damaged_reading_is_named(tmp_path: Path) -> None:
    save(tmp_path / "bad", result_of(variants={"row-wp": variant_of(FIRST) | {"aca": "high"}}))
    with pytest.raises(OarlockError, match=r"variants\.row-wp\.aca is 'high', not a number"):
        compare([tmp_path])


# What is written


def test_the_markdown_says_it_all(two_orders: Path) -> None:
    write_comparison(compare([two_orders]), two_orders)
    lines = (two_orders / "compare.md").read_text().splitlines()
    assert lines[0] == "# 3 methods on sample"
    assert "- Stream: 4 classes in 2 tasks" in lines and "- Class orders: 1; 2" in lines
    assert (
        "| row | 2 | **72.0 ± 2.8** | **82.5 ± 3.5** | 12.0 ± 2.8 | **96.0 ± 0.0** | **75.0 ± 0.0** | "
        "**0.800 ± 0.000** | 67.0 ± 4.2 | 1,000 ± 0 |  |"
    ) in lines
    assert any(line.startswith("| slda | 2 | 65.0 ± 0.0 | 67.5 ± 0.0 | **5.0 ± 0.0** |") for line in lines)
    assert (
        "| row-wp | 2 | 42.0 ± 2.8 | 48.5 ± 4.9 | 15.0 ± 7.1 | – | – | – | 67.0 ± 4.2 | 1,000 ± 0 | "
        "read from row's training |"
    ) in lines
    assert "| row | **93.0 ± 4.2** | **72.0 ± 2.8** |" in lines  # after each task
    assert "| row | **81.0 ± 1.4** | 63.0 ± 4.2 |" in lines  # by task


def test_the_page_is_one_file_that_refers_to_nothing_outside(two_orders: Path) -> None:
    page = html_of(compare([two_orders]), two_orders / "new")
    assert page.startswith("<!doctype html>")
    assert "http" not in page and "<script" not in page and "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r'(?:href="|url\()([^")]*)', page))
    assert not re.search(r"#(0[1-9a-b])\1", page)  # every stand-in colour has become a variable of the page
    assert "<b>72.0 ± 2.8</b>" in page and "<svg" in page
    assert "cat, dog" in words(page) and "Pre-training saw no class of these names" in words(page)
    assert sorted(file.name for file in (two_orders / "new").iterdir()) == ["compare.html", "compare.md"]


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    tasks = [["<script>alert(1)</script>", "a & b"], ["<img src=x>", "caf\x1b[31m"]]
    variants = {"<s>read|ing $x$": variant_of(FIRST)}
    save(tmp_path / "row", result_of("<u>row</u>", source="<i>here</i>", tasks=tasks, variants=variants))
    comparison = compare([tmp_path])
    page = html_of(comparison, tmp_path)
    assert not re.search(r"<(script|img|s>|u>|i>)", page) and "\x1b" not in page
    assert "&lt;script&gt;" in page and "&lt;u&gt;row" in page
    markdown = (tmp_path / "compare.md").read_text()
    assert r"\<s\>read\|ing" in markdown and not re.search(r"(?<!\\)<", markdown)
    assert "<u>row</u>" in printed(comparison, 200)


def test_one_task_has_no_chart(tmp_path: Path) -> None:
    one = {"tasks": TASKS[:1], "accuracy": [[90.0]], "til_accuracy": [[90.0]], "forgetting": None}
    save(tmp_path / "row", result_of() | one)
    assert "<svg" not in html_of(compare([tmp_path]), tmp_path)


def printed(comparison: Comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_comparison(comparison, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_terminal_keeps_every_number_whole(two_orders: Path, width: int) -> None:
    text = printed(compare([two_orders]), width)
    assert max(map(len, text.splitlines())) <= width
    for number in (
        "72.0 ± 2.8",
        "82.5 ± 3.5",
        "0.800 ± 0.000",
        "67.0 ± 4.2",
        "1,000 ± 0",
        "read from row's training",
    ):
        assert number in text


# The command


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["oarlock", "compare", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code


def test_json_is_one_object_per_method_and_nothing_else(
    two_orders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    command(monkeypatch, two_orders, "--json")
    row, slda, variant = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["aca"] == {"mean": 72.0, "std": pytest.approx(math.sqrt(8))}
    assert row["runs"] == [{"order": "1", "seed": 0}, {"order": "2", "seed": 0}]
    assert [spread["mean"] for spread in row["after_each_task"]] == [93.0, 72.0]
    assert slda["ood_auroc"] is None and slda["read_from"] is None
    assert (variant["method"], variant["read_from"]) == ("row-wp", "row")
    assert (two_orders / "compare.html").exists()


def test_the_command_writes_where_it_is_told_or_where_it_stands(
    two_orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    command(monkeypatch, two_orders / "order-1", two_orders / "order-2")
    assert (tmp_path / "compare.html").exists() and (tmp_path / "compare.md").exists()
    command(monkeypatch, two_orders, "--out", tmp_path / "deep" / "er")
    assert (tmp_path / "deep" / "er" / "compare.html").exists()
    assert "72.0 ± 2.8" in capsys.readouterr().out
    assert not (two_orders / "compare.html").exists()
