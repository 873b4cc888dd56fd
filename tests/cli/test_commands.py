"""The command line: a user's mistake is one line and exit code 2, and leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import Command
from experiments.test_run import OPTIONS, assert_same_run, make_archive
from oarlock.methods import methods

pytestmark = pytest.mark.usefixtures("here")
SETTINGS = [part for key, value in OPTIONS.items() for part in ("--set", f"{key}={value}")]
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from oarlock.cli import main; main()"
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archive(tmp_path_factory.mktemp("data") / "four.npz")


@pytest.fixture(scope="module")
def finished(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess]:
    """A whole run by the command, its output piped."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    command = [sys.executable, "-c", START, *run_arguments(archive, out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ)
    assert done.returncode == 0, done.stderr
    return out, done


def run_arguments(archive: Path, out: Path) -> list[str]:
    return ["run", str(archive), "--memory", "8", "--threads", "1", *SETTINGS, "--out", str(out)]


# A run


def test_a_piped_run_prints_its_numbers_without_control_characters(
    finished: tuple[Path, subprocess.CompletedProcess],
) -> None:
    out, done = finished
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\x9b]", done.stdout)
    assert done.stderr == ""
    assert "after task 1/2" in done.stdout
    assert "after task 2/2" in done.stdout
    result = json.loads((out / "result.json").read_text())
    assert f"{result['aca']:.1f}" in done.stdout
    assert str(out / "model.oar") in done.stdout.replace("\n", "")
    assert (out / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_the_options_of_the_command_are_the_runs(finished: tuple[Path, subprocess.CompletedProcess]) -> None:
    config = json.loads((finished[0] / "config.json").read_text())
    assert OPTIONS.items() <= config["options"].items()
    assert (config["memory"], config["threads"], config["increment"], config["order"]) == (8, 1, 2, 0)


def test_resuming_a_finished_run_prints_its_result_again(
    finished: tuple[Path, subprocess.CompletedProcess], oarlock: Command, capsys: pytest.CaptureFixture
) -> None:
    out, done = finished
    assert oarlock("run", "--resume", "--out", out) == 0
    assert done.stdout.splitlines()[-3:] == capsys.readouterr().out.splitlines()[-3:]


def test_report_is_written_again(
    finished: tuple[Path, subprocess.CompletedProcess], oarlock: Command, capsys: pytest.CaptureFixture
) -> None:
    page = finished[0] / "report.html"
    before = page.read_text()
    page.unlink()
    assert oarlock("report", finished[0]) == 0
    assert page.read_text() == before
    assert "report.html" in capsys.readouterr().out


def test_without_out_a_new_directory_is_made_under_runs(archive: Path, oarlock: Command, here: Path) -> None:
    (here / "runs" / "oar").mkdir(parents=True)
    arguments = run_arguments(archive, here)[:-2]
    assert oarlock(*arguments, "--increment", "4", "--set", "epochs=1") == 0
    assert (here / "runs" / "oar-2" / "result.json").exists()


def test_increments_and_orders_can_be_lists(archive: Path, oarlock: Command, here: Path) -> None:
    assert oarlock(*run_arguments(archive, here / "out"), "--increment", "1,2", "--order", "d,a,b") == 0
    assert json.loads((here / "out" / "result.json").read_text())["tasks"] == [["d"], ["a", "b"]]


# Mistakes


def bad_archive(folder: Path) -> Path:
    (folder / "bad.npz").write_bytes(b"PK\x03\x04 and then nothing")
    return folder / "bad.npz"


def archive_without_tests(folder: Path) -> Path:
    np.savez(folder / "half.npz", train_x=np.zeros((2, 8, 8, 3), np.uint8), train_y=[0, 1])
    return folder / "half.npz"


def lonely(folder: Path) -> Path:
    (folder / "photo.jpg").write_bytes(b"x")
    return folder / "photo.jpg"


MISTAKES: dict[str, tuple[list, str]] = {
    "unknown method": (["--method", "rowe"], "rowe"),
    "unknown option": (["--set", "epoch=3"], "epoch"),
    "option without a value": (["--set", "epochs"], "epochs"),
    "option that is no number": (["--set", "epochs=many"], "many"),
    "option that is none of the choices": (["--set", "optimiser=adam"], "adam"),
    "increment that is no number": (["--increment", "two"], "two"),
    "increment of nothing": (["--increment", "0"], "increment"),
    "increment beyond the classes": (["--increment", "3,3"], "4"),
    "negative increment": (["--increment=-2"], "-2"),
    "empty increment": (["--increment", ""], "increment"),
    "order that does not exist": (["--order", "6"], "6"),
    "order with a stranger": (["--order", "a,z"], "z"),
    "order with a class named twice": (["--order", "a,b,a"], "a"),
    "memory too small": (["--memory", "3"], "memory"),
    "no memory": (["--memory", "0"], "memory"),
    "memory as an option": (["--set", "memory=8"], "memory"),
    "calibration of everything": (["--calibration", "1"], "calibration"),
    "validation of everything": (["--validation", "1"], "validation"),
    "unknown trunk": (["--trunk", "vit_picolo"], "vit_picolo"),
    "weights for the bundled trunk": (["--weights", "w.pth"], "w.pth"),
    "no threads": (["--threads", "0"], "threads"),
    "unknown device": (["--device", "gramophone"], "gramophone"),
}


def assert_one_line_about(word: str, capsys: pytest.CaptureFixture) -> None:
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("oarlock: ")
    assert printed.err.count("\n") == 1
    assert printed.err.endswith("\n")
    assert word in printed.err


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2_and_writes_nothing(
    mistake: str, archive: Path, oarlock: Command, here: Path, capsys: pytest.CaptureFixture
) -> None:
    arguments, word = MISTAKES[mistake]
    assert oarlock(*run_arguments(archive, here / "out"), *arguments) == 2
    assert_one_line_about(word, capsys)
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (lambda folder: folder / "missing.npz", "missing.npz"),
        (lambda folder: folder / "missing", "missing"),
        (bad_archive, "bad.npz"),
        (archive_without_tests, "half.npz"),
        (lonely, "photo.jpg"),
        (lambda folder: folder, "no class"),
    ],
    ids=["no archive", "no folder", "a damaged archive", "half an archive", "a photo", "an empty folder"],
)
def test_a_bad_source_is_one_line_and_exit_code_2_and_writes_nothing(
    source: Callable[[Path], Path],
    word: str,
    oarlock: Command,
    here: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    assert oarlock("run", source(folder), "--out", here / "out") == 2
    assert_one_line_about(word, capsys)
    assert not list(here.iterdir())


def test_a_run_of_nothing_is_refused(oarlock: Command, here: Path, capsys: pytest.CaptureFixture) -> None:
    for arguments in ((), ("--resume",), ("--out", "x")):
        assert oarlock("run", *arguments) == 2
        assert_one_line_about("say what to learn", capsys)
    assert oarlock("run", "--resume", "--out", "x") == 2
    assert_one_line_about("no run in", capsys)
    assert not list(here.iterdir())


def test_a_directory_in_use_is_refused(
    archive: Path,
    finished: tuple[Path, subprocess.CompletedProcess],
    oarlock: Command,
    capsys: pytest.CaptureFixture,
) -> None:
    assert oarlock(*run_arguments(archive, finished[0])) == 2
    assert_one_line_about("--resume", capsys)


def test_resuming_with_other_settings_is_refused_by_name(
    archive: Path,
    finished: tuple[Path, subprocess.CompletedProcess],
    oarlock: Command,
    capsys: pytest.CaptureFixture,
) -> None:
    assert oarlock(*run_arguments(archive, finished[0]), "--resume", "--seed", "3") == 2
    assert_one_line_about("seed", capsys)


def test_a_report_of_nothing_or_of_half_a_run_is_refused(
    finished: tuple[Path, subprocess.CompletedProcess], oarlock: Command, here: Path, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock("report", here / "missing") == 2
    assert_one_line_about("missing", capsys)
    unfinished = here / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.json").write_bytes((finished[0] / "config.json").read_bytes())
    assert oarlock("report", unfinished) == 2
    assert_one_line_about("unfinished", capsys)
    (unfinished / "evaluation.safetensors").write_bytes((finished[0] / "evaluation.safetensors").read_bytes())
    (unfinished / "result.json").write_text('{"method": "row"')
    assert oarlock("report", unfinished) == 2
    assert_one_line_about("result.json", capsys)
    assert [path.name for path in here.rglob("*")].count("report.html") == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["sing"], "sing"),
        (["run", "sample", "--loud"], "--loud"),
        (["run", "sample", "--memory", "much"], "--memory"),
    ],
    ids=["command", "option", "value"],
)
def test_what_the_command_does_not_know_is_refused_without_a_traceback(
    arguments: list[str], word: str, oarlock: Command, here: Path, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert word in printed.err
    assert "Traceback" not in printed.err
    assert not list(here.iterdir())


def test_a_mistake_in_a_real_process_is_one_line_too(here: Path) -> None:
    command = [sys.executable, "-c", START, "run", "missing.npz", "--out", "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"oarlock: .*missing\.npz.*\n", done.stderr)
    assert not list(here.iterdir())


# Help


@pytest.mark.parametrize("command", [(), ("run",), ("report",), ("compare",), ("demo",)])
def test_help_works(command: tuple, oarlock: Command, capsys: pytest.CaptureFixture) -> None:
    assert oarlock(*command, "--help") == 0
    printed = capsys.readouterr()
    assert "Usage" in printed.out
    assert printed.err == ""


# Ctrl-C


def test_ctrl_c_says_how_to_go_on_and_going_on_ends_as_if_nothing_had_happened(
    archive: Path,
    finished: tuple[Path, subprocess.CompletedProcess],
    oarlock: Command,
    here: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    out = here / "out"
    command = [sys.executable, "-c", START, *run_arguments(archive, out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ, start_new_session=True
    )
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline and not (out / "events.jsonl").exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert errors == ""
    assert f"oarlock run --resume --out {out}" in printed
    assert not (out / "result.json").exists()
    assert oarlock("run", "--resume", "--out", out) == 0
    assert_same_run(out, finished[0])


def test_a_resumed_run_takes_no_other_settings(
    finished: tuple[Path, subprocess.CompletedProcess], oarlock: Command, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock("run", "--resume", "--out", str(finished[0]), "--seed", "99") == 2
    assert_one_line_about("leave out seed", capsys)


def test_methods_are_listed_with_what_they_need(oarlock: Command, capsys: pytest.CaptureFixture) -> None:
    assert oarlock("methods", "--json") == 0
    listed = {line["method"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(listed) == set(methods.all())
    assert listed["row"]["memory"] and listed["row"]["protected"] and "ICML 2023" in listed["row"]["paper"]
    assert not listed["slda"]["memory"] and not listed["slda"]["protected"]
    assert oarlock("methods") == 0
    assert "hat" in capsys.readouterr().out


# Stopped before it began


@pytest.mark.parametrize("module", ["typer", "torch", "oarlock.learner"])
def test_ctrl_c_while_modules_are_imported_is_quiet(module: str) -> None:
    code = f"""
import sys
class Stop:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
sys.argv = ["oarlock", "inspect", "x.oar"]
from oarlock.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=os.environ)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("arguments", [["table"], ["inspect", "x.oar"], ["export", "x.oar", "--onnx", "x.onnx"]])
def test_ctrl_c_in_any_command_is_quiet(
    arguments: list[str], oarlock: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in ("oarlock.report.tables.find_columns", "oarlock.modelfile.inspect.inspect", "oarlock.learner.load"):
        monkeypatch.setattr(name, stop)
    assert oarlock(*arguments) == 130
    assert capsys.readouterr() == ("", "")


def test_output_that_goes_nowhere_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", START, "methods"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, env=os.environ)
    assert (done.returncode, done.stderr) == (2, "oarlock: standard output: No space left on device\n")
