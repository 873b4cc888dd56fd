"""The learner as users hold it: habits, unknowns, refusals, files."""

import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import beta
from sklearn.metrics import accuracy_score, confusion_matrix
from torch.utils.data import Dataset

import oarlock
from conftest import make_images, make_task
from contract.conftest import RaiseAt, Stopped, assert_same, small_options, snapshot
from oarlock import Learner, NotFittedError, OarlockError
from oarlock.data.images import prepare
from oarlock.files import read_tensors
from oarlock.loading import compact
from oarlock.nets.trunks import Trunk, load_trunk
from oarlock.training import NoCallback

ANIMALS = make_task(["ant", "bee"], 20)
BIRDS = make_task(["crow", "duck"], 20)
TEST = make_task(["ant", "bee", "crow", "duck"], 5, seed=1)

NewLearner = Callable[..., Learner]


@pytest.fixture
def new_learner(tiny_trunk: Trunk) -> NewLearner:
    def make(*tasks: tuple, **settings: Any) -> Learner:
        own = {"memory": 12, "trunk": tiny_trunk} | small_options("oar") | settings
        learner = Learner("oar", **own)
        for task in tasks:
            learner.learn(*task)
        return learner

    return make


@pytest.fixture(scope="module")
def trained(tiny_trunk: Trunk) -> Learner:
    """Two tasks learned; for tests that change nothing."""
    learner = Learner("oar", trunk=tiny_trunk, memory=12, **small_options("oar"))
    return learner.learn(*ANIMALS).learn(*BIRDS)


# scikit-learn's habits


def test_learn_returns_the_learner_itself(new_learner: NewLearner) -> None:
    learner = new_learner()
    assert learner.learn(*ANIMALS) is learner


def test_classes_are_an_array_in_the_order_they_were_learned(new_learner: NewLearner) -> None:
    learner = new_learner(BIRDS, ANIMALS)
    assert isinstance(learner.classes_, np.ndarray)
    assert learner.classes_.tolist() == ["crow", "duck", "ant", "bee"]
    assert learner.tasks_ == [["crow", "duck"], ["ant", "bee"]]


def test_what_tasks_gives_out_cannot_change_the_learner(trained: Learner) -> None:
    trained.tasks_[0].append("eel")
    assert trained.classes_.tolist() == ["ant", "bee", "crow", "duck"]


def test_answers_fit_sklearns_metrics(trained: Learner) -> None:
    answers = trained.predict(TEST[0])
    assert isinstance(answers, np.ndarray)
    assert trained.score(*TEST) == accuracy_score(TEST[1], answers)
    assert confusion_matrix(TEST[1], answers, labels=trained.classes_).sum() == len(TEST[1])


def test_integer_labels_come_back_as_integers(new_learner: NewLearner) -> None:
    images, labels = make_task([4, 9])
    learner = new_learner((images, np.array(labels)))
    assert learner.predict(images).dtype.kind == "i"
    assert learner.score(images, np.array(labels)) == accuracy_score(labels, learner.predict(images))
    assert learner.score(images, np.array(labels, dtype=object)) == learner.score(images, labels)


def test_probabilities_have_one_column_per_class_and_rows_that_sum_to_one(trained: Learner) -> None:
    probability = trained.predict_proba(TEST[0])
    assert probability.shape == (20, 4)
    assert np.allclose(probability.sum(1), 1)
    assert (probability >= 0).all()
    assert trained.classes_[probability.argmax(1)].tolist() == trained.predict(TEST[0]).tolist()


@pytest.mark.parametrize(
    "ask",
    [
        lambda learner: learner.predict(TEST[0]),
        lambda learner: learner.predict(TEST[0], accept=0.9),
        lambda learner: learner.predict_proba(TEST[0]),
        lambda learner: learner.in_distribution(TEST[0]),
        lambda learner: learner.score(*TEST),
        lambda learner: learner.threshold(0.9),
        lambda learner: learner.save("nowhere.oar"),
    ],
    ids=["predict", "accept", "predict_proba", "in_distribution", "score", "threshold", "save"],
)
def test_before_learning_there_is_nothing_to_ask(ask: Callable, new_learner: NewLearner) -> None:
    with pytest.raises(NotFittedError, match="learn"):
        ask(new_learner())
    assert not Path("nowhere.oar").exists()


