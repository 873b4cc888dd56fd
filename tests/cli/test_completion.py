"""What TAB completes, and how a shell comes to know of it."""

import os
import subprocess
import sys

import pytest

COMMAND = "from oarlock.cli import main; import sys; sys.argv[0] = 'oarlock'; main()"


def run(*arguments: str, **variables: str) -> str:
    command = [sys.executable, "-c", COMMAND, *arguments]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False).stdout


def completed(words: str) -> list[str]:
    asked = {"_OARLOCK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return run(**asked).split()


@pytest.mark.parametrize(("shell", "expected"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete -")])
def test_a_script_comes_out(shell: str, expected: str) -> None:
    script = run(_OARLOCK_COMPLETE=f"source_{shell}")
    assert expected in script and f"_OARLOCK_COMPLETE=complete_{shell}" in script


def test_commands_and_options_are_completed() -> None:
    assert completed("oarlock pre") == ["predict"]
    assert completed("oarlock run --mem") == ["--memory"]


def test_help_says_nothing_of_it() -> None:
    told = run("--help")
    assert "predict" in told and "completion" not in told


def test_what_takes_seconds_is_not_imported_for_a_tab() -> None:
    heavy = "torch", "timm", "sklearn", "matplotlib", "torchvision"
    code = f"import sys, oarlock.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
