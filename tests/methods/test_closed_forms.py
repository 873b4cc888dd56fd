"""What every method in closed form promises: the answer of learning everything at once, in whatever order classes
come and however they are cut into tasks. A new one is covered as soon as it is registered."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import make_task
from contract.conftest import options_of
from oarlock import Learner
from oarlock.methods import methods
from oarlock.methods._closed_form import ClosedFormMethod
from oarlock.nets.trunks import Trunk

CLOSED = sorted(name for name, cls in methods.all().items() if issubclass(cls, ClosedFormMethod))
CLASSES = ["a", "b", "c", "d", "e", "f"]
COUNTS = {"a": 5, "b": 14, "c": 9, "d": 30, "e": 9, "f": 1}  # fewer images than features, more, and one
TEST = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)  # far from all: real choices

every_closed_form = pytest.mark.parametrize("name", CLOSED)


def options(name: str) -> dict[str, object]:
    small = {"random_features": 40} if "random_features" in options_of(name) else {}
    return {**small, **methods.find(name).exact_with}


def taught(name: str, trunk: Trunk, tasks: list[str], shuffle: int = 0, **more: object) -> Learner:
    learner = Learner(name, trunk=trunk, calibration=0.0, **{**options(name), **more})
    for classes in tasks:
        images = np.concatenate([make_task([one], COUNTS[one])[0] for one in classes])
        labels = [one for one in classes for _ in range(COUNTS[one])]
        order = np.random.default_rng(shuffle).permutation(len(labels)) if shuffle else np.arange(len(labels))
        learner.learn(images[order], [labels[index] for index in order])
    return learner


def scores(learner: Learner) -> Tensor:
    """Of the test images, classes in alphabetical order, and of each the largest 0: what is left of its constant."""
    method = learner.method
    with torch.no_grad():
        found = method.scores(method.encode(torch.from_numpy(TEST).permute(0, 3, 1, 2), method.feature_sets(1)))
    found = found[:, np.argsort(learner.classes_)].double()
    return found - found.amax(1, keepdim=True)


def assert_same(one: Learner, other: Learner) -> None:
    mine, others = scores(one), scores(other)
    assert torch.allclose(mine, others, rtol=0, atol=1e-6 * float(mine.abs().max()))
    assert one.predict(TEST).tolist() == other.predict(TEST).tolist()
    assert len(set(one.predict(TEST).tolist())) > 1


@every_closed_form
@pytest.mark.parametrize("tasks", [["fedcba"], ["cafe", "bd"], ["f", "e", "d", "c", "b", "a"]])
def test_neither_the_order_of_classes_nor_the_cut_matters(name: str, tasks: list[str], tiny_trunk: Trunk) -> None:
    assert_same(taught(name, tiny_trunk, ["abcdef"]), taught(name, tiny_trunk, tasks, shuffle=1))


@every_closed_form
def test_a_task_s_images_pass_the_trunk_once(name: str, tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, encode = [], ClosedFormMethod.encode_chunk

    def counted(method: ClosedFormMethod, images: Tensor, sets: Sequence[int]) -> Tensor:
        seen.append(len(images))
        return encode(method, images, sets)

    monkeypatch.setattr(methods.find(name), "encode_chunk", counted)
    taught(name, tiny_trunk, ["ab", "cd"])
    assert sum(seen) == sum(COUNTS[one] for one in "abcd")


@every_closed_form
def test_no_image_is_kept_and_nothing_is_trained(name: str, tiny_trunk: Trunk) -> None:
    learner = taught(name, tiny_trunk, ["ab", "cd"], memory=1)
    assert list(learner.method.parameters()) == []
    assert len(learner.method.memory) == 0 and not learner.method.needs_memory


@every_closed_form
def test_answers_are_in_single_precision(name: str, tiny_trunk: Trunk) -> None:
    learner = taught(name, tiny_trunk, ["abc"])
    assert learner.method.scores(torch.zeros(1, 1, tiny_trunk.dim)).dtype == torch.float32


@every_closed_form
def test_its_size_does_not_depend_on_the_tasks(name: str, tiny_trunk: Trunk) -> None:
    one, other = (taught(name, tiny_trunk, tasks).entries() for tasks in (["abcdef"], ["fe", "dcba"]))
    assert one == other
