"""Learning that is stopped: the old model stays, and going on ends as if nothing had happened."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import oarlock as package
from conftest import Command
from modelfile.conftest import Teach, command_line, description_of, names_in, write_classes
from oarlock.modelfile.paths import model_paths


@pytest.fixture
def whole(oarlock: Command, model: Path, photos: Path, day: None, tmp_path: Path) -> bytes:
    """The model as it is when nothing happens."""
    copy = tmp_path / "whole.oar"
    copy.write_bytes(model.read_bytes())
    assert oarlock("learn", copy, photos) == 0
    return copy.read_bytes()


@pytest.mark.parametrize(
    ("event", "number"),
    [("step", 3), ("checkpoint", 1), ("checkpoint", 2), ("step", 6), ("checkpoint", 5), ("checkpoint", 8)],
)
def test_going_on_gives_the_same_file_as_never_being_stopped(
    event: str,
    number: int,
    interrupted: Teach,
    oarlock: Command,
    model: Path,
    photos: Path,
    whole: bytes,
    capsys: pytest.CaptureFixture,
) -> None:
    """Two steps an epoch, two epochs a phase, and a checkpoint after each epoch and each phase."""
    before = model.read_bytes()
    capsys.readouterr()
    assert interrupted(event, number, model, photos) == 130
    printed = capsys.readouterr()
    assert printed.out == f"stopped; continue with: oarlock learn {model} {photos}\n"
    assert printed.err == ""
    assert model.read_bytes() == before
    assert names_in(model.parent) == {"shop.oar", ".shop.oar.learning"}
    assert oarlock("learn", model, photos) == 0
    assert "going on where learning was interrupted" in capsys.readouterr().out
    assert model.read_bytes() == whole
    assert names_in(model.parent) == {"shop.oar"}


def test_a_new_model_may_be_interrupted_too(interrupted: Teach, oarlock: Command, photos: Path, here: Path) -> None:
    small = ["--set", "adapt_last=1", "--set", "few=0", "--epochs", 1]
    assert interrupted("checkpoint", 2, "new.oar", photos, *small) == 130
    assert names_in(here) == {"photos", ".new.oar.learning"}
    assert oarlock("learn", "new.oar", photos, *small) == 0
    assert oarlock("learn", "whole.oar", photos, *small) == 0
    one, other = (package.load(name).state() for name in ("new.oar", "whole.oar"))
    assert [name for name, value in one[0].items() if not value.equal(other[0][name])] == []
    assert names_in(here) == {"photos", "new.oar", "whole.oar"}


def test_the_date_is_the_one_on_which_learning_began(
    interrupted: Teach, oarlock: Command, model: Path, photos: Path, day: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interrupted("checkpoint", 3, model, photos) == 130
    monkeypatch.undo()
    assert oarlock("learn", model, photos) == 0
    assert description_of(model)["tasks"][1]["learned"] == "2024-02-29T12:30:00+00:00"


def test_stopped_before_there_was_a_checkpoint_there_is_nothing_to_go_on_with(
    interrupted: Teach, model: Path, photos: Path, capsys: pytest.CaptureFixture
) -> None:
    assert interrupted("step", 0, model, photos) == 130
    assert capsys.readouterr().out == "stopped\n"
    assert names_in(model.parent) == {"shop.oar"}


def test_it_may_be_stopped_again_and_again(
    interrupted: Teach, oarlock: Command, model: Path, photos: Path, whole: bytes
) -> None:
    for _ in range(3):
        assert interrupted("checkpoint", 2, model, photos) == 130
    assert oarlock("learn", model, photos) == 0
    assert model.read_bytes() == whole


def new_picture(model: Path, photos: Path) -> list[object]:
    write_classes(photos, "crow", seed=1)
    return []


def new_class(model: Path, photos: Path) -> list[object]:
    write_classes(photos, "eel")
    return []


def another_model(model: Path, photos: Path) -> list[object]:
    package.load(model).learn(write_classes(photos.parent / "more", "eel")).save(model)
    return []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (new_picture, "changed since: images)"),
        (new_class, "changed since: classes, images)"),
        (another_model, "changed since: model"),
        (lambda model, photos: ["--epochs", 1], "changed since: epochs)"),
        (lambda model, photos: ["--memory", 12], "changed since: memory)"),
        (lambda model, photos: ["--only", "duck"], "changed since: classes, images)"),
    ],
)
def test_when_something_changed_learning_starts_afresh_and_says_why(
    change: object,
    said: str,
    interrupted: Teach,
    oarlock: Command,
    model: Path,
    photos: Path,
    day: None,
    capsys: pytest.CaptureFixture,
) -> None:
    assert interrupted("checkpoint", 3, model, photos) == 130
    options = change(model, photos)
    untouched = model.parent.parent / "untouched.oar"
    untouched.write_bytes(model.read_bytes())
    capsys.readouterr()
    assert oarlock("learn", model, photos, *options) == 0
    assert said in capsys.readouterr().out
    assert oarlock("learn", untouched, photos, *options) == 0
    assert model.read_bytes() == untouched.read_bytes()
    assert names_in(model.parent) == {"shop.oar"}


def test_a_checkpoint_may_be_discarded_and_a_damaged_one_is(
    interrupted: Teach, oarlock: Command, model: Path, photos: Path, whole: bytes, capsys: pytest.CaptureFixture
) -> None:
    before = model.read_bytes()
    assert interrupted("checkpoint", 3, model, photos) == 130
    assert interrupted("step", 0, model, photos, "--fresh") == 130
    assert capsys.readouterr().out.endswith("stopped\n")
    assert names_in(model.parent) == {"shop.oar"}
    model_paths(model).checkpoint.write_text("half of a checkpo")
    assert oarlock("learn", model, photos) == 0
    assert "starting afresh" in capsys.readouterr().out
    assert model.read_bytes() == whole != before


def test_learning_something_known_leaves_what_was_interrupted(
    interrupted: Teach, oarlock: Command, model: Path, photos: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    write_classes(here / "known", "ant")
    assert interrupted("checkpoint", 3, model, photos) == 130
    assert oarlock("learn", model, "known") == 0
    assert oarlock("learn", model, photos) == 0
    assert "going on" in capsys.readouterr().out


def test_what_a_killed_process_left_half_written_is_removed(
    oarlock: Command, model: Path, photos: Path, whole: bytes
) -> None:
    random, others = (
        "0123456789abcdef",
        {".other.oar.0123456789abcdef.tmp", ".shop.oar.notes.tmp", ".shop.oar.4711.tmp"},
    )
    for name in (f".shop.oar.{random}.tmp", f"..shop.oar.learning.{random}.tmp", ".shop.oar.lock", *others):
        (model.parent / name).write_text("half of")
    assert oarlock("learn", model, photos) == 0
    assert model.read_bytes() == whole
    assert names_in(model.parent) == {"shop.oar", *others}


def test_a_checkpoint_is_as_private_as_the_model(interrupted: Teach, model: Path, photos: Path) -> None:
    model.chmod(0o600)
    where = model_paths(model)
    assert interrupted("checkpoint", 1, model, photos) == 130
    assert where.checkpoint.stat().st_mode & 0o777 == 0o600
    where.checkpoint.chmod(0o644)  # as an earlier version left it
    assert interrupted("checkpoint", 1, model, photos) == 130
    assert where.checkpoint.stat().st_mode & 0o777 == 0o600


def test_the_checkpoint_of_what_is_learned_is_removed(
    interrupted: Teach, oarlock: Command, model: Path, photos: Path
) -> None:
    """A process may be killed between the model and its checkpoint."""
    assert interrupted("checkpoint", 3, model, photos) == 130
    where = model_paths(model)
    left = where.checkpoint.read_bytes()
    assert oarlock("learn", model, photos) == 0
    where.checkpoint.write_bytes(left)
    assert oarlock("learn", model, photos) == 0
    assert names_in(model.parent) == {"shop.oar"}


def test_a_link_in_place_of_the_lock_is_refused_and_not_followed(
    oarlock: Command, model: Path, photos: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    victim = here / "victim"
    victim.write_text("precious")
    model_paths(model).lock.symlink_to(victim)
    assert oarlock("learn", model, photos) == 2
    assert "it is a link, which is not followed" in capsys.readouterr().err
    assert victim.read_text() == "precious"


# In processes of their own


def start(*arguments: object, first: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line("learn", *arguments, first=first),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        start_new_session=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert path.exists(), process.communicate()


@pytest.mark.slow
def test_ctrl_c_stops_it_and_it_says_how_to_go_on(model: Path, photos: Path) -> None:
    before = model.read_bytes()
    process = start(model, photos, "--epochs", 300)
    wait_for(model_paths(model).checkpoint, process)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (130, "")
    assert f"continue with: oarlock learn {model} {photos} --epochs 300" in printed
    assert model.read_bytes() == before
    assert names_in(model.parent) == {"shop.oar", ".shop.oar.learning"}


@pytest.mark.slow
def test_of_two_processes_at_once_one_is_refused_and_nothing_is_lost(model: Path, here: Path) -> None:
    names = ["crow", "duck"]
    processes = [start(model, write_classes(here / name, name), "--epochs", 60) for name in names]
    ends = [process.communicate(timeout=600) for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 2], ends
    first, second = names[codes.index(0)], names[codes.index(2)]
    assert "another process is teaching" in ends[codes.index(2)][1]
    assert [task["classes"] for task in description_of(model)["tasks"]] == [["ant", "bee"], [first]]
    again = start(model, here / second)
    assert again.wait(timeout=600) == 0, again.communicate()
    assert [task["classes"] for task in description_of(model)["tasks"]] == [["ant", "bee"], [first], [second]]


def assert_old_or_new_and_going_on_ends_well(
    oarlock: Command, model: Path, photos: Path, before: bytes, reference: Path
) -> None:
    after = description_of(model)  # whole, or it could not be read
    assert [task["classes"] for task in after["tasks"]] in ([["ant", "bee"]], [["ant", "bee"], ["crow", "duck"]])
    if len(after["tasks"]) == 1:
        assert model.read_bytes() == before
    assert oarlock("learn", model, photos, "--threads", 1) == 0
    reference.write_bytes(before)
    assert oarlock("learn", reference, photos, "--threads", 1) == 0
    (one, told), (other, also_told) = (package.load(path).state() for path in (model, reference))
    assert [name for name, value in one.items() if not value.equal(other[name])] == []
    for task in (told["tasks"][1], also_told["tasks"][1]):
        task.pop("learned")
    assert told == also_told


KILL = """
import os
replace, left = os.replace, {number}
def killing(*names):
    global left
    left -= 1
    if left < 0 and not {afterwards}:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*names)
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = killing
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "afterwards"), [(0, False), (0, True), (5, False), (9, False), (9, True)])
def test_killed_while_a_file_is_put_in_place_it_leaves_the_old_model_or_the_new_one(
    number: int, afterwards: bool, oarlock: Command, model: Path, photos: Path, tmp_path: Path
) -> None:
    """Nine checkpoints are written, then the model."""
    before = model.read_bytes()
    process = start(model, photos, "--threads", 1, first=KILL.format(number=number, afterwards=afterwards))
    _, errors = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL, errors
    assert (model.read_bytes() == before) == ((number, afterwards) != (9, True))
    assert_old_or_new_and_going_on_ends_well(oarlock, model, photos, before, tmp_path / "whole.oar")
