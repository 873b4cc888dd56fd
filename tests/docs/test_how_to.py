"""The commands of how-to pages and of the tutorial, with the output that stands below them."""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from conftest import Command, make_task

FOLDER = Path(__file__).parents[2] / "docs"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (FOLDER / page).read_text(encoding="utf-8"), re.DOTALL)


def steps(page: str) -> list[tuple[str, str]]:
    """Every command of a page, and what it prints."""
    parts = [part for block in blocks(page, "console") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def shape(command: str, text: str) -> list[str]:
    """What must be the same on every machine: of answers the paths, of groups how many images were looked at."""
    lines = text.splitlines()
    if command == "predict":
        return [re.findall(r"\b[\w/-]+\.jpg", line)[0] for line in lines]
    if command == "run":  # what comes below names the folder it was run in
        lines = lines[: 1 + next(row for row, line in enumerate(lines) if line.startswith("comparison: "))]
        return [re.sub(r"[\d. ]*\d", " #", line) for line in lines]
    if command == "unknowns":
        return [re.sub(r"^\d+", "#", lines[0]), lines[-1]]
    text = re.sub("─+", "─", re.sub(r"[KM]B", "B", re.sub(r"[\d.,]*\d", "#", text)))
    return text.replace("no wings", "# wings").replace("# wing\n", "# wings\n").split()


def test_the_page_is_true(
    oarlock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    preparation, in_python = blocks("how-to/your-images.md", "python")
    exec(compile(preparation, "your-images.md", "exec"), {})
    done = follow("how-to/your-images.md", oarlock, capsys)
    assert "unknown  " in done[3]  # some of the inbox was rejected,
    assert "apple  " not in done[3]
    assert "apple  " in done[-1] and "skyscraper  " in done[-1]  # and is known once it was learned
    found: dict = {}
    exec(compile(in_python, "your-images.md", "exec"), found)
    assert {"apple", "skyscraper"} <= set(found["answers"]) and len(found["answers"]) == 60


def test_the_page_about_scikit_learn_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks("how-to/scikit-learn.md", "python")), "scikit-learn.md", "exec"), {})
    assert Path("digits.oar").exists()


def test_the_experiment_of_another_library_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("continuum", reason="no continuum", exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    x, y = make_task([0, 1, 2, 3], 6, size=32)
    given = {"trained_on": (x, np.array(y)), "tested_on": (x, np.array(y))}
    (code,) = blocks("how-to/your-data.md", "python")
    exec(compile(code, "your-data.md", "exec"), given)
    assert given["result"].aca > 50


def test_a_model_is_corrected_as_the_page_says(
    oarlock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    preparation, in_python = blocks("how-to/correct-a-model.md", "python")
    exec(compile(preparation, "correct-a-model.md", "exec"), {})
    assert len(follow("how-to/correct-a-model.md", oarlock, capsys)) >= 10
    exec(compile(in_python, "correct-a-model.md", "exec"), {})


def follow(page: str, oarlock: Command, capsys: pytest.CaptureFixture) -> list[str]:
    """Do what a page says; return what was printed."""
    done: list[str] = []
    for line, expected in steps(page):
        program, *arguments = shlex.split(line)
        if program == "oarlock":
            assert oarlock(*arguments) == 0, line
            printed = capsys.readouterr().out
            assert shape(arguments[0], printed) == shape(arguments[0], expected), line
            done.append(printed)
        else:
            subprocess.run(line, shell=True, check=True)
    return done


def test_what_is_recommended_is_a_table_like_the_page_s(
    oarlock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (preparation,) = blocks("how-to/which-method.md", "python")
    exec(compile(preparation, "which-method.md", "exec"), {})
    ((line, expected),) = steps("how-to/which-method.md")
    program, *arguments = shlex.split(line)
    assert program == "oarlock" and oarlock(*arguments) == 0
    lines, theirs = (text.splitlines() for text in (capsys.readouterr().out, expected))
    assert len(lines) == len(theirs) and lines[:2] == theirs[:2] and lines[2].split() == theirs[2].split()
    assert {tuple(row.split()[:2]) for row in lines[4:6]} == {tuple(row.split()[:2]) for row in theirs[4:6]}
    without_numbers = [re.sub(r"[\d.]*\d", "#", text[-2]) for text in (lines, theirs)]
    assert without_numbers[0] == without_numbers[1]  # on the same photos
    command = shlex.split(lines[-1].removeprefix("try it: "))
    assert command[:4] == ["oarlock", "learn", "model.oar", "photos"]


@pytest.mark.slow
def test_the_tutorial_is_true(
    oarlock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (preparation,) = blocks("tutorial.md", "python")
    exec(compile(preparation, "tutorial.md", "exec"), {})
    done = follow("tutorial.md", oarlock, capsys)
    _, finetune, slda, oar = re.split(r"method \d/3: ", done[0])
    assert " 0.0    0.0 " in finetune  # all of both earlier tasks
    assert all(
        float(line.split()[-3]) > 70 for text in (slda, oar) for line in text.splitlines() if "3/3: acc" in line
    )
    asked, again = done[4], done[6]
    assert asked.count("unknown  ") >= 4 and again.count("apple  ") == 3 and again.count("unknown  ") <= 2
    assert "every promise holds" in done[7]


@pytest.mark.slow
def test_what_other_libraries_call_something_else_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    for block in blocks("migrate.md", "python"):
        exec(compile(block, "migrate.md", "exec"), found)
    assert found["result"].aca > 40 and len(found["later"].classes_) == 11
