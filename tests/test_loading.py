"""A file's description is not trusted because its checksum fits."""

import copy
import io
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from conftest import Command, make_images, make_task, make_tiny_convnet
from oarlock import Learner, OarlockError, load
from oarlock import session as sessions
from oarlock.data.jpeg import from_jpeg, to_jpeg
from oarlock.files import read_tensors, write_tensors
from oarlock.modelfile.inspect import check_tasks
from oarlock.nets.skeleton import check_finite
from oarlock.nets.trunks import Trunk
from oarlock.session import Session, read_checkpoint
from oarlock.training import NoCallback

SMALL = {"width": 8, "adapt_last": 2, "batch": 8, "head_batch": 8, "epochs": 1, "wp_epochs": 1, "ood_epochs": 1}

NO_NUMBERS = (float("nan"), float("inf"), -float("inf"))

Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], object]


@pytest.fixture(scope="module")
def written(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "good.oar"
    learner = Learner("oar", trunk=tiny_trunk, memory=8, few=0, **SMALL)
    learner.learn(*make_task(["ant", "bee"], 6)).learn(*make_task(["cow", "dog"], 6)).save(path)
    return path


@pytest.fixture(autouse=True)
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def changed(original: Path, change: Change, kind: str = "model") -> Path:
    """The file with something else in it, and a checksum that fits."""
    tensors, description = read_tensors(original, kind)
    change(tensors, description)
    path = original.with_name(f"changed{original.suffix}")
    write_tensors(path, kind, tensors, description)
    return path


def put(value: Any, *path: Any) -> Change:
    """Put a value into the description, where a path leads."""

    def change(_: dict[str, torch.Tensor], description: dict[str, Any]) -> None:
        place: Any = description
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


def fill(name: str, value: float) -> Change:
    return lambda tensors, _: tensors[name].fill_(value)


def refusal(path: Path) -> str:
    with pytest.raises(OarlockError) as refused:
        load(path)
    message = str(refused.value)
    assert str(path) in message and "\n" not in message
    return message


def grow(tensors: dict[str, torch.Tensor], description: dict[str, Any]) -> None:
    """A hundred thousand tasks of one class, with all that the description says of tasks."""
    task = description["tasks"][0] | {"classes": ["x"], "images": [1], "promise": None}
    description["tasks"] = [task | {"classes": [f"class {number}"]} for number in range(100_000)]
    description["shapes"]["classes_per_task"] = [1] * 100_000


NOTE = {"edit": "rename", "labels": ["a", "b"], "tasks": 1, "when": None, "photos": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put([1] * 100_000, "shapes", "classes_per_task"), "classes_per_task is a list of 100000"),
        (grow, "tasks is a list of 100000"),
        (put([2, 2, 5], "shapes", "classes_per_task"), "has begun 1 tasks that it has not finished"),
        (put([2, 3], "shapes", "classes_per_task"), "its tasks are others"),
        (put([{**NOTE, "edit": "explode"}], "edits"), "edits[0].edit is 'explode'"),
        (put([{**NOTE, "labels": [None]}], "edits"), "edits[0].labels[0] is None"),
        (put([{**NOTE, "photos": "x"}], "edits"), "edits[0].photos is 'x'"),
        (put([{**NOTE, "more": 1}], "edits"), "edits[0] cannot have a 'more'"),
        (put([1, 2], "tasks", 0, "classes"), "some by text and some by numbers"),
        (put("\x1b[31m[/x]", "tasks", 0, "learned"), "tasks[0].learned is"),
        (put({"threads": 1}, "tasks", 0, "promise", "machine"), "machine has no 'cpu'"),
        (put([6], "tasks", 0, "images"), "other classes than numbers of images"),
        (put("no", "method"), "there is no method 'no'"),
        (put("slda", "method"), "slda has no option"),
        (put({"trunk": "x"}, "config"), "oar has no option 'trunk'"),
        (put([], "config", "protector"), "config.protector"),
        (put(10**12, "config", "width"), "width"),
        (put([10**12, 5], "shapes", "memory"), "fit"),
        (put([10**9, 3], "calibration"), "known_scores"),
        (put([[8], [8], [8], [10**15]], "shapes", "protector", "bottlenecks"), "shapes.protector"),
        (put([[2000] * 4] * 2, "shapes", "protector", "tasks"), "fit together"),
        (put(10**9, "memory"), ""),
        (put({"blocks.0.attn.qkv": [72, 24]}, "shapes", "tuning", "layers"), "1 tensors differ"),
        (put({"blocks.9.no": [1, 1]}, "shapes", "tuning", "layers"), "has no layer 'blocks.9.no'"),
        (put(0.5, "known_scores"), "known_scores is 0.5"),
        (lambda tensors, _: tensors.pop("method.wp_heads.0.bias"), "'method.wp_heads.0.bias'"),
        (lambda tensors, _: tensors.update({"method.x": torch.zeros(1)}), "'method.x'"),
        (lambda tensors, _: tensors.update({"tasks.7.images": torch.zeros(1)}), "'tasks.7.images'"),
        (lambda tensors, _: tensors.update({"method.wp_heads.0.bias": torch.zeros(2).double()}), "float64"),
        (fill("method.wp_heads.0.weight", float("nan")), "no number"),
        (fill("known_scores", float("nan")), "no number"),
        (fill("method.memory.labels", 4), "other classes than its 4"),
        (fill("method.memory.labels", -1), "other classes than its 4"),
        (fill("calibration.labels", 2**40), "other classes than its 4"),
        (fill("method.trunk_gaussians.count", 0), "cannot be of 0 images"),
        (fill("method.trunk_gaussians.scatter.triangle", -1.0), "does not fit together"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence_at_once(written: Path, change: Change, message: str) -> None:
    path, before = changed(written, change), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if not message:  # a budget is room for images, and takes none
        assert load(path).method.budget == 10**9
        return
    assert message in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


# Trunks


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What timm is asked for."""
    names: list[str] = []

    def create(name: str, **_: Any) -> None:
        names.append(name)
        raise AssertionError(name)

    monkeypatch.setattr(timm, "create_model", create)
    yield names


NAMES = ("hf-hub:a/b", "hf_hub:a/b", "local-dir:/etc", "resnet18/../x", "resnet18.a:b", "resnet18.a@b", "a\\b", "no")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["vit", "stages", "features"])
@pytest.mark.parametrize("embedded", [True, False])
def test_a_name_in_a_file_leads_to_timm_s_own_networks_only(
    written: Path, asked: list[str], name: str, family: str, embedded: bool
) -> None:
    def change(_: dict[str, torch.Tensor], description: dict[str, Any]) -> None:
        description["trunk"]["card"] |= {"name": name, "family": family, "architecture": None}
        description["trunk"]["embedded"] = embedded

    assert "timm has no network" in refusal(changed(written, change))
    assert asked == []


def test_a_user_s_own_call_is_refused_such_names_too(asked: list[str]) -> None:
    for name in NAMES:
        with pytest.raises(OarlockError):
            Learner("slda", trunk=name)
    assert asked == []


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({"depth": 10**6}, "depth is 1000000"),
        ({"embed_dim": 10**9}, "embed_dim"),
        ({"norm_layer": "x"}, "cannot have a 'norm_layer'"),
        ({"weight_init": "jax"}, "cannot have a 'weight_init'"),
        ({"img_size": 64}, "does not fit together"),  # the card says 16
        ({"num_heads": 5}, "does not fit together"),
        ({"stem": "convolutions"}, "does not fit together"),
        ({"depth": 5}, "weights in tiny do not fit"),
        ({"depth": 250}, "describes more tensors than there are"),
    ],
)
def test_an_architecture_is_numbers_that_fit(written: Path, architecture: dict[str, Any], message: str) -> None:
    def change(_: dict[str, torch.Tensor], description: dict[str, Any]) -> None:
        description["trunk"]["card"]["architecture"] |= architecture

    assert message in refusal(changed(written, change))


@pytest.mark.parametrize("name", ["vit_pico", "efficientnet_lite0"])
def test_only_a_card_that_could_be_anybodys_has_to_see_an_image(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "ours.oar", list[int]()
    Learner("slda", trunk=name).learn(*make_task(["ant", "bee"], 6)).save(path)
    trunk = type(load(path).trunk)
    forward = trunk.forward

    def look(self: Trunk, images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(trunk, "forward", look)
    load(path)
    assert seen == []
    card = ("trunk", "card")
    for change in (put("another", *card, "name"), put(16, *card, "preprocessing", "size")):
        with suppress(OarlockError):
            load(changed(path, change))
        assert seen.pop() == 1


@pytest.mark.parametrize("block", ["ds_r99_k3_s1_e1_c9999_noskip", "xx_r1_k3_s1_e1_c8", "ds_r1_k3_s1_e1_c8_nre", 5])
def test_blocks_of_a_convolutional_network_are_numbers_too(tmp_path: Path, block: Any) -> None:
    path = tmp_path / "lite.oar"
    Learner("slda", trunk=make_tiny_convnet()).learn(*make_task(["ant", "bee"], 6)).save(path)
    path = changed(path, put([block] * 3, "trunk", "card", "architecture", "blocks"))
    assert "blocks[0] is" in refusal(path)


@pytest.mark.parametrize("rule", [{"size": 10**6}, {"resize": 10**9}, {"std": [0, 1, 1]}, {"mean": [1]}])
def test_images_are_asked_for_in_a_size_and_a_range_that_there_is(written: Path, rule: dict[str, Any]) -> None:
    def change(_: dict[str, torch.Tensor], description: dict[str, Any]) -> None:
        description["trunk"]["card"]["preprocessing"] |= rule

    assert f"preprocessing.{next(iter(rule))}" in refusal(changed(written, change))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *product((torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2), NO_NUMBERS),
        (torch.float8_e4m3fn, float("nan")),  # which has no infinity
    ],
)
def test_one_number_that_is_none_among_many_is_found(kind: torch.dtype, value: float) -> None:
    tensors = {
        "weight": torch.ones(3, 100).to(kind),
        "empty": torch.zeros(0).to(kind),
        "ids": torch.ones(2).long(),
    }
    check_finite(tensors, "it")
    tensors["weight"][1, 70] = value
    with pytest.raises(OarlockError, match="'weight' holds what is no number"):
        check_finite(tensors, "it")


# What is used later


def test_a_promise_is_checked_on_as_many_threads_as_there_can_be(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = load(changed(written, put(10**6, "tasks", 0, "promise", "machine", "threads")))
    counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    checks = check_tasks(learner)
    assert max(counts) <= 256
    assert [task.check.holds for task in checks] == [True, True]
    assert not checks[0].check.same_machine


def test_what_a_file_says_cannot_steer_the_terminal(
    oarlock: Command, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(_: dict[str, torch.Tensor], description: dict[str, Any]) -> None:
        steering = "\x1b[31m[bold]x[/y]"
        description["trunk"]["card"] |= {"name": steering, "source": steering}
        description["tasks"][0]["classes"][0] = steering
        description["tasks"][0]["promise"]["machine"] |= {"cpu": steering, "torch": steering}
        description["tasks"][0]["promise"]["constants"] = {"means": "0" * 64}

    path = changed(written, change)
    assert oarlock("inspect", path) == 0
    assert oarlock("verify", path) == 1
    path = changed(written, put({"a\x1b[31mb": []}, "config"))
    assert oarlock("inspect", path) == 2
    printed = capsys.readouterr()
    assert "[bold]" in printed.out and "\x1b" not in printed.out + printed.err


def test_answers_that_are_no_numbers_are_told(written: Path) -> None:
    learner = load(changed(written, fill("method.wp_heads.0.weight", 3e38)))
    with pytest.warns(UserWarning, match="scores of 2 of 2 images are not numbers"):
        learner.predict_proba(make_images(1, 2))
    with pytest.warns(UserWarning, match="not numbers"):
        assert learner.predict(make_images(1, 2), accept=0.9).tolist() == [None, None]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "good.oar"
    Learner("slda", trunk=make_tiny_convnet(), size=64).learn(*make_task(["ant", "bee"], 6, size=64)).save(path)
    return path


def replace_images(files: list[bytes]) -> Change:
    def change(tensors: dict[str, torch.Tensor], description: dict[str, Any]) -> None:
        count, sets, dim = len(files), *tensors["calibration.encoded"].shape[1:]
        joined = b"".join(files)
        tensors["calibration.files"] = torch.frombuffer(bytearray(joined), dtype=torch.uint8)
        tensors["calibration.lengths"] = torch.tensor([len(file) for file in files])
        tensors["calibration.labels"] = torch.zeros(count, dtype=torch.long)
        tensors["calibration.encoded"] = torch.zeros(count, sets, dim)
        tensors["known_scores"] = torch.zeros(count)
        description |= {"calibration": [count, sets, len(joined)], "known_scores": count}

    return change


def jpeg(size: int, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), 90, np.uint8)).save(file, "JPEG", **options)
    return file.getvalue()


def test_kept_photographs_are_of_the_trunk_s_size_in_one_pass_and_not_more_than_their_bytes_can_hold(
    packed: Path,
) -> None:
    assert len(load(changed(packed, replace_images([jpeg(64)] * 2))).calibration) == 2
    for files, message in (
        ([jpeg(64), jpeg(4000)], "is not 64 × 64 pixels"),
        ([jpeg(64), jpeg(64, progressive=True)], "in one pass"),
        ([jpeg(64), b"\x89PNG"], "cannot be read"),
        ([jpeg(64)] + [b""] * 30_000, "30001 images of 64 × 64 pixels cannot be in"),
    ):
        assert message in refusal(changed(packed, replace_images(files)))


def test_our_own_files_are_in_one_pass() -> None:
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    assert from_jpeg(to_jpeg(images), 64).shape == images.shape


def test_a_reservoir_holds_what_it_was_offered(tiny_trunk: Trunk, tmp_path: Path) -> None:
    path = tmp_path / "good.oar"
    Learner("derpp", trunk=tiny_trunk, memory=4, width=8, epochs=1).learn(*make_task(["ant", "bee"], 6)).save(path)
    assert len(load(path).method.memory) == 4
    for name, value in (("offered", 3), ("offered", -1), ("earlier", 5), ("known", 3), ("known", -1), ("rows", -2)):
        assert "other images than it was offered" in refusal(changed(path, fill(f"method.memory.{name}", value)))
    assert "other images than it was offered" in refusal(changed(path, put(10**9, "memory")))


def test_a_learner_is_not_changed_by_a_state_it_refuses(written: Path) -> None:
    learner = load(written)
    tensors, description = copy.deepcopy(learner.state())
    description["tasks"][0]["classes"] = []
    before = learner.predict_proba(make_images(1, 3))
    with pytest.raises(OarlockError, match="classes is a list of 0"):
        Learner.from_state(tensors, description)
    assert np.array_equal(learner.predict_proba(make_images(1, 3)), before)


# Checkpoints


@pytest.fixture(scope="module")
def checkpoint(written: Path) -> Path:
    """In the middle of the first phase of a third task."""

    class Stop(NoCallback):
        def on_checkpoint(self, position: Any, optimiser: Any) -> None:
            if position.epoch == 2:
                raise KeyboardInterrupt

    path, learner = written.with_name("state.safetensors"), load(written)
    learner.set_epochs(4)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(sessions, "CHECKPOINT_SECONDS", 0.0)
        Session(learner, path).learn(learner.prepare_task(*make_task(["eel", "fox"], 6)), Stop())
    return path


def resume(path: Path) -> Learner:
    saved = read_checkpoint(path)
    learner = Learner.from_state(*saved.state)
    Session(learner, saved=saved).learn(learner.prepare_task(*make_task(["eel", "fox"], 6)), NoCallback())
    return learner


def test_a_checkpoint_goes_on(checkpoint: Path) -> None:
    saved = read_checkpoint(checkpoint)
    assert saved.position == (2, 0, 1) and saved.optimiser
    assert resume(checkpoint).tasks_[2] == ["eel", "fox"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put([2, 0], "position"), "position is a list of 2"),
        (put([2, 0, 0], "position"), "has begun 1 tasks"),
        (put([3, 0, 1], "position"), "task 4 cannot be what comes next"),
        (put([2, 99, 0], "position"), "phase 99, epoch 0 is not where"),
        (put([2, 0, 99], "position"), "phase 0, epoch 99 is not where"),
        (put({}, "learner"), "it has no 'method'"),
        (put([], "facts"), "facts is a list"),
        (lambda tensors, _: tensors.update({"x.y": torch.zeros(1)}), "no part of a checkpoint"),
        (lambda tensors, _: tensors.update({"optimiser.x.y": torch.zeros(1)}), "optimiser keeps 'x.y'"),
        (lambda tensors, _: tensors.update({"optimiser.0.y": torch.zeros(1)}), "optimiser keeps '0.y'"),
        (
            lambda tensors, _: tensors.update({"optimiser.0.momentum_buffer": torch.zeros(3, 1, 2)}),
            "optimiser keeps '0.momentum_buffer'",
        ),
        (fill("optimiser.0.momentum_buffer", float("inf")), "no number"),
    ],
)
def test_a_checkpoint_that_nobody_wrote_is_refused(checkpoint: Path, change: Change, message: str) -> None:
    path = changed(checkpoint, change, "checkpoint")
    with pytest.raises(OarlockError) as refused:
        resume(path)
    assert message in str(refused.value)