# Unknown inputs


def test_accept_is_the_share_of_known_untrained_images_that_are_accepted(new_learner: NewLearner) -> None:
    learner = new_learner(ANIMALS, BIRDS, calibration=0.5)
    with torch.no_grad():
        scores = learner.method.in_distribution(learner.calibration.encoded).numpy()
    assert len(scores) == 40
    ascending = np.sort(scores)
    for accept in (1.0, 0.975, 0.95, 0.9, 0.5, 0.025):
        rejected = int((scores < learner.threshold(accept)).sum())
        assert learner.threshold(accept) == ascending[rejected]
        # The share of all inputs that reaches the score of this rank is Beta distributed.
        sure = [beta.sf(accept, 40 - rank, rank + 1) for rank in range(40)] if accept < 1 else [1.0] + [0.0] * 39
        assert rejected == max([rank for rank in range(40) if sure[rank] >= 0.9], default=0)
    assert learner.threshold(0.95) == ascending[0] and learner.threshold(0.5) == ascending[15]


def test_accepting_all_rejects_no_calibration_image_and_accepting_fewer_rejects_the_lowest(
    new_learner: NewLearner,
) -> None:
    learner = new_learner(ANIMALS, calibration=0.5)  # one task: scored just as they were when it was learned
    images = learner.calibration.images
    assert len(images) == 20
    assert None not in learner.predict(images, accept=1.0).tolist()
    answers = learner.predict(images, accept=0.8)
    assert sorted(np.flatnonzero(answers == None)) == sorted(learner.in_distribution(images).argsort()[:1])  # noqa: E711


def test_unknown_is_none_and_everything_else_is_answered_as_without_accept(trained: Learner) -> None:
    images = np.concatenate([TEST[0], make_images(999, 5), 255 - TEST[0]])
    plain, answers = trained.predict(images), trained.predict(images, accept=0.5)
    unknown = trained.in_distribution(images) < trained.threshold(0.5)
    assert unknown.any() and not unknown.all()
    assert [answer is None for answer in answers] == unknown.tolist()
    assert answers[~unknown].tolist() == plain[~unknown].tolist()


@pytest.mark.parametrize("accept", [0, -0.1, 1.01, float("nan")])
def test_a_share_that_is_none_is_refused(accept: float, trained: Learner) -> None:
    with pytest.raises(OarlockError, match="accept"):
        trained.predict(TEST[0], accept=accept)


def test_without_calibration_images_accept_is_refused_with_the_way_out(new_learner: NewLearner) -> None:
    learner = new_learner(ANIMALS, calibration=0.0)
    assert len(learner.predict(TEST[0])) == 20
    with pytest.raises(OarlockError, match="calibration"):
        learner.predict(TEST[0], accept=0.9)


def test_calibration_images_are_a_share_of_each_class_and_never_trained_on(new_learner: NewLearner) -> None:
    learner = new_learner(calibration=0.25)
    prepared = learner.prepare_task(*ANIMALS)
    assert prepared.calibration_labels.bincount().tolist() == [5, 5]
    assert prepared.task.labels.bincount().tolist() == [15, 15]
    held = {image.numpy().tobytes() for image in prepared.calibration}
    kept = {image.numpy().tobytes() for image in prepared.task.images}
    assert not held & kept
    assert len(held | kept) == 40
    learner.learn(*ANIMALS).learn(*BIRDS)
    remembered = {image.numpy().tobytes() for image in learner.method.memory.images}
    stored = {image.numpy().tobytes() for image in learner.calibration.images}
    assert held < stored
    assert not stored & remembered
    assert learner.calibration.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5


