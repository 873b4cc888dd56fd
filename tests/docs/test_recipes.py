"""The recipes of CONTRIBUTING.md as they stand there: a copy of the package, one new file, what is tried."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oarlock

ROOT = Path(__file__).parents[2]
RECIPES = dict(
    re.findall(
        r"^### (?:A|An) ([\w ]+)\n(.*?)(?=^##)", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
    )
)
FILE = re.compile(r"`src/(oarlock/[\w/]+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)
TRIED = re.compile(r"Try it:\n\n```(python|sh)\n(.*?)```", re.DOTALL)
ONE_FILE = ["detector", "protector", "trunk family", "data set", "method", "command"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that nobody minds being added to, and the command of it."""
    here = tmp_path_factory.mktemp("checkout")
    source = Path(oarlock.__file__).parent
    shutil.copytree(source, here / "oarlock", ignore=shutil.ignore_patterns("__pycache__"))
    command = here / "bin" / "oarlock"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom oarlock.cli import main\nmain()\n")
    command.chmod(0o755)
    return here


def run(package: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(package / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    paths = {"PYTHONPATH": str(package), "PATH": path}
    return subprocess.run(command, cwd=folder, env=os.environ | paths, capture_output=True, text=True, check=False)


def test_every_recipe_is_tried() -> None:
    assert set(RECIPES) == {*ONE_FILE, "protocol"}


@pytest.mark.parametrize("recipe", ONE_FILE)
def test_one_new_file_is_all_it_takes(recipe: str, package: Path, tmp_path: Path) -> None:
    ((name, code),) = FILE.findall(RECIPES[recipe])
    ((language, tried),) = TRIED.findall(RECIPES[recipe])
    file = package / name
    assert not file.exists(), "the recipe is to add a file, not to change one"
    file.write_text(code, encoding="utf-8")
    try:
        shell = [sys.executable, "-c"] if language == "python" else ["bash", "-e", "-c"]
        done = run(package, tmp_path, *shell, tried)
    finally:
        file.unlink()
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_the_new_file_there_is_nothing_to_try(package: Path, tmp_path: Path) -> None:
    ((_, tried),) = TRIED.findall(RECIPES["detector"])
    done = run(package, tmp_path, sys.executable, "-c", tried)
    assert done.returncode == 1 and "there is no detector 'cosine'" in done.stderr


@pytest.mark.parametrize("recipe", ONE_FILE)
def test_a_recipe_passes_the_checks_of_the_house(recipe: str, tmp_path: Path) -> None:
    ((name, code),) = FILE.findall(RECIPES[recipe])
    file = tmp_path / Path(name).name
    file.write_text(code, encoding="utf-8")
    checked = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), str(file)]
    done = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
