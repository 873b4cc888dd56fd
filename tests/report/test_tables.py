"""Tables and figures of a grid: means computed by hand, pending cells, the paper's numbers, and every format."""

import csv
import io
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from oarlock import OarlockError
from oarlock.cli import main
from oarlock.experiments.paper import _printed, in_paper_order, paper_number
from oarlock.experiments.plan import Plan, Request, Settings
from oarlock.report.comparison import compare
from oarlock.report.figures import BOUND, COLOURS, REST, looks, spread_out, write_figures
from oarlock.report.formats import render
from oarlock.report.tables import find_columns, tabulate
from report.test_comparison import FIRST, SECOND, result_of, save, variant_of

MINI, HUNDRED = "c10-5t-mini", "c100-10t-mini"
LESS = [[80.0], [60.0, 40.0]]  # ACA 50, AIA 65, forgetting 20


def saved(out: Path, column: str, method: str, order: int, accuracy: Any = FIRST, **changes: Any) -> None:
    protocol = column.removesuffix("-half")
    result = result_of(method, accuracy, order=order, protocol=protocol, partial=False)
    save(out / column / f"order-{order}" / method, result | changes)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """On ten classes row has two of three orders, slda all of one, joint one; on a hundred only row has begun."""
    out = tmp_path / "out"
    saved(out, MINI, "row", 1, variants={"row-wp": variant_of(LESS)})
    saved(out, MINI, "row", 2, SECOND, variants={"row-wp": variant_of(LESS)})
    saved(out, MINI, "slda", 1, [[70.0], [65.0, 65.0]])
    saved(out, MINI, "joint", 1, [[99.0], [99.0, 99.0]])
    saved(out, HUNDRED, "row", 1, LESS)
    plan = Plan()
    for request in (
        Request(Settings(MINI), ["row", "row-wp"], 3),
        Request(Settings(MINI), ["slda", "joint", "finetune"], 1),
        Request(Settings(HUNDRED), ["row", "slda"], 1),
    ):
        plan = plan.extended(request)
    plan.save(out)
    return out


def lines_of(out: Path, measure: str | None = "aca") -> list[str]:
    return render(tabulate(find_columns(out), measure)).splitlines()


# The paper's numbers


def test_the_paper_s_numbers_have_the_averages_it_prints() -> None:
    printed = {"hat": 67.62, "slda": 68.02, "pass": 68.25, "derpp": 66.89, "more": 71.59, "row": 73.72, "tpl": 76.21}
    for method, average in printed.items():
        means = [mean for mean, _ in _printed()["accuracy"][method]]
        assert sum(means) / 5 == pytest.approx(average, abs=0.006)
    halved = {"icarl": 63.60, "agem": 31.15, "eeil": 58.24, "gd": 54.39, "derpp": 62.16, "hal": 60.21, "row": 72.70}
    for method, average in halved.items():
        assert sum(mean for mean, _ in _printed()["half memory"][method]) / 5 == pytest.approx(average, abs=0.006)
    assert {len(row) for name in ("accuracy", "half memory", "forgetting") for row in _printed()[name].values()} == {
        5
    }


def test_what_the_paper_does_not_print_is_blank() -> None:
    assert paper_number("aca", "t-5t", "row-wp") is None
    assert paper_number("aca", "c10-5t", "slda", half_memory=True) is None
    assert paper_number("forgetting", "c10-5t", "row", half_memory=True) is None
    assert paper_number("aia", "c10-5t", "row") is None
    assert paper_number("aca", "sample", "row") is None
    assert paper_number("aca", "c10-5t", "joint") == (95.79, None)
    assert paper_number("entries", "c10-5t", "row") == (23.7e6, None)


def test_methods_are_in_the_paper_s_order() -> None:
    assert in_paper_order(["zebra", "finetune", "joint", "row", "hat", "derpp"]) == [
        *("hat", "derpp", "row", "joint", "finetune", "zebra")
    ]


# Markdown