def test_calibration_scores_follow_the_newest_task(new_learner: NewLearner) -> None:
    learner = new_learner(ANIMALS)
    before = learner.threshold(1.0)
    learner.learn(*BIRDS)
    with torch.no_grad():
        scores = learner.method.in_distribution(learner.calibration.encoded)
    assert learner.threshold(1.0) == scores.min().item() != before


def test_a_task_too_small_for_calibration_may_come_first_or_later(new_learner: NewLearner) -> None:
    small = make_task(["eel"], 4)
    assert len(new_learner(small, ANIMALS).calibration) == 4
    assert len(new_learner(ANIMALS, small, BIRDS).calibration) == 8


# What is refused


class Pairs(Dataset):
    def __init__(self, images: np.ndarray, labels: list) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, Any]:
        return Image.fromarray(self.images[index]), self.labels[index]


def broken_file(folder: Path) -> tuple[list[Path], list[str]]:
    paths = [folder / f"{number}.png" for number in range(3)]
    for path, image in zip(paths, make_images(9, 3), strict=True):
        Image.fromarray(image).save(path)
    paths[1].write_bytes(paths[1].read_bytes()[:60])
    return paths, ["eel"] * 3


NINE = make_images(9, 4)
BAD_TASKS: dict[str, tuple[Callable[[Path], tuple], str]] = {
    "an empty array": (lambda _: (NINE[:0], []), "no images"),
    "an empty list": (lambda _: ([], []), "no images"),
    "a file that is no image": (broken_file, r"1\.png"),
    "a file that is not there": (lambda _: ([Path("gone.png")], ["eel"]), r"gone\.png"),
    "a folder that is not there": (lambda _: (Path("gone"),), "gone"),
    "64-bit pixels": (lambda _: (NINE.astype(np.int64), ["eel"] * 4), "int64"),
    "seven channels": (lambda _: (np.zeros((4, 16, 16, 7), np.uint8), ["eel"] * 4), r"\(4, 16, 16, 7\)"),
    "a single image": (lambda _: (NINE[0], ["eel"] * 16), r"\(16, 16, 3\)"),
    "NaN": (lambda _: (np.stack([NINE / 255, NINE * np.nan])[:, 0], ["eel"] * 2), "image 1.*NaN"),
    "floats to 255": (lambda _: (NINE.astype(float), ["eel"] * 4), "image 0"),
    "a label too few": (lambda _: (NINE, ["eel"] * 3), "4 images but 3 labels"),
    "no labels": (lambda _: (NINE,), "labels"),
    "one label for all": (lambda _: (NINE, "eel"), "'eel'"),
    "labels that are fractions": (lambda _: (NINE, [0.5] * 4), r"0\.5"),
    "two kinds of labels": (lambda _: (NINE, ["eel", "eel", 3, "eel"]), "3"),
    "another kind of label than before": (lambda _: (NINE, [3] * 4), "3.*'ant'"),
    "a class already learned": (lambda _: (NINE, ["eel", "eel", "bee", "bee"]), "'bee'"),
    "more classes than the memory holds": (lambda _: (make_images(9, 11), list("abcdefghijk")), "12.*13"),
    "a data set without labels": (lambda _: (Pairs(NINE, [0.5] * 4),), r"0\.5"),
}


@pytest.mark.parametrize("what", BAD_TASKS)
def test_a_bad_task_is_refused_by_name_and_nothing_changes(
    what: str, tmp_path: Path, new_learner: NewLearner
) -> None:
    make, message = BAD_TASKS[what]
    learner = new_learner(ANIMALS)
    before = snapshot(learner)
    with pytest.raises(OarlockError, match=message):
        learner.learn(*make(tmp_path))
    assert_same(snapshot(learner), before)
    assert learner.classes_.tolist() == ["ant", "bee"]


