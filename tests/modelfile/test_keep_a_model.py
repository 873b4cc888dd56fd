"""The commands of docs/how-to/keep-a-model.md, with the output that stands below them."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from conftest import Command
from modelfile.conftest import Teach
from oarlock.data.sources import open_source

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keep-a-model.md"
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
MONTHS = {
    "january": ["airplane", "automobile"],
    "february": ["bird", "cat"],
    "march": ["deer", "dog"],
    "april": ["cat", "frog"],
}


def steps() -> list[tuple[str, str]]:
    """Every command of the page, and what it prints."""
    parts = [part for block in BLOCKS for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def masked(text: str) -> list[str]:
    """The words, without what depends on the day and on the number of images: numbers and the widths of columns."""
    text = re.sub(r"[\d.,]*\d[\d.,]*", "#", text)
    text = re.sub(r"(?:no|#) wings?", "# wings", re.sub(r"[KM]B", "B", re.sub(r"─+", "─", text)))
    return text.split()


def test_the_page_is_true(
    oarlock: Command, interrupted: Teach, here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    source = open_source("sample").train.at_most(8)
    for month, names in MONTHS.items():
        for name in names:
            (here / "photos" / month / name).mkdir(parents=True)
            for number, image in enumerate(source.of([name]).images):
                Image.fromarray(image).save(here / "photos" / month / name / f"{number}.jpg")
    assert len(steps()) >= 8
    for command, expected in steps():
        program, *arguments = shlex.split(command)
        if program != "oarlock":
            subprocess.run(command, shell=True, check=True)
        elif expected.startswith("^C"):
            assert interrupted("checkpoint", 6, *arguments[1:]) == 130
            expected = expected.removeprefix("^C")
        else:
            assert oarlock(*arguments) == 0
        assert masked(capsys.readouterr().out) == masked(expected), command