def test_a_table_has_means_pending_cells_and_the_paper_s_numbers(grid: Path) -> None:
    assert lines_of(grid)[2:10] == [
        "| method | c10-5t-mini · paper's C10-5T, for orientation | "
        "c100-10t-mini · paper's C100-10T, for orientation | average | rank | paper's rank |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| slda | 65.0 · 88.64 (−23.6) | pending · 67.82 | pending · 78.23 | – | 3 |",
        "| row | **72.0 ± 2.8** (2 of 3) · 90.97 (−19.0) | **50.0** · 74.72 (−24.7) | "
        "**61.0** (2 of 3) · 82.84 (−21.8) | 1 | 1 |",
        "| row-wp | 50.0 ± 0.0 (2 of 3) · 88.50 (−38.5) | – · 72.29 | – · 80.40 | – | 2 |",
        "| joint | 99.0 · 95.79 (+3.2) | – · 82.76 | – · 89.28 | – | – |",
        "| finetune | pending | – | – | – | – |",
        "",
    ]


def test_the_paper_s_average_counts_none_of_its_columns_twice(grid: Path) -> None:
    saved(grid, "c10-5t-lite", "row", 1, LESS)
    row = next(line for line in lines_of(grid) if line.startswith("| row |"))
    assert row.split(" | ")[3:5] == ["**50.0** · 90.97 (−41.0)", "**57.3** (2 of 3)"]


def test_an_average_is_pending_while_one_of_its_columns_is(grid: Path) -> None:
    plan = Plan.load(grid)
    plan.extended(Request(Settings(HUNDRED), ["row"], 2)).extended(Request(Settings(MINI), ["row"], 3)).save(grid)
    saved(grid, MINI, "row", 3, SECOND)
    (table,) = tabulate(find_columns(grid), "aca")
    row = next(row for row in table.rows if row.method == "row")
    assert [cell.pending for cell in (*row.cells, row.average)] == [False, True, True]


def test_what_a_reader_must_know_stands_below(grid: Path) -> None:
    text = "\n".join(lines_of(grid))
    for note in (
        "pending: planned, not finished",
        "For orientation only (c10-5t-mini beside C10-5T, c100-10t-mini beside C100-10T)",
        "The numbers beside joint are from TPL's paper",
        "joint learns all classes at once",
        "row-wp: read from row's training",
        "different class orders: joint, slda on order 1; row, row-wp on orders 1, 2",
        "whose pre-training saw no class of these names",
    ):
        assert note in text


def test_without_a_measure_all_tables_come_one_after_the_other(grid: Path) -> None:
    headings = [line for line in lines_of(grid, None) if line.startswith("##")]
    assert len(headings) == 8 and headings[0].startswith("## Average accuracy") and "Entries" in headings[-1]
    text = "\n".join(lines_of(grid, None))
    assert text.count("10-5t-mini: 4 classes in 2 tasks") == 1  # said once
    rows = [line for line in lines_of(grid, "forgetting") if line.startswith(("| slda", "| row |"))]
    assert rows[0].startswith("| slda | **5.0** · 5.74 (−0.7) |")  # of forgetting, the least is the best
    assert rows[1].startswith("| row | 12.0 ± 2.8 (2 of 3) · 7.05 (+5.0) |")


def test_half_memory_is_a_table_of_its_own_with_the_paper_s_half_memory(grid: Path) -> None:
    saved(grid, f"{MINI}-half", "row", 1, LESS, memory=100)
    whole, half = tabulate(find_columns(grid), "aca")
    assert ([column.name for column in half.columns], half.memory) == ([f"{MINI}-half"], "half")
    (row,) = half.rows
    assert row.cells[0].paper == (89.7, 1.54) and row.cells[0].difference == pytest.approx(50 - 89.7)
    assert len(whole.columns) == 2
    assert "## Average accuracy after the last task (ACA), %: half memory" in lines_of(grid)


def test_costs_have_no_best_and_another_trunk_s_size_stands_beside_none(grid: Path) -> None:
    for measure in ("seconds", "entries"):
        text = "\n".join(lines_of(grid, measure))
        assert "**" not in text and "paper" not in text
    assert "| slda | 64.0 | pending | pending |" in lines_of(grid, "seconds")


