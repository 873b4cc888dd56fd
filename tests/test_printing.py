"""Nothing from a file reaches a terminal as anything but text."""

import ast
import csv
import io
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import oarlock as package
from conftest import Command, make_task
from oarlock import Learner
from oarlock.errors import printable
from oarlock.experiments.plan import PlannedRun
from oarlock.modelfile.inspect import Verification, check_tasks, inspect
from oarlock.modelfile.predict import Answer
from oarlock.nets.trunks import Trunk
from oarlock.printing import NamesTable, SafeConsole, csv_line, say
from oarlock.report.model_terminal import AnswerPrinter, print_inspection, print_verification
from oarlock.report.progress import GridDisplay, ProgressBar

EVIL = "\x1b]0;owned\x07\x9b31m\u202e[red]\r\nforged"  # a title, a colour, right to left, markup, a line of its own
SOURCE = Path(package.__file__).parent


def assert_only_text(printed: str) -> None:
    lines = printed.split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert not any(line.startswith("forged") for line in lines)


def without_styles(printed: str) -> str:
    """Without what rich writes of its own: colours, moving the cursor, hiding it."""
    return re.sub(r"\x1b\[[0-9;]*[mAK]|\x1b\[\?25[hl]|\r", "", printed)


# One way out


def test_nothing_else_prints() -> None:
    """Every module goes through `printing`; writing past it would be a second way."""
    forbidden = re.compile(
        r"print|Console|csv\.(writer|DictWriter)|typer\.s?echo|sys\.(stdout|stderr)(\.buffer)?\.write(lines)?"
    )
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and forbidden.fullmatch(ast.unparse(node.func)):
                found.add(path.name)
    assert found == {"printing.py"}


def test_a_console_lets_through_text_its_own_styles_and_nothing_else() -> None:
    file = io.StringIO()
    terminal = SafeConsole(file=file, force_terminal=True, color_system="truecolor", width=200)
    say(EVIL, f"of {EVIL}", to=terminal)
    table = NamesTable(EVIL, "name")
    table.add_row(EVIL, f"[bold]{EVIL}")
    terminal.print(table)
    terminal.print(EVIL, style="red")
    printed = file.getvalue()
    assert "\x1b[31m" in printed  # ours
    assert "owned\x07" not in printed and "\x9b" not in printed and "\x1b]" not in printed and "\u202e" not in printed
    assert printed.count("[red]") == 6 and "[bold]" in printed
    for line in without_styles(printed).split("\n"):
        assert line.isprintable()
    assert without_styles(printed).split("\n")[:2] == [printable(EVIL), f"of {printable(EVIL)}"]


def test_bars_show_names_as_text() -> None:
    file = io.StringIO()
    terminal = SafeConsole(file=file, force_terminal=True, width=200)
    with ProgressBar(terminal) as display:
        display.on_method(EVIL, 1, 2)
    run = PlannedRun.__new__(PlannedRun)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlannedRun, "__str__", lambda _: EVIL)
        patch.setattr(PlannedRun, "__hash__", lambda _: 1)
        with GridDisplay(terminal) as grid:
            grid.on_start(2, 0)
            grid.on_run(run, 3)
            grid.bars.refresh()
            grid.on_broken(run, EVIL)
    printed = file.getvalue()
    assert "[red]" in printed
    assert not re.search("\x1b\\]|\x9b|\x07|\u202e", printed)


# What commands print


@pytest.fixture
def evil(tiny_trunk: Trunk, here: Path) -> Path:
    images, labels = make_task(["a", "b"], 10)
    learner = Learner("slda", trunk=tiny_trunk).learn(images, [f"{name}{EVIL}" for name in labels])
    learner.save(here / "evil.oar")
    return here / "evil.oar"


def photos(folder: Path, *names: str, count: int = 6) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(make_task([name], count)[0]):
            Image.fromarray(image).resize((40, 40)).save(folder / name / f"{number}{EVIL}.png")
    return folder


