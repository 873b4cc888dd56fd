"""Several methods on one stream: who is run, in which directory, and how it goes on after a stop."""

import json
from functools import partial
from pathlib import Path

import pytest

from conftest import Command
from experiments.test_run import assert_same_run, make_archive
from oarlock import OarlockError
from oarlock.experiments import series as several
from oarlock.experiments.config import RunConfig, saved_config
from oarlock.experiments.run import NoDisplay, run
from oarlock.methods import methods
from oarlock.report.progress import ProgressBar

run_several = partial(several.run_several, report=lambda directory: None)


class Heard(NoDisplay):
    """Remembers which methods were announced."""

    def __init__(self) -> None:
        self.methods: list[tuple[str, int, int]] = []

    def on_method(self, name: str, number: int, count: int) -> None:
        self.methods.append((name, number, count))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archive(tmp_path_factory.mktemp("data") / "four.npz")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Runs are only written down: the directories, in the order in which they were asked for."""
    directories: list[Path] = []
    monkeypatch.setattr(several, "run", lambda config, out, **_: directories.append(out))
    return directories


def names(method: str) -> list[str]:
    return [config.method for config in several.expand(RunConfig("sample", method=method))]


def arguments(archive: Path, methods: str = "slda,finetune") -> list[object]:
    return ["run", archive, "--method", methods, "--memory", 8, "--threads", 1, "--out", "out"]


# Which methods


def test_a_variant_shares_the_training_of_its_method() -> None:
    assert set(names("all")) == set(methods.all()) - {"row", "row-wp", "row-wp-md"}
    assert names("row,row-wp,slda") == ["row", "slda"]
    assert names("slda, row-wp") == ["slda", "row-wp"]  # nobody else trains it here
    assert len(names("row-wp,row-wp")) == 1


def test_a_shared_training_is_done_once(archive: Path, tmp_path: Path, started: list[Path]) -> None:
    configs = several.expand(RunConfig(str(archive), method="row,row-wp,slda", memory=8, threads=1))
    heard = Heard()
    directories = run_several(configs, tmp_path / "out", display=heard)
    assert directories == started == [tmp_path / "out" / "row", tmp_path / "out" / "slda"]
    assert heard.methods == [("row", 1, 2), ("slda", 2, 2)]


# Runs


def test_a_list_of_methods_is_run_compared_and_resumed(
    archive: Path, oarlock: Command, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert oarlock(*arguments(archive)) == 0
    printed = capsys.readouterr().out
    assert "method 1/2: slda\n" in printed and "method 2/2: finetune\n" in printed
    assert "2 methods on" in printed and "after the last task" in printed
    results = {name: json.loads(Path("out", name, "result.json").read_text()) for name in ("slda", "finetune")}
    markdown = Path("out", "compare.md").read_text()
    for name, result in results.items():
        assert result["method"] == name and result["memory"] == 8
        assert f"{result['aca']:.1f}" in printed and f"{result['aca']:.1f}" in markdown
        assert Path("out", name, "report.html").exists()
    runs = json.loads(Path("out", "runs.json").read_text())
    assert runs["methods"] == ["slda", "finetune"]
    assert runs["settings"]["source"] == str(archive) and "method" not in runs["settings"]

    before = {name: Path("out", name, "model.oar").stat().st_mtime_ns for name in results}
    for path in ("compare.html", "slda/report.html"):
        Path("out", path).unlink()
    assert oarlock("run", "--resume", "--out", "out") == 0
    assert Path("out", "compare.html").exists() and Path("out", "slda", "report.html").exists()
    assert before == {name: Path("out", name, "model.oar").stat().st_mtime_ns for name in results}
    assert capsys.readouterr().out.splitlines()[-8:] == printed.splitlines()[-8:]

    monkeypatch.chdir("out")
    assert oarlock("compare", "slda", "finetune", "--json") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_ctrl_c_says_how_to_go_on_and_going_on_ends_as_if_nothing_had_happened(
    archive: Path, oarlock: Command, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[object] = []
    quick = ["--set", "epochs=1", "--set", "adapt_last=1", "--set", "batch=8"]

    def stop_at_the_third(display: ProgressBar, record: object) -> None:
        evaluated.append(record)
        if len(evaluated) == 3:
            raise KeyboardInterrupt  # after joint's first task

    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "on_evaluated", stop_at_the_third)
        assert oarlock(*arguments(archive, "finetune,joint"), *quick) == 130
    assert capsys.readouterr().out.endswith("stopped; continue with: oarlock run --resume --out out\n")
    assert Path("out", "finetune", "result.json").exists() and not Path("out", "joint", "result.json").exists()
    assert oarlock("run", "--resume", "--out", "out") == 0
    run(saved_config(Path("out", "joint")), Path("alone"))
    assert_same_run(Path("out", "joint"), Path("alone"))


def test_methods_can_be_added_to_runs_that_are_resumed(archive: Path, tmp_path: Path, started: list[Path]) -> None:
    def configs(method: str) -> list[RunConfig]:
        return several.expand(RunConfig(str(archive), method=method, memory=8, threads=1))

    run_several(configs("slda,finetune"), tmp_path / "out", display=Heard())
    run_several(configs("joint,slda"), tmp_path / "out", resume=True, display=Heard())
    assert [path.name for path in started[2:]] == ["slda", "finetune", "joint"]
    assert [config.method for config in several.saved_configs(tmp_path / "out")] == ["slda", "finetune", "joint"]


def test_without_out_the_directory_is_named_after_the_methods(
    archive: Path, oarlock: Command, started: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oarlock.cli.run._compare", lambda *_: None)
    monkeypatch.setattr("oarlock.report.run_page.write_report", lambda _: None)
    monkeypatch.setattr("oarlock.report.comparison.compare", lambda _: None)
    assert oarlock(*arguments(archive, "slda,hat")[:-2]) == 0
    assert oarlock(*arguments(archive, "all")[:-2]) == 0
    assert started[:3] == [Path("runs/slda+hat/slda"), Path("runs/slda+hat/hat"), Path("runs/all") / started[2].name]


# Mistakes


@pytest.mark.parametrize(
    ("mistake", "word"),
    [
        (["--method", "slda,rowe"], "rowe"),
        (["--method", "slda,"], "no method ''"),
        (["--set", "epochs=1"], "slda has no option 'epochs'"),
        (["--method", "finetune,hat", "--set", "lamb=1"], "finetune has no option 'lamb'"),
        (["--method", "slda,row", "--memory", "3"], "memory"),
        (["--threads", "0"], "threads"),
        (["--increment", "3,3"], "4"),
        (["--trunk", "vit_picolo"], "vit_picolo"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    archive: Path,
    oarlock: Command,
    started: list[Path],
    capsys: pytest.CaptureFixture,
    mistake: list[str],
    word: str,
) -> None:
    assert oarlock(*arguments(archive), *mistake) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("oarlock: ") and printed.err.count("\n") == 1
    assert word in printed.err
    assert not started and not Path("out").exists()


def test_a_directory_in_use_is_refused(archive: Path, tmp_path: Path, started: list[Path]) -> None:
    configs = several.expand(RunConfig(str(archive), method="slda,finetune", memory=8, threads=1))
    run_several(configs, tmp_path / "out", display=Heard())
    with pytest.raises(OarlockError, match=r"holds runs: .*--resume"):
        run_several(configs, tmp_path / "out", display=Heard())
    other = several.expand(RunConfig(str(archive), method="slda,hat", memory=9, threads=1))
    with pytest.raises(OarlockError, match="have memory = 8, not 9"):
        run_several(other, tmp_path / "out", resume=True, display=Heard())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").touch()
    for resume in (False, True):
        with pytest.raises(OarlockError, match="not empty and holds no run"):
            run_several(configs, tmp_path / "other", resume=resume, display=Heard())
    assert len(started) == 2


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"methods": [], "settings": {}}', '{"methods": ["row"], "settings": {}}']
)
def test_a_damaged_list_of_runs_is_named(
    oarlock: Command, tmp_path: Path, capsys: pytest.CaptureFixture, content: str
) -> None:
    (tmp_path / "runs.json").write_text(content)
    assert oarlock("run", "--resume", "--out", ".") == 2
    assert "runs.json is damaged" in capsys.readouterr().err


def test_resumed_runs_take_no_other_settings(
    archive: Path, oarlock: Command, started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    configs = several.expand(RunConfig(str(archive), method="slda,finetune", memory=8, threads=1))
    run_several(configs, tmp_path / "out", display=Heard())
    assert oarlock("run", "--resume", "--out", "out", "--seed", 3) == 2
    assert "leave out seed" in capsys.readouterr().err