def test_the_paper_s_own_stream_and_trunk_are_no_mere_orientation(tmp_path: Path) -> None:
    saved(tmp_path, "c10-5t", "row", 1, trunk="deit_small_patch16_224", overlap="no", entries=23_800_000)
    assert "orientation" not in "\n".join(lines_of(tmp_path))
    assert "| row | 23,800,000 · 23,700,000 (+100,000) |" in lines_of(tmp_path, "entries")
    part = {"partial": True, "images_per_class": {"train": [6, 6], "test": [3, 3]}}
    for number, changes in enumerate((part, {"overlap": "yes"}, {"trunk": "vit_pico"})):
        out = tmp_path / str(number)
        saved(out, "c10-5t", "row", 1, **({"trunk": "deit_small_patch16_224", "overlap": "no"} | changes))
        text = "\n".join(lines_of(out))
        assert "for orientation" in text and ("on partial data: train 6, test 3 images" in text) == (number == 0)


def test_equal_looking_means_share_rank_and_bold(tmp_path: Path) -> None:
    for method, last in (("row", 60.0), ("slda", 60.04), ("hat", 59.0)):
        saved(tmp_path, MINI, method, 1, [[90.0], [last, last]])
    (table,) = tabulate(find_columns(tmp_path), "aca")
    assert [(row.method, row.rank, row.cells[0].best) for row in table.rows] == [
        ("hat", 3, False),
        ("slda", 1, True),
        ("row", 1, True),
    ]


def test_the_directory_of_one_protocol_will_do(grid: Path) -> None:
    lines = lines_of(grid / MINI)
    assert "| row | **72.0 ± 2.8** (2 of 3) · 90.97 (−19.0) | 1 | 1 |" in lines
    assert "| finetune | pending | – | – |" in lines and not any("100-10t" in line for line in lines)


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    saved(tmp_path, MINI, "<u>ro|w", 1)
    assert r"| \<u\>ro\|w |" in "\n".join(lines_of(tmp_path))


# Other formats


def test_csv_has_every_cell_unrounded(grid: Path) -> None:
    cells = list(csv.DictReader(io.StringIO(render(tabulate(find_columns(grid), "aca"), "csv"))))
    assert len(cells) == 5 * 3
    row = next(cell for cell in cells if (cell["method"], cell["column"]) == ("row", MINI))
    assert float(row["mean"]) == 72.0 and float(row["std"]) == pytest.approx(math.sqrt(8))
    assert (row["orders"], row["pending"], row["best"], row["rank"]) == ("2", "1", "True", "1")
    assert (row["paper_mean"], row["paper_std"], row["orientation_only"]) == ("90.97", "0.19", "True")
    assert float(row["difference"]) == pytest.approx(72 - 90.97)
    waiting = next(cell for cell in cells if (cell["method"], cell["column"]) == ("finetune", MINI))
    assert (waiting["mean"], waiting["pending"], waiting["paper_mean"]) == ("", "1", "")


def test_json_has_the_same_cells(grid: Path) -> None:
    cells = [json.loads(line) for line in render(tabulate(find_columns(grid)), "json").splitlines()]
    assert {cell["measure"] for cell in cells} >= {"aca", "aia", "forgetting", "seconds", "entries"}
    average = next(cell for cell in cells if (cell["method"], cell["column"]) == ("row", "average"))
    assert average["mean"] == pytest.approx(61.0) and average["paper_mean"] == pytest.approx((90.97 + 74.72) / 2)


def test_latex_is_balanced_and_escaped(grid: Path) -> None:
    text = render(tabulate(find_columns(grid)), "latex")
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 8
    assert r"row & \textbf{72.0 $\pm$ 2.8} (2 of 3) $\cdot$ 90.97 ($-$19.0) & \textbf{50.0}" in text
    assert text.count("{") == text.count("}")
    assert not re.search(r"(?<!\\)[%_#]", text) and text.isascii() is False  # the dash of an empty cell
    columns = re.findall(r"\\begin{tabular}{(l\w+)}", text)
    bodies = re.findall(r"\\toprule\n(.*?) \\\\", text)
    assert [len(column) for column in columns] == [body.count("&") + 1 for body in bodies]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--measure", "speed"], "no measure 'speed'"), (["--format", "word"], "no format 'word'")],
)
def test_what_there_is_not_is_named(grid: Path, arguments: list[str], words: str, command: Any) -> None:
    assert command("table", grid, *arguments)[0] == 2
    assert words in command("table", grid, *arguments)[2]