def test_too_small_a_memory_is_refused_before_any_training(new_learner: NewLearner) -> None:
    learner = new_learner(memory=3).learn(*ANIMALS)
    with pytest.raises(OarlockError, match="memory=4 or more"):
        learner.learn(*BIRDS, callback=RaiseAt("phase", 0, Stopped))  # a phase would raise Stopped
    assert learner.learn(*make_task(["crow"])).classes_.tolist() == ["ant", "bee", "crow"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "rowe"}, "'rowe'.*row"),
        ({"epoch": 3}, "'epoch'.*epochs"),
        ({"epochs": "many"}, "epochs='many'"),
        ({"epochs": 1.5}, r"epochs=1\.5"),
        ({"epochs": None}, "epochs"),
        ({"optimiser": "adam"}, "optimiser='adam'.*sgd, adamw"),
        ({"trunk": "vit_picolo"}, "'vit_picolo'"),
        ({"trunk": "mobilenetv5_300m_enc", "weights": "w.pth"}, "mobilenetv5_300m_enc.*not supported"),
        ({"trunk": "resnet18", "weights": "w.pth"}, r"w\.pth"),
        ({"trunk": "vit_pico", "weights": "w.pth"}, r"w\.pth"),
        ({"memory": 0}, "memory=0"),
        ({"calibration": 1.0}, r"calibration=1\.0"),
        ({"calibration": -0.1}, r"calibration=-0\.1"),
        ({"device": "gramophone"}, "gramophone"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_a_wrong_setting_is_refused_by_name(settings: dict, message: str) -> None:
    with pytest.raises(OarlockError, match=message):
        Learner(**settings)


def test_predicting_from_bad_images_is_refused(trained: Learner) -> None:
    for images, message in ((NINE[:0], "no images"), (NINE.astype(np.int32), "int32"), (Path("gone"), "gone")):
        with pytest.raises(OarlockError, match=message):
            trained.predict(images)


# What is accepted


def test_a_class_of_one_image_is_learned_with_a_warning(new_learner: NewLearner) -> None:
    learner = new_learner(ANIMALS)
    with pytest.warns(UserWarning, match="'eel' has a single image"):
        learner.learn(make_images(9, 1), ["eel"])
    learner.learn(*BIRDS)
    assert learner.classes_.tolist() == ["ant", "bee", "eel", "crow", "duck"]
    assert np.isfinite(learner.predict_proba(TEST[0])).all()


def test_the_first_image_ever_may_be_the_only_one(new_learner: NewLearner) -> None:
    learner = new_learner()
    with pytest.warns(UserWarning, match="single image"):
        learner.learn(make_images(9, 1), [9])
    assert learner.predict(make_images(3, 2)).tolist() == [9, 9]
    assert np.isfinite(learner.in_distribution(make_images(3, 2))).all()


def test_classes_of_two_images_bring_no_warning(new_learner: NewLearner) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_learner(make_task([0, 1], 2))


def test_the_same_images_in_any_form_give_the_same_learner(tmp_path: Path, new_learner: NewLearner) -> None:
    images, labels = make_task(["ant", "bee"], 6)
    paths = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = tmp_path / "classes" / label / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        paths.append(path)
    forms: dict[str, tuple] = {
        "paths": (paths, labels),
        "strings": ([str(path) for path in paths], labels),
        "PIL": ([Image.fromarray(image) for image in images], labels),
        "list of arrays": (list(images), labels),
        "folder": (tmp_path / "classes",),
        "folder by name": (str(tmp_path / "classes"),),
        "data set": (Pairs(images, labels),),
        "torch": (torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), labels),
        "floats": (images / 255, labels),
        "labels as an array": (images, np.array(labels)),
    }
    expected = snapshot(new_learner((images, labels)))
    for task in forms.values():
        assert_same(snapshot(new_learner(task)), expected)


def test_mixed_sizes_grey_and_transparent_images_are_learned(new_learner: NewLearner) -> None:
    pictures = [
        Image.new("RGB", (40, 20), "red"),
        Image.new("L", (16, 16), 40),
        Image.new("RGBA", (9, 30), (255, 0, 0, 128)),
        Image.new("P", (64, 64)),
        make_images(3, 1)[0],
        make_images(3, 1, 32)[0, ..., :1],
    ]
    learner = new_learner((pictures, ["odd", "even"] * 3))
    assert set(learner.predict(pictures)) <= {"odd", "even"}