def test_learning_looking_and_predicting_print_names_as_text(
    oarlock: Command, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = photos(here / f"in{EVIL}", f"ant{EVIL}", f"=bee{EVIL}")
    model = f"model{EVIL}.oar"
    assert oarlock("learn", model, folder, "--method", "slda", "--trunk", "vit_pico") == 0
    assert oarlock("learn", model, folder) == 0  # skips what is known
    photos(here / "more", f"cow{EVIL}")
    assert oarlock("learn", model, here / "more", "--json") == 0
    (here / "more" / f"cow{EVIL}" / f"8{EVIL}.png").write_text("not an image")
    assert oarlock("learn", f"other{EVIL}.oar", here / "more", "--method", "slda", "--trunk", "vit_pico") == 2
    for options in (["inspect"], ["verify"], ["inspect", "--json"]):
        assert oarlock(options[0], model, *options[1:]) == 0
    for style in ("--top=2", "--json", "--csv"):
        assert oarlock("predict", model, folder, here / "more", f"gone{EVIL}.jpg", style) == 1
    oarlock("unknowns", model, folder, f"out{EVIL}", "--accept", 0.1, "--groups", 1)
    out, err = capfd.readouterr()
    assert_only_text(out)
    assert_only_text(err)
    assert out.count("[red]") > 20 and "gone" in err and "8\N{REPLACEMENT CHARACTER}" in err


def test_json_is_exact(oarlock: Command, evil: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = photos(here / "in", f"ant{EVIL}", count=1)
    assert oarlock("predict", evil, folder, "--accept", 1, "--json") == 0
    out = capfd.readouterr().out
    assert out.isascii()
    answer = json.loads(out)
    assert answer["path"] == str(folder / f"ant{EVIL}" / f"0{EVIL}.png")
    assert oarlock("inspect", evil, "--json") == 0
    facts = json.loads(capfd.readouterr().out)
    assert [row["label"] for row in facts["tasks"][0]["classes"]] == [f"a{EVIL}", f"b{EVIL}"]


def test_runs_their_reports_and_comparisons_print_names_as_text(
    oarlock: Command, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = photos(here / f"in{EVIL}", *(f"{name}{EVIL}" for name in "abcd"), count=10)
    runs = [f"run{EVIL}", f"second{EVIL}"]
    for seed, out in enumerate(runs):
        small = ["--method", "slda", "--trunk", "vit_pico", "--threads", 1, "--seed", seed]
        assert oarlock("run", folder, *small, "--out", out) == 0
    assert oarlock("report", runs[0]) == 0
    assert oarlock("compare", *runs) == 0
    assert oarlock("compare", runs[0], runs[1], "--json") == 0
    assert oarlock("compare", f"gone{EVIL}") == 2
    assert oarlock("table", f"gone{EVIL}") == 2
    assert oarlock("theory", f"gone{EVIL}") == 2
    out, err = capfd.readouterr()
    assert_only_text(out)
    assert_only_text(err)
    assert "[red]" in out and err.count("gone") >= 3


@pytest.mark.parametrize(
    "arguments", [[f"-{EVIL}"], [EVIL], ["predict", f"--{EVIL}"], ["predict", "m", "--batch", EVIL]]
)
def test_what_is_no_option_or_command_is_named_as_text(
    arguments: list[str], oarlock: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    assert oarlock(*arguments) == 2
    assert_only_text(capfd.readouterr().err)


def test_facts_from_a_file_are_text(tiny_trunk: Trunk, here: Path) -> None:
    images, labels = make_task(["a", "b"], 10)
    learner = Learner("oar", trunk=tiny_trunk, epochs=1, wp_epochs=1, ood_epochs=1, memory=4)
    learner.learn(images, labels, when=datetime(2024, 1, 1, tzinfo=UTC)).save(here / "a.oar")
    file = io.StringIO()
    terminal = SafeConsole(file=file, width=100)
    facts = inspect(here / "a.oar")
    facts["tasks"][0]["learned"] = facts["method"] = facts["trunk"]["name"] = facts["trunk"]["overlap"] = EVIL
    print_inspection(facts, terminal)
    (task,) = check_tasks(learner)
    task = task._replace(
        recorded_on={"cpu": EVIL, "torch": EVIL},
        classes=[EVIL],
        check=task.check._replace(changed=[EVIL], changed_values=1, same_machine=False),
    )
    print_verification(Verification(here / EVIL, EVIL, [task]), terminal)
    print_verification(Verification(here / EVIL, EVIL, []), terminal)
    assert_only_text(file.getvalue())
    assert file.getvalue().count("[red]") >= 6


def test_a_warning_is_a_line_of_text(
    oarlock: Command, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import warnings

    monkeypatch.setattr("oarlock.modelfile.inspect.inspect", lambda *_: warnings.warn(EVIL, stacklevel=1) or {})
    monkeypatch.setattr("oarlock.report.model_terminal.print_inspection", lambda *_: None)
    assert oarlock("inspect", "a.oar") == 0
    err = capfd.readouterr().err
    assert_only_text(err)
    assert err == f"oarlock: note: {printable(EVIL)}\n"


# CSV


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r="])
def test_no_cell_of_csv_is_a_formula(start: str, capfd: pytest.CaptureFixture[str]) -> None:
    label = f"{start}cmd|' /C calc'!A0"
    answer = Answer(Path(f"{start}x.png"), label, 0.5, 1, -0.25, [(label, 0.5)])
    AnswerPrinter(SafeConsole(), "csv", [label], 1).print([answer])
    out = capfd.readouterr().out
    assert_only_text(out)
    (row,) = csv.DictReader(io.StringIO(out))
    assert [text for text in row.values() if text[:1] in ("=", "+", "@", "\t", "\r")] == []
    assert row["label"][0] in "'\N{REPLACEMENT CHARACTER}" and row["path"][0] in "'\N{REPLACEMENT CHARACTER}"
    assert row["score"] == "-0.25"


def test_numbers_in_csv_stay_numbers() -> None:
    assert csv_line([-3, -0.5, 7, None, True, "plain"]) == "-3,-0.5,7,,True,plain\n"


def test_a_class_name_that_is_a_number_is_no_formula_and_unknown_has_no_label() -> None:
    assert csv_line([np.str_("-1"), None]) == "'-1,\n"


def test_file_names_of_any_bytes_are_text_in_errors(
    oarlock: Command, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"\x9b\xff.oar")
    (here / name).write_bytes(b"nothing")
    assert oarlock("inspect", name) == 2
    assert_only_text(capfd.readouterr().err)
