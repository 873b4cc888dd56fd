"""The Containerfile, as far as it can be checked unbuilt: what it copies is there, what it says is understood."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from conftest import Command

ROOT = Path(__file__).parents[2]
FILE = (ROOT / "Containerfile").read_text(encoding="utf-8")


def words(instruction: str) -> list[str]:
    ((found),) = re.findall(rf"^{instruction} (\[.*\])$", FILE, re.MULTILINE)
    return json.loads(found)


def test_the_package_can_be_made_of_what_is_copied() -> None:
    copied = {name for line in re.findall(r"^COPY (?!--)(.*) \S+$", FILE, re.MULTILINE) for name in line.split()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert copied >= {"pyproject.toml", "src", project["readme"], *project["license-files"]}
    let_in = (ROOT / ".containerignore").read_text(encoding="utf-8").split("\n")
    assert all((ROOT / name).exists() and f"!{name}" in let_in for name in copied)


def test_its_python_is_one_we_support() -> None:
    assert set(re.findall(r"^FROM \S+/python:([\d.]+)-slim", FILE, re.MULTILINE)) == {"3.12"}
    assert '"3.12"' in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")


def test_its_command_is_understood(oarlock: Command, here: Path, capsys: pytest.CaptureFixture) -> None:
    command = [word.replace("/models", str(here)) for word in words("CMD")]
    assert words("ENTRYPOINT")[0].endswith("/oarlock")
    assert oarlock(*command) == 2  # without a token it would let in everybody
    assert "--token" in capsys.readouterr().err
