"""The wheel, as a user has it: what it brings, how large it is, and what a type checker makes of it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
MOST_BYTES = 15_000_000
USER = """
import oarlock

learner = oarlock.Learner("slda", memory=20)
reveal_type(learner.score("photos", ["a"]))
reveal_type(oarlock.load("shop.oar"))
learner.learn("photos", memory=3)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of a copy, since making it leaves things behind."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "out"))
    for name in PARTS:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(out), str(source)], check=True, capture_output=True)
    (made,) = out.glob("*.whl")
    return made


@pytest.mark.slow
def test_it_has_all_that_is_read_at_run_time_and_is_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        inside = {name.removeprefix("oarlock/") for name in content.namelist()}
    package = ROOT / "src" / "oarlock"
    wanted = {
        file.relative_to(package).as_posix() for file in package.rglob("*.*") if "__pycache__" not in file.parts
    }
    assert wanted - inside == set()
    assert not [name for name in inside if name.startswith("tests")]
    assert wheel.stat().st_size < MOST_BYTES


@pytest.mark.slow
def test_a_users_type_checker_sees_its_types(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    paths = {"base": str(tmp_path / "env"), "platbase": str(tmp_path / "env")}
    packages = Path(sysconfig.get_path("purelib", vars=paths))
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # torch and the rest
    script = tmp_path / "user.py"
    script.write_text(USER)
    python = tmp_path / "env" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--python-executable", str(python), "--strict", script.name]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    told = [line.partition(":")[2] for line in done.stdout.splitlines()]
    assert told[0] == '5: note: Revealed type is "float"', done.stdout
    assert told[1] == '6: note: Revealed type is "oarlock.learner.Learner"'
    assert 'Unexpected keyword argument "memory"' in told[2] and "Found 1 error" in done.stdout