def test_directories_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OarlockError, match=r"no directory .*nowhere"):
        find_columns(tmp_path / "nowhere")
    with pytest.raises(OarlockError, match="no finished run"):
        find_columns(tmp_path)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Any:
    """The command in this process: exit code, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["oarlock", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return (end.value.code or 0, *capsys.readouterr())

    return run


def test_the_command_prints_or_writes(grid: Path, tmp_path: Path, command: Any) -> None:
    code, printed, _ = command("table", grid, "--measure", "aia")
    assert code == 0 and printed == "\n".join(lines_of(grid, "aia")) + "\n"
    assert command("table", grid, "--format", "csv", "--out", tmp_path / "cells.csv")[:2] == (0, "")
    assert (tmp_path / "cells.csv").read_text().startswith("measure,")


# Figures


def test_figures_are_valid_and_name_every_method(grid: Path, command: Any) -> None:
    code, printed, _ = command("plot", grid)
    paths = [grid / "figures" / f"{name}.{kind}" for name in (MINI, HUNDRED) for kind in ("svg", "png")]
    assert code == 0 and printed.split() == list(map(str, paths))
    drawing = ElementTree.parse(paths[0]).getroot()
    assert drawing.tag.endswith("svg")
    text = "".join(drawing.itertext())
    assert "row 72.0" in text and text.count("slda") == 4 and "row-wp" in text and "joint" in text
    picture = imread(paths[1])
    assert picture.shape[:2] == (1425, 1800) and picture[..., :3].std() > 0.05
    assert sorted(path.name for path in (grid / "figures").iterdir()) == sorted(path.name for path in paths)
    (again, _) = write_figures(find_columns(grid / HUNDRED), grid / "again")
    assert again.read_bytes() == paths[2].read_bytes()


def test_nothing_finished_is_nothing_to_plot(tmp_path: Path, command: Any) -> None:
    Plan().extended(Request(Settings(MINI), ["row"], 1)).save(tmp_path)
    code, _, errors = command("plot", tmp_path)
    assert code == 2 and "is finished yet" in errors


def test_oar_and_the_five_best_are_coloured(tmp_path: Path) -> None:
    names = ["more", "gd", "hal", "tpl", "icarl", "joint", "pass", "hat", "oar", "finetune"]
    for place, name in enumerate(names):
        saved(tmp_path, MINI, name, 1, [[90.0], [80.0 - place] * 2])
    colours = looks(compare([tmp_path / MINI]).methods)
    assert [name for name, colour in colours.items() if colour == REST] == ["pass", "hat"]
    assert colours["oar"] == COLOURS[0] and colours["joint"] == colours["finetune"] == BOUND
    assert len({colours[name] for name in ("oar", *names[:5])}) == 6


def test_names_at_line_ends_keep_their_distance() -> None:
    ends = [50.0, 50.1, 49.0, 20.0, 80.0, 50.0]
    places = spread_out(ends, gap=2.0)
    assert min(b - a for a, b in zip(sorted(places), sorted(places)[1:], strict=False)) >= 2.0 - 1e-9
    assert sorted(range(6), key=lambda i: ends[i]) == sorted(range(6), key=lambda i: places[i])
    assert (places[3], places[4]) == (20.0, 80.0)


def test_a_table_can_be_written_to_a_pipe_and_to_no_full_disk(grid: Path, tmp_path: Path, command: Any) -> None:
    printed = command("table", grid)[1]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert command("table", grid, "--out", pipe) == (0, "", "")
    assert os.read(reader, 10**5).decode() == printed and pipe.is_fifo()
    os.close(reader)
    code, out, errors = command("table", grid, "--out", "/dev/full")
    assert (code, out) == (2, "")
    assert errors == "oarlock: /dev/full cannot be written (No space left on device)\n"
    assert Path("/dev/full").is_char_device()