def test_grey_arrays_are_three_equal_channels(new_learner: NewLearner) -> None:
    images, labels = make_task([0, 1])
    grey = images[..., 0]
    assert_same(*(snapshot(new_learner((form, labels))) for form in (grey, np.stack([grey] * 3, -1))))


def test_a_prepared_tensor_is_predicted_like_its_images(trained: Learner) -> None:
    prepared = prepare(TEST[0], trained.trunk.card.preprocessing)
    assert np.array_equal(trained.predict_proba(prepared), trained.predict_proba(TEST[0]))


def test_a_watcher_sees_phases_steps_and_checkpoints(new_learner: NewLearner) -> None:
    seen: list[str] = []

    class Callback(NoCallback):
        def on_phase(self, task: int, phase: Any) -> None:
            seen.append(phase.name)

        def on_step(self, epoch: int, fraction: float, loss: Any) -> None:
            assert 0 < fraction <= 1
            assert np.isfinite(loss.value.item())
            seen.append("step")

    new_learner(ANIMALS).learn(*BIRDS, callback=Callback())
    assert [name for name in seen if name != "step"] == ["features", "within-task head", "OOD heads"]
    assert seen.count("step") > 10


def test_the_trunk_is_never_written_to(tiny_trunk: Trunk, new_learner: NewLearner) -> None:
    before = {name: value.clone() for name, value in tiny_trunk.tensors().items()}
    new_learner(ANIMALS, BIRDS, adapt_last=None)
    assert all(torch.equal(value, before[name]) for name, value in tiny_trunk.tensors().items())
    assert not any(parameter.requires_grad for parameter in tiny_trunk.parameters())


# Files


