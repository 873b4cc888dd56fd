"""`oarlock predict`: every image one answer, in order, as it goes."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix, roc_auc_score
from torch.utils.data import TensorDataset

import oarlock as package
from conftest import Command, make_task
from modelfile.conftest import SMALL, command_line, write_classes
from oarlock import Learner
from oarlock.data.images import prepare
from oarlock.errors import OarlockError, printable
from oarlock.modelfile import predict as predicting
from oarlock.nets.trunks import Trunk
from oarlock.printing import console

Ask = Callable[..., list[dict]]
ACCEPT = 0.5


@pytest.fixture(scope="module")
def model(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks; one of its classes is called "unknown"."""
    path = tmp_path_factory.mktemp("models") / "shop.oar"
    learner = Learner("oar", trunk=tiny_trunk, memory=12, **SMALL)
    learner.learn(*make_task(["ant", "unknown"], 20)).learn(*make_task(["cow"], 20)).save(path)
    return path


@pytest.fixture
def images(here: Path) -> Path:
    """Images of learned classes and of one that was not."""
    return write_classes(here / "images", "ant", "cow", "unknown", "yak", count=4, seed=1)


@pytest.fixture
def ask(oarlock: Command, model: Path, capsys: pytest.CaptureFixture) -> Ask:
    def run(*arguments: object, code: int = 0) -> list[dict]:
        assert oarlock("predict", model, *arguments, "--json") == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """What stands on standard input."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def png(path: Path, name: str = "ant") -> Path:
    Image.fromarray(make_task([name], 1, seed=2)[0][0]).save(path)
    return path


# What is answered


def test_answers_are_the_learners(model: Path, images: Path, ask: Ask) -> None:
    learner, lines = package.load(model).accelerate(), ask(images, "--accept", ACCEPT)
    labels = learner.predict(images, accept=ACCEPT).tolist()
    assert [line["label"] for line in lines] == labels
    assert [line["unknown"] for line in lines] == [label is None for label in labels]
    assert {None, "unknown"} < set(labels)  # which are told apart
    probability = learner.predict_proba(images)
    assert [line["probability"] for line in lines] == probability.max(1).tolist()
    assert [line["score"] for line in lines] == learner.in_distribution(images).tolist()
    assert [line["task"] for line in lines] == np.array([1, 1, 2])[probability.argmax(1)].tolist()
    assert [line["path"] for line in lines] == sorted(str(path) for path in images.rglob("*.png"))
    assert list(lines[0]) == ["path", "label", "unknown", "probability", "task", "score"]


def test_a_shortlist_is_the_learners(model: Path, images: Path, ask: Ask) -> None:
    for given, meant in (("1", 1), ("auto", "auto")):
        learner = package.load(model).accelerate(shortlist=meant)
        lines = ask(images, "--accept", ACCEPT, "--shortlist", given)
        assert [line["label"] for line in lines] == learner.predict(images, accept=ACCEPT).tolist()
        assert [line["score"] for line in lines] == pytest.approx(learner.in_distribution(images).tolist())


def test_a_shortlist_that_makes_no_sense_is_refused(
    oarlock: Command, model: Path, images: Path, capsys: pytest.CaptureFixture
) -> None:
    for given, said in (("some", "--shortlist some: give a number of tasks, or auto"), ("0", "shortlist=0")):
        assert oarlock("predict", model, images, "--shortlist", given) == 2
        assert said in capsys.readouterr().err


def test_rejecting_is_the_default(ask: Ask, images: Path) -> None:
    assert ask(images) == ask(images, "--accept", 0.95) != ask(images, "--accept", 0.1)


def test_batches_change_nothing_but_roundings(ask: Ask, images: Path) -> None:
    for one, other in zip(ask(images, "--batch", 1), ask(images, "--batch", 5), strict=True):
        assert one["path"] == other["path"] and one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-4)


def test_the_likeliest_classes_are_added_in_every_format(
    oarlock: Command, model: Path, images: Path, ask: Ask, capsys: pytest.CaptureFixture
) -> None:
    lines = ask(images / "yak", "--top", 2, "--accept", ACCEPT)
    for line in lines:
        best, second = line["top"]
        assert line["probability"] == best["probability"] >= second["probability"]
        assert line["label"] in (best["label"], None)
    assert len(ask(images / "yak", "--top", 9)[0]["top"]) == 3
    assert oarlock("predict", model, images / "yak", "--top", 2, "--accept", ACCEPT, "--csv") == 0
    for row, line in zip(csv.DictReader(io.StringIO(capsys.readouterr().out)), lines, strict=True):
        assert [row["label_1"], row["label_2"]] == [best["label"] for best in line["top"]]
        assert [float(row[f"probability_{n}"]) for n in (1, 2)] == [best["probability"] for best in line["top"]]
    assert oarlock("predict", model, images / "yak", "--top", 2, "--accept", ACCEPT) == 0
    for text, line in zip(capsys.readouterr().out.splitlines(), lines, strict=True):
        assert all(f"{best['label']:<7} {100 * best['probability']:5.1f} %" in text for best in line["top"])


def test_csv_says_what_json_says(
    oarlock: Command, model: Path, images: Path, ask: Ask, capsys: pytest.CaptureFixture
) -> None:
    lines = ask(images, "--accept", ACCEPT)
    assert oarlock("predict", model, images, "--accept", ACCEPT, "--csv") == 0
    for row, line in zip(csv.DictReader(io.StringIO(capsys.readouterr().out)), lines, strict=True):
        assert row["path"] == line["path"] and row["label"] == (line["label"] or "")
        assert json.loads(row["unknown"]) is line["unknown"]
        assert [float(row[name]) for name in ("probability", "task", "score")] == [
            line[name] for name in ("probability", "task", "score")
        ]


def test_plain_lines_tell_a_rejected_image_from_a_class_called_unknown(
    oarlock: Command, model: Path, images: Path, ask: Ask, capsys: pytest.CaptureFixture
) -> None:
    lines = ask(images, "--accept", ACCEPT)
    assert oarlock("predict", model, images, "--accept", ACCEPT) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    for text, line in zip(out.splitlines(), lines, strict=True):
        assert text.startswith(line["label"] or "unknown") and text.endswith(line["path"])
        assert (f"task {line['task']}" in text) is not line["unknown"]


def test_a_model_without_thresholds_answers_and_says_so(
    tiny_trunk: Trunk, images: Path, oarlock: Command, here: Path, capsys: pytest.CaptureFixture
) -> None:
    learner = Learner("slda", trunk=tiny_trunk, calibration=0).learn(*make_task(["ant", "bee"], 4))
    learner.save(here / "few.oar")
    assert oarlock("predict", here / "few.oar", images, "--json") == 0
    out, err = capsys.readouterr()
    assert not any(json.loads(line)["unknown"] for line in out.splitlines())
    assert "nothing is called unknown" in err
    assert oarlock("predict", here / "few.oar", images, "--accept", 0.9) == 2
    assert "no calibration images" in capsys.readouterr().err


# Which images


def test_files_folders_patterns_and_lists_are_taken_in_their_order(
    ask: Ask, images: Path, typed: Callable[[bytes], None]
) -> None:
    typed(f"{images / 'cow' / '1.png'}\n\n{images / 'yak'}\r\n".encode())
    lines = ask(images / "ant" / "3.png", f"{images}/*/0.png", "-", images / "unknown")
    names = ["ant/3", "ant/0", "cow/0", "unknown/0", "yak/0", "cow/1"]
    names += [f"{name}/{number}" for name in ("yak", "unknown") for number in range(4)]
    assert [line["path"] for line in lines] == [f"{images / name}.png" for name in names]


@pytest.mark.parametrize("name", ["two words.png", "naïve 犬.png", "a,b\n\"c'.png", "[1]*.png", b"\xff\xfe.png"])
def test_any_file_name_is_one_line_and_comes_back_from_json(
    name: str | bytes, here: Path, oarlock: Command, model: Path, capfdbinary: pytest.CaptureFixture
) -> None:
    (here / "odd").mkdir()
    path = here / "odd" / os.fsdecode(name)
    png(here / "plain.png").rename(path)

    def printed(*arguments: object) -> bytes:
        assert oarlock("predict", model, *arguments) == 0
        return capfdbinary.readouterr().out

    for argument in (path, here / "odd"):
        assert [json.loads(line)["path"] for line in printed(argument, "--json").splitlines()] == [str(path)]
        (row,) = csv.DictReader(io.StringIO(printed(argument, "--csv").decode()))
        assert row["path"] == printable(path)
        assert printed(argument).count(b"\n") == 1


def test_what_cannot_be_read_is_named_and_the_rest_is_answered(
    oarlock: Command, model: Path, images: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    (images / "ant" / "1.png").write_text("not an image")
    (images / "cow" / "2.png").write_bytes((images / "cow" / "2.png").read_bytes()[:300])
    (images / "cow" / "9.png").symlink_to("nowhere")
    (here / "empty").mkdir()
    assert oarlock("predict", model, images, here / "empty", "gone.jpg", "no*.jpg", "--json") == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 14
    problems = err.splitlines()
    named = ["ant/1.png", "cow/2.png", "cow/9.png", "empty", "gone.jpg", "no*.jpg"]
    assert len(problems) == len(named) and all(problem.startswith("oarlock: ") for problem in problems)
    for name in named:
        assert sum(f"{name}: " in problem for problem in problems) == 1


def test_exit_codes_tell_mistakes_from_damaged_files(
    oarlock: Command, model: Path, here: Path, typed: Callable[[bytes], None], capsys: pytest.CaptureFixture
) -> None:
    (here / "text.png").write_text("not an image")
    (here / "empty").mkdir()
    typed(b"")
    assert oarlock("predict", model, "text.png") == 1
    assert oarlock("predict", model, "gone.png", "empty") == 2
    assert capsys.readouterr().err.count("\n") == 3
    assert oarlock("predict", model, "-") == 2
    assert "no paths were given" in capsys.readouterr().err
    assert oarlock("predict", model, "empty", "--json", "--csv") == 2
    assert oarlock("predict", here / "text.png", "empty") == 2
    assert oarlock("predict", "gone.oar", "empty") == 2
    assert capsys.readouterr().out == ""


# As it goes


def test_the_first_answers_are_there_before_the_last_files_are_looked_for(tiny_trunk: Trunk, images: Path) -> None:
    given = 0

    def paths() -> Iterator[Path]:
        nonlocal given
        for path in sorted(images.rglob("*.png")):
            given += 1
            yield path

    learner = Learner("slda", trunk=tiny_trunk).learn(*make_task(["ant"], 8))
    batches = predicting.answer_files(learner, paths(), pytest.fail, accept=None, batch=2)
    assert len(next(batches).answers) == 2
    assert given <= 4
    assert sum(len(batch.answers) for batch in batches) == 14


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"top": 0}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict, tiny_trunk: Trunk) -> None:
    learner = Learner("slda", trunk=tiny_trunk).learn(*make_task(["ant"], 8))
    with pytest.raises(OarlockError, match="at least 1"):
        next(predicting.answer_files(learner, [], pytest.fail, accept=None, **wrong))


def test_control_c_is_quiet(
    oarlock: Command, model: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def lines() -> Iterator[bytes]:
        yield os.fsencode(images / "ant" / "0.png")
        yield os.fsencode(images / "ant" / "1.png")
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=lines()))
    assert oarlock("predict", model, "-", "--batch", 1, "--json") == 130
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2 and err == ""


@pytest.mark.parametrize("style", ["--json", "--csv", "--top=1"])
def test_a_closed_pipe_is_quiet(
    style: str, oarlock: Command, model: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(console, "quiet", False)  # it falls silent for good, so this is to be undone
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patched, suppress(BrokenPipeError), open(writing, "w") as closed:
        patched.setattr(sys, "stdout", closed)
        assert oarlock("predict", model, images, style) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_answers_stream_and_a_signal_ends_them(model: Path, images: Path) -> None:
    command = command_line("predict", model, "-", "--batch", 1)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        for number in range(3):
            path = os.fsencode(images / "ant" / f"{number}.png")
            process.stdin.write(path + b"\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith(path + b"\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""


# The learner itself


def test_a_learner_judges_chunk_by_chunk_what_it_judged_at_once(tiny_trunk: Trunk) -> None:
    learner = Learner("oar", trunk=tiny_trunk, memory=12, **SMALL).learn(*make_task(["ant", "bee"], 20))
    images, _ = make_task(["ant", "bee", "cow"], 100, seed=1)
    encoded = learner.method.encode(prepare(images, tiny_trunk.card.preprocessing), learner.method.feature_sets(1))
    predicted = learner.predict_scores(images)
    assert len(images) > 256
    assert predicted.scores.equal(learner.method.scores(encoded))
    assert predicted.in_distribution.equal(learner.method.in_distribution(encoded))


def test_every_form_of_the_same_images_has_the_same_answers_which_metrics_take(model: Path, images: Path) -> None:
    learner, files = package.load(model), sorted(images.rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    answers = learner.predict(files)
    tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    for form in (images, [str(file) for file in files], pixels, tensor, list(map(Image.fromarray, pixels))):
        assert np.array_equal(learner.predict(form), answers)
    for dataset in (TensorDataset(tensor), TensorDataset(tensor, torch.arange(len(files)))):
        assert np.array_equal(learner.predict(dataset), answers)
    truth = [file.parent.name for file in files]
    right = sum(one == other for one, other in zip(truth, answers, strict=True))
    assert accuracy_score(truth, answers) == right / len(truth)
    assert confusion_matrix(truth, answers, labels=learner.classes_).trace() == right
    scores = learner.in_distribution(files)
    assert 0 <= roc_auc_score([name != "yak" for name in truth], scores) <= 1
