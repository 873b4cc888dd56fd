"""The theory on trained models: the command's numbers against plain loops over samples, and what it refuses."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Command, make_images, make_task
from contract.conftest import small_options
from experiments.test_run import OPTIONS, make_archive
from oarlock import Learner, OarlockError, load
from oarlock.experiments.config import RunConfig
from oarlock.experiments.run import run
from oarlock.files import read_json, write_json
from oarlock.nets.trunks import Trunk
from oarlock.report import write_report

TASKS_OF = (["a", "b"], ["c"], ["d", "e", "f"])
CLASSES = [name for task in TASKS_OF for name in task]
ALPHA = 0.3
UNKNOWN = make_images(77, 9)


def saved(trunk: Trunk, name: str, path: Path) -> Path:
    learner = Learner(name, trunk=trunk, memory=12, **small_options(name))
    for task in TASKS_OF:
        learner.learn(*make_task(task, 12))
    learner.save(path)
    return path


@pytest.fixture(scope="module")
def model(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tiny_trunk, "oar", tmp_path_factory.mktemp("models") / "row.oar")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Test images of uneven tasks, listed in another order than they were learned in."""
    path = tmp_path_factory.mktemp("data") / "six.npz"
    images, labels = make_task(CLASSES[::-1], 7, seed=1)
    arrays = {"train_x": images, "train_y": labels, "test_x": images, "test_y": labels}
    np.savez(path, **arrays, classes=np.array(sorted(CLASSES)), unknown_x=UNKNOWN)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    source = make_archive(folder / "four.npz")
    run(RunConfig(str(source), memory=8, threads=1, options=OPTIONS), folder / "run")
    write_report(folder / "run")
    return folder / "run"


def printed_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    output: dict[str, Any] = json.loads(capsys.readouterr().out)
    return output


# Against plain loops


def by_loops(learner: Learner, images: np.ndarray, labels: list[str], alpha: float) -> dict[str, Any]:
    """Everything again, sample by sample, after the formulas."""
    method, tasks = learner.method, range(len(TASKS_OF))
    classes = learner.classes_.tolist()
    task_of = {name: t for t in tasks for name in TASKS_OF[t]}

    def encode(pictures: np.ndarray) -> torch.Tensor:
        return method.encode(torch.from_numpy(pictures).permute(0, 3, 1, 2), method.feature_sets(len(tasks)))

    samples = []  # (task, truth, mass, said by task, sureness by task, own score by class)
    pi = [sum(task_of[label] == t for label in labels) / len(labels) for t in tasks]
    known, unknown = encode(images), encode(UNKNOWN)
    counts = [sum(task_of[label] == t for label in labels) for t in tasks]
    threshold = learner.threshold(0.95)
    for features, truths in ((known, labels), (unknown, [None] * len(unknown))):
        scores, familiar = method.scores(features), method.in_distribution(features)
        for row, truth in enumerate(truths):
            said, sureness = [], []
            for t in tasks:
                head, feature = method.ood_heads[t], method.by_task(features)[t][row]
                logits = (head.weight @ feature + head.bias).tolist()
                best = max(range(len(logits)), key=logits.__getitem__)
                said.append(TASKS_OF[t][best] if best < len(TASKS_OF[t]) else None)
                sureness.append(float(np.exp(logits[best]) / np.exp(logits).sum()))
            own = dict(zip(classes, scores[row].tolist(), strict=True)) if familiar[row] >= threshold else None
            for t in tasks if truth is None else [task_of[truth]]:
                mass = pi[t] * (alpha / len(unknown) if truth is None else (1 - alpha) / counts[t])
                samples.append((t, truth, mass, said, sureness, own))

    result: dict[str, Any] = {"weights": pi}
    for name in ("own", "first", "free", "worst"):
        result[name] = []
        for k in tasks:
            wrong = 0.0
            for task, truth, mass, said, sureness, own in samples:
                claimants = [t for t in range(k + 1) if said[t] is not None]
                if name == "own":
                    allowed = [] if own is None else [c for c in classes if task_of[c] <= k]
                    answer = max(allowed, key=own.__getitem__) if allowed else None
                elif not claimants:
                    answer = None
                elif name == "first":
                    answer = said[claimants[0]]
                elif name == "free":
                    answer = said[max(claimants, key=sureness.__getitem__)]
                else:
                    answer = next((said[t] for t in claimants if said[t] != truth), truth)
                wrong += mass if task <= k and answer != truth else 0.0
            result[name].append(wrong / sum(pi[: k + 1]))
    for name in ("theorem3", "printed", "corollary"):
        masses, detector_risks = [], []
        for t in tasks:
            mass = wrong = 0.0
            for task, truth, weight, said, _, _ in samples:
                if name == "corollary" or task >= t or (name == "theorem3" and truth is None):
                    mass += weight
                    wrong += weight if said[t] != (truth if task == t else None) else 0.0
            masses.append(mass)
            detector_risks.append(wrong / mass)
        terms = [m * r for m, r in zip(masses, detector_risks, strict=True)]
        result[name] = {
            "bound": [sum(terms[: k + 1]) / sum(pi[: k + 1]) for k in tasks],
            "multiplier": max(sum(masses[: k + 1]) / sum(pi[: k + 1]) for k in tasks),
            "detector_risk": detector_risks,
            "foreign_share": [1 - pi[t] * (1 - alpha) / masses[t] for t in tasks],
            "bound_share": [term / sum(terms) for term in terms],
        }
    return result