@pytest.fixture(scope="module")
def model_file(trained: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.oar"
    trained.save(path)
    return path


def test_a_model_file_is_safetensors_with_a_description_and_nothing_that_runs(model_file: Path) -> None:
    content = model_file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert set(metadata) == {"oarlock"}
    assert [task["classes"] for task in json.loads(metadata["oarlock"])["tasks"]] == [
        ["ant", "bee"],
        ["crow", "duck"],
    ]
    ends = [entry["data_offsets"][1] for entry in header.values()]
    assert max(ends) == len(content) - 8 - length  # nothing but the tensors that the header names
    assert {entry["dtype"] for entry in header.values()} <= {"F16", "F32", "F64", "I64", "U8", "BOOL"}
    assert b"pickle" not in content
    assert not content.startswith((b"PK", b"\x80"))  # neither torch's zip nor a bare pickle


def test_loading_runs_no_pickle(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    oarlock.load(model_file)


def test_a_learner_loaded_in_another_process_predicts_the_same_bytes(
    trained: Learner, model_file: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "images.npy", TEST[0])
    code = (
        "import sys, numpy, torch, oarlock\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        "learner = oarlock.load(sys.argv[1])\n"
        "images = numpy.load(sys.argv[2])\n"
        "parts = [learner.predict_proba(images), learner.in_distribution(images)]\n"
        "print(''.join(part.tobytes().hex() for part in parts), ','.join(learner.predict(images)))\n"
    )
    command = [sys.executable, "-c", code, str(model_file), str(tmp_path / "images.npy")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=300)
    assert done.returncode == 0, done.stderr
    numbers, answers = done.stdout.split()
    expected = trained.predict_proba(TEST[0]).tobytes() + trained.in_distribution(TEST[0]).tobytes()
    assert bytes.fromhex(numbers) == expected
    assert answers.split(",") == trained.predict(TEST[0]).tolist()


def test_saving_twice_and_saving_what_was_loaded_gives_the_same_content(
    trained: Learner, model_file: Path, tmp_path: Path
) -> None:
    trained.save(tmp_path / "again.oar")
    oarlock.load(model_file).save(tmp_path / "loaded.oar")
    assert_same(read_tensors(tmp_path / "again.oar", "model"), read_tensors(model_file, "model"))
    assert_same(read_tensors(tmp_path / "loaded.oar", "model"), read_tensors(model_file, "model"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.oar", "loaded.oar"]  # no temporary is left


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(share: float, model_file: Path, tmp_path: Path) -> None:
    content = model_file.read_bytes()
    (tmp_path / "cut.oar").write_bytes(content[: int(share * len(content))])
    with pytest.raises(OarlockError, match=r"cut\.oar"):
        oarlock.load(tmp_path / "cut.oar")


def test_a_flipped_bit_anywhere_is_noticed(model_file: Path, tmp_path: Path) -> None:
    content = model_file.read_bytes()
    rng, path = np.random.default_rng(0), tmp_path / "flipped.oar"
    header = 8 + int.from_bytes(content[:8], "little")
    places = [*range(8), *rng.integers(8, header, 40), *rng.integers(header, len(content), 40), len(content) - 1]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(OarlockError, match=r"flipped\.oar"):
            oarlock.load(path)


def test_foreign_and_missing_files_are_refused(tmp_path: Path, tiny_trunk: Trunk) -> None:
    import safetensors.torch

    (tmp_path / "text.oar").write_text("not a model")
    (tmp_path / "photo.oar").write_bytes(_png())
    torch.save({"weight": torch.zeros(2)}, tmp_path / "torch.oar")
    safetensors.torch.save_file(tiny_trunk.tensors(), tmp_path / "tensors.oar")
    (tmp_path / "folder.oar").mkdir()
    for name in ("text", "photo", "torch", "tensors", "folder", "missing"):
        with pytest.raises(OarlockError, match=rf"{name}\.oar"):
            oarlock.load(tmp_path / f"{name}.oar")


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "png")
    return buffer.getvalue()


def test_an_interrupted_save_leaves_the_old_file(
    trained: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.oar"
    path.write_bytes(b"old")

    def fail(*_: Any) -> None:
        raise OSError(28, "disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OarlockError, match=r"cannot be written .disk full"):
        trained.save(path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.oar"]


def test_compacting_loses_nothing() -> None:
    exact = torch.tensor([0.0, -0.0, 1.5, -65504.0, 2.0**-24])
    assert compact(exact).dtype == torch.float16
    for values in ([0.1], [1e6], [float("nan")], [2.0**-25], [1.0, 1 + 2.0**-20]):
        assert compact(torch.tensor(values)).dtype == torch.float32
    assert compact(torch.tensor([1, 2])).dtype == torch.int64


def test_the_bundled_trunk_survives_compacting_bit_for_bit() -> None:
    tensors = load_trunk("vit_pico").tensors()
    for value in tensors.values():
        again = compact(value).to(value.dtype)
        assert again.numpy().tobytes() == value.numpy().tobytes() if value.ndim else torch.equal(again, value)
    halves = sum(compact(value).dtype == torch.float16 for value in tensors.values())
    assert halves > len(tensors) / 2


def test_entries_count_trunk_and_method_without_stored_images(trained: Learner) -> None:
    tensors, _ = trained.state()
    memory = sum(value.numel() for name, value in tensors.items() if name.startswith("method.memory."))
    kept = sum(value.numel() for name, value in tensors.items() if name.startswith(("method.", "trunk.")))
    assert trained.entries() == kept - memory


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("width", 0),
        ("batch", 0),
        ("head_batch", -1),
        ("epochs", -1),
        ("adapt_last", 0),
        ("lr", -0.1),
        ("lr", float("nan")),
        ("momentum", 1.5),
        ("s_max", 0),
        ("tau", 0),
        ("gamma", float("inf")),
        ("shrinkage", 2),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(OarlockError, match=f"option {option}={value}"):
        Learner("oar", **{option: value})


def test_scoring_wants_one_label_per_image(trained: Learner) -> None:
    images, labels = make_task(["ant", "bee"], 3)
    with pytest.raises(OarlockError, match="6 images but 1 labels"):
        trained.score(images, labels[:1])


def test_a_model_saved_twice_is_the_same_bytes(trained: Learner, tmp_path: Path) -> None:
    for name in ("a.oar", "b.oar"):
        trained.save(tmp_path / name)
    assert (tmp_path / "a.oar").read_bytes() == (tmp_path / "b.oar").read_bytes()


def test_a_place_that_cannot_be_written_is_named(trained: Learner, tmp_path: Path) -> None:
    with pytest.raises(OarlockError, match="cannot be written"):
        trained.save(tmp_path / "missing" / "model.oar")


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": 2.5},
        {"memory": "9"},
        {"memory": None},
        {"calibration": "0.1"},
        {"calibration": 1.0},
        {"seed": "abc"},
        {"seed": 1.7},
        {"trunk": 3},
        {"device": 1.5},
        {"device": "gramophone"},
    ],
)
def test_an_argument_that_makes_no_sense_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(OarlockError, match=next(iter(wrong))):
        Learner("oar", **wrong)


def test_loading_onto_a_device_that_is_not_there_is_refused(model_file: Path) -> None:
    with pytest.raises(OarlockError, match="device='gramophone'"):
        oarlock.load(model_file, device="gramophone")


def test_a_class_of_five_images_can_spare_one_for_calibration(tiny_trunk: Trunk) -> None:
    learner = Learner("oar", trunk=tiny_trunk, memory=8, epochs=1)
    assert len(learner.prepare_task(*make_task(["a", "b"], 5)).calibration) == 2
    assert len(learner.prepare_task(*make_task(["a", "b"], 4)).calibration) == 0


def test_scoring_with_labels_of_another_kind_is_refused(trained: Learner) -> None:
    images, _ = make_task(["ant"], 2)
    with pytest.raises(OarlockError, match="another kind"):
        trained.score(images, [1, 1])


def test_training_that_diverges_in_its_last_step_is_noticed(tiny_trunk: Trunk) -> None:
    learner = Learner("row", trunk=tiny_trunk, memory=8, lr=1e30, epochs=1, batch=64, wp_epochs=0, ood_epochs=0)
    with pytest.raises(OarlockError, match="diverged"):
        learner.learn(*make_task(["a", "b"], 6))
    assert learner.tasks_ == []


def test_what_becomes_of_the_file_changes_nothing_of_a_loaded_model(
    trained: Learner, new_learner: NewLearner, tmp_path: Path
) -> None:
    file, other = tmp_path / "model.oar", tmp_path / "other.oar"
    trained.save(file)
    new_learner(make_task(["crow", "duck"], 20, seed=5), ANIMALS).save(other)
    whole = file.read_bytes()
    loaded, threshold = oarlock.load(file), trained.threshold(0.9)
    for content in (other.read_bytes(), b"", bytes(len(whole))):
        file.write_bytes(content)  # into the same file, as cp does it
        assert loaded.threshold(0.9) == threshold
        loaded.save(tmp_path / "again.oar")
        assert (tmp_path / "again.oar").read_bytes() == whole


def test_a_loaded_model_holds_its_tensors_once(trained: Learner, tmp_path: Path) -> None:
    """Those that were read are those of the modules."""
    trained.save(tmp_path / "model.oar")
    tensors, description = read_tensors(tmp_path / "model.oar", "model")
    loaded = Learner.from_state(tensors, description)
    places = {value.data_ptr() for value in loaded.method.state_dict().values() if value.numel()}
    read = {value.data_ptr() for name, value in tensors.items() if name.startswith("method.") and value.numel()}
    assert read == places


def test_a_model_that_is_a_link_is_replaced_where_it_is(trained: Learner, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    real, link = tmp_path / "models" / "real.oar", tmp_path / "shop.oar"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    trained.save(link)
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    assert oarlock.load(real).tasks_ == trained.tasks_
    with pytest.raises(OarlockError, match="/dev/null is no file"):
        trained.save("/dev/null")