def test_the_command_s_numbers_are_those_of_loops_over_the_samples(
    oarlock: Command, model: Path, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("theory", model, "--data", archive, "--alpha", ALPHA, "--json") == 0
    printed = printed_json(capsys)
    images, labels = make_task(CLASSES[::-1], 7, seed=1)
    expected = by_loops(load(model), images, labels, ALPHA)
    near = partial(pytest.approx, abs=1e-6)
    assert printed["tasks"] == list(TASKS_OF) and printed["alpha"] == ALPHA
    assert (printed["known_images"], printed["unknown_images"]) == (len(images), len(UNKNOWN))
    assert printed["weights"] == near(expected["weights"])
    assert printed["own_risk"] == near(expected["own"])
    assert printed["theorem3"].pop("risk") == near(expected["first"])
    assert printed["corollary"].pop("risk") == near(expected["free"])
    assert printed["worst_claimant_risk"] == near(expected["worst"])
    assert printed["printed_bound"] == near(expected["printed"]["bound"])
    for name in ("theorem3", "corollary"):
        assert printed[name].keys() == expected[name].keys()
        for key, values in expected[name].items():
            assert printed[name][key] == near(values), (name, key)
    assert 0.05 < expected["first"][-1] < 0.99  # neither a perfect learner nor a useless one hides a mistake
    assert len({round(value, 6) for value in printed["theorem3"]["detector_risk"]}) > 1


def test_theorem_1_s_scores_keep_the_newest_task_s_accuracy_and_lose_all_others(
    oarlock: Command, model: Path, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oarlock("theory", model, "--data", archive, "--json") == 0
    closed = printed_json(capsys)["theorem1"]
    assert closed["newest"] == closed["newest_before"]
    assert closed["older"] == [None, 1, 1]
    learner = load(model)
    for k, task in enumerate(TASKS_OF):
        images, labels = make_task(task, 7, seed=1)
        columns = learner.method.class_slice(k)
        answers = learner.classes_[columns][learner.predict_proba(images)[:, columns].argmax(1)]
        assert closed["newest_before"][k] == pytest.approx(np.mean(answers != np.array(labels)))
        seen = [7 * len(earlier) for earlier in TASKS_OF[: k + 1]]
        expected = (sum(seen[:k]) + closed["newest"][k] * seen[k]) / sum(seen)
        assert closed["risk"][k] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["more", "row-wp"])
@pytest.mark.parametrize("alpha", [0, 0.6])
def test_the_bounds_hold_for_every_kind_of_detectors(
    oarlock: Command,
    tiny_trunk: Trunk,
    archive: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    alpha: float,
) -> None:
    path = saved(tiny_trunk, name, tmp_path / "model.oar")
    assert oarlock("theory", path, "--data", archive, "--alpha", alpha, "--json") == 0
    printed = printed_json(capsys)
    assert printed["method"] == name and printed["unknown_images"] == (len(UNKNOWN) if alpha else 0)
    for statement, risk in (
        ("theorem3", printed["theorem3"]["risk"]),
        ("corollary", printed["corollary"]["risk"]),
        ("corollary", printed["worst_claimant_risk"]),
    ):
        assert all(r <= b + 1e-6 for r, b in zip(risk, printed[statement]["bound"], strict=True))
    assert printed["best_multiplier"] <= printed["worst_multiplier"]


def test_unknown_images_may_lie_in_a_folder_and_replace_those_of_the_data(
    oarlock: Command, model: Path, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "strangers" / "deeper"
    folder.mkdir(parents=True)
    for number, image in enumerate(UNKNOWN[:4]):
        Image.fromarray(image).save(folder / f"{number}.png")
    unknown = tmp_path / "strangers"
    assert oarlock("theory", model, "--data", archive, "--unknown", unknown, "--json") == 0
    printed = printed_json(capsys)
    assert printed["unknown_images"] == 4 and printed["alpha"] == 0.1


def test_labels_may_be_numbers(
    oarlock: Command, tiny_trunk: Trunk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = Learner("more", trunk=tiny_trunk, memory=12, **small_options("more"))
    for task in ([3, 1], [2]):
        learner.learn(*make_task(task))
    learner.save(tmp_path / "model.oar")
    images, labels = make_task([1, 2, 3], 5, seed=1)
    np.savez(tmp_path / "data.npz", train_x=images, train_y=labels, test_x=images, test_y=labels)
    assert oarlock("theory", tmp_path / "model.oar", "--data", tmp_path / "data.npz", "--json") == 0
    assert printed_json(capsys)["own_risk"][-1] == pytest.approx(1 - learner.score(images, labels))


# Of a run


def test_a_run_writes_what_the_command_finds_and_its_page_has_a_section(
    oarlock: Command, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = read_json(finished / "theory.json")
    assert written["alpha"] == 0.1 and written["unknown_images"] == 8
    assert "The theory on this model" in (finished / "report.html").read_text()
    (finished / "theory.json").unlink()
    write_report(finished)
    assert "The theory on this model" not in (finished / "report.html").read_text()
    assert oarlock("theory", finished, "--json") == 0
    assert printed_json(capsys) == written == read_json(finished / "theory.json")
    assert "The theory on this model" in (finished / "report.html").read_text()


def test_it_is_printed_in_80_columns_and_a_bound_above_1_is_called_vacuous(
    oarlock: Command, finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    content = read_json(finished / "theory.json")
    assert oarlock("theory", finished, "--alpha", 0.4) == 0
    output = capsys.readouterr().out
    assert read_json(finished / "theory.json")["alpha"] == 0.4 != content["alpha"]
    bounds = [b for name in ("theorem3", "corollary") for b in read_json(finished / "theory.json")[name]["bound"]]
    assert max(bounds) > 1
    assert len(re.findall(r"\d vacuous", output.split("Every detector")[0])) == sum(bound > 1 for bound in bounds)
    assert "Both bounds hold for every k." in output and "As printed, Theorem 3's bound is" in output
    assert max(map(len, output.split("report:")[0].splitlines())) <= 80


def test_damaged_numbers_are_refused_by_the_report(finished: Path) -> None:
    content = read_json(finished / "theory.json")
    for damage in ({"own_risk": [0.1]}, {"theorem3": {}}, {"alpha": "much"}, {"tasks": [["a"], ["b"]]}):
        write_json(finished / "theory.json", content | damage)
        with pytest.raises(OarlockError, match=r"theory\.json"):
            write_report(finished)
    write_json(finished / "theory.json", content)
    write_report(finished)


# Refused


def test_a_method_without_detectors_is_refused_by_name(
    oarlock: Command, tiny_trunk: Trunk, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tiny_trunk, "slda", tmp_path / "model.oar")
    assert oarlock("theory", path, "--data", archive) == 2
    assert re.fullmatch(r"oarlock: slda has no OOD heads: .*more, oar, row,.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say which model"),
        (["MODEL"], "with --data"),
        (["nowhere.oar", "--data", "DATA"], "no file nowhere.oar"),
        (["RUN", "--data", "DATA"], "leave out --data"),
        (["MODEL", "--data", "DATA", "--alpha", "1"], "--alpha 1: .* below 1"),
        (["MODEL", "--data", "FOUR"], "'e' is not a class"),
        (["MODEL", "--data", "DATA", "--unknown", "nowhere"], "'nowhere' does not exist"),
        (["MODEL", "--data", "DATA", "--out", "somewhere"], "--out goes with --curve"),
        (["RUN", "--curve"], "--curve makes its own world"),
        (["."], "no run in"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    oarlock: Command,
    model: Path,
    archive: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"MODEL": model, "DATA": archive, "RUN": finished, "FOUR": finished.parent / "four.npz"}
    assert oarlock("theory", *(places.get(argument, argument) for argument in arguments)) == 2
    output = capsys.readouterr()
    assert re.fullmatch(rf"oarlock: .*{message}.*\n", output.err) and not output.out
    assert not list(tmp_path.iterdir())


def test_a_share_of_unknown_images_needs_some(
    oarlock: Command, model: Path, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(archive) as arrays:
        np.savez(tmp_path / "known.npz", **{key: arrays[key] for key in arrays if key != "unknown_x"})
    assert oarlock("theory", model, "--data", tmp_path / "known.npz", "--alpha", "0.2") == 2
    assert "give some with --unknown" in capsys.readouterr().err


def test_a_run_under_way_is_refused(
    oarlock: Command, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes((finished / "config.json").read_bytes())
    assert oarlock("theory", tmp_path) == 2
    assert "is not finished" in capsys.readouterr().err
