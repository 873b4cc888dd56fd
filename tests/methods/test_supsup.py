"""SupSup: the authors' numbers on a small net, gradients by finite differences, and what is made of a task found."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import make_task
from oarlock import Learner, OarlockError, load
from oarlock.methods.supsup import SupSup
from oarlock.nets.protectors.supsup import MaskedLinear, largest

OPTIONS = {"epochs": 2, "width": 8, "batch": 8, "outputs": 5}
TASKS = [["a", "b"], ["c"], ["d", "e", "f"]]


def taught(trunk, tasks=TASKS, **options) -> Learner:
    learner = Learner("supsup", trunk=trunk, **(OPTIONS | options))
    for labels in tasks:
        learner.learn(*make_task(labels))
    return learner


# The authors' released code (github.com/RAIVNLab/supsup, commit 6a31878) on two masked layers with relu between them,
# five tasks: what their `MultitaskMaskConv`, `se_oneshot_minimization` and `se_binary_minimization` make of the
# numbers of `values`.

THEIR_LOGITS = [
    [0.0, -0.375456, 0.789961, 0.414505, 0.0],
    [-0.338287, -1.052545, 0.0, 0.0, -0.905008],
    [-0.495403, 0.414782, 0.0, 0.0, -1.548721],
    [1.092367, -0.005176, 1.610183, 2.133177, -0.031993],
    [0.0, 0.039048, 0.530048, 1.506872, 0.530048],
]  # of the first input, under every task
THEIR_GRADIENTS = [
    [-0.267981, -0.247332, -0.275694, -0.232524, -0.24269],
    [-0.043574, -0.034037, -0.01712, -0.011042, -0.037878],
    [0.014735, -0.049838, -0.052462, -0.037121, -0.11095],
    [-0.017867, -0.014412, -0.017711, -0.014256, 0.018095],
    [-0.314184, -0.140917, -0.165038, -0.128352, -0.135939],
    [-0.001035, -0.001559, -0.005026, 0.00342, 0.001808],
    [-0.223735, -0.201632, -0.112019, -0.228588, -0.309681],
]  # of the entropy, of every input, at equal shares
THEIR_ONE_SHOT = [2, 0, 4, 0, 0, 2, 4]
THEIR_BINARY = [2, 0, 4, 2, 0, 0, 3]
THEIR_SCORE_GRADIENT = [-0.046719, 0.019648, -0.004622, -0.063618, 0.029073, 0.019121]  # of the first row's scores


def values(shape: tuple[int, ...], a: float, b: float) -> Tensor:
    numbers = [math.sin(a * i * i + b * i + 1) for i in range(math.prod(shape))]
    return torch.tensor(numbers, dtype=torch.double).view(shape).float()


def masked(shape: tuple[int, int], constants: tuple[float, float], scores: tuple[float, float]) -> MaskedLinear:
    outputs, inputs = shape
    layer = MaskedLinear(inputs, outputs, share=0.3)
    layer.constants.copy_(values(shape, *constants).sign() * layer.size)
    for task in range(5):
        layer.add(learning=False)
        layer.masks[task] = largest(values(shape, scores[0] + 0.1 * task, scores[1]).abs(), 0.3).bool()
    return layer


@pytest.fixture
def theirs(tiny_trunk, monkeypatch: pytest.MonkeyPatch) -> tuple[SupSup, MaskedLinear, Tensor]:
    """Our method over their net: a first layer in place of trunk and adapters, a second as the output layer."""
    method = Learner("supsup", trunk=tiny_trunk, **OPTIONS).method
    first, second = masked((8, 6), (0.7, 0.3), (0.31, 0.17)), masked((5, 8), (0.9, 0.2), (0.41, 0.13))
    method.output.blocks.append(second)
    method.output.begun_with = [1] * 5

    def superposed(inputs: Tensor, shares: Tensor) -> Tensor:
        return (first.superposed(shares) @ inputs[:, :, None])[:, :, 0].relu()

    monkeypatch.setattr(method.protector, "superposed", superposed)
    return method, first, 2 * values((7, 6), 0.23, 0.11)


@torch.no_grad()
def test_every_tasks_answer_is_that_of_the_authors_code(theirs) -> None:
    method, first, x = theirs
    ours = [method.output(F.linear(x[:1], first.weight(task)).relu(), task)[0] for task in range(5)]
    torch.testing.assert_close(torch.stack(ours), torch.tensor(THEIR_LOGITS), rtol=1e-4, atol=2e-6)


def test_entropy_gradients_are_those_of_the_authors_code(theirs) -> None:
    method, _, x = theirs
    ours = method.entropy_gradient(x, torch.full((7, 5), 0.2))
    torch.testing.assert_close(ours, torch.tensor(THEIR_GRADIENTS), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(("search", "found"), [("one-shot", THEIR_ONE_SHOT), ("binary", THEIR_BINARY)])
def test_tasks_are_found_as_by_the_authors_code(theirs, search: str, found: list[int]) -> None:
    method, _, x = theirs
    object.__setattr__(method.config, "search", search)
    assert method.beliefs(x, 5).argmax(1).tolist() == found


def test_scores_get_the_gradient_of_the_authors_code(theirs) -> None:
    method, first, x = theirs
    first.masks = first.masks[:2]
    first.scores = torch.nn.Parameter(values((8, 6), 0.41, 0.17))
    logits = method.output(F.linear(x, first.weight(1)).relu(), 1)
    F.cross_entropy(logits, torch.arange(7) % 5).backward()
    torch.testing.assert_close(first.scores.grad[0], torch.tensor(THEIR_SCORE_GRADIENT), rtol=1e-4, atol=2e-6)


# On a trunk


def test_the_gradient_is_what_finite_differences_say(tiny_trunk) -> None:
    method = taught(tiny_trunk).method
    images = torch.from_numpy(make_task(["a", "d"], 2, seed=1)[0]).permute(0, 3, 1, 2)
    activations, step = method.protector.below(images), 1e-2
    shares = torch.rand(len(images), 3, generator=torch.Generator().manual_seed(0)).softmax(1)

    @torch.no_grad()
    def entropy(shares: Tensor) -> Tensor:
        features = method.protector.superposed(activations, shares)
        p = method.output.superposed(features, shares).double().softmax(1)
        return -(p * p.log()).sum(1)

    expected = [(entropy(shares + e) - entropy(shares - e)) / (2 * step) for e in step * torch.eye(3)]
    gradient = method.entropy_gradient(activations, shares).double()
    torch.testing.assert_close(gradient, torch.stack(expected, 1), rtol=0.02, atol=2e-4)


@pytest.mark.parametrize("search", ["one-shot", "binary"])
def test_an_images_task_does_not_depend_on_the_images_beside_it(tiny_trunk, search: str) -> None:
    learner = taught(tiny_trunk, search=search)
    images = make_task(["a", "c", "d"], 3, seed=1)[0]
    together, alone = learner.predict_proba(images), [learner.predict_proba(images[i : i + 1]) for i in range(9)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-3, atol=1e-6)


def test_binary_search_halves_the_tasks(tiny_trunk, monkeypatch: pytest.MonkeyPatch) -> None:
    method = taught(tiny_trunk, [[label] for label in "abcdefg"], search="binary", epochs=1).method
    asked: list[list[int]] = []
    gradient = method.entropy_gradient

    def noticed(activations: Tensor, shares: Tensor) -> Tensor:
        asked.append((shares > 0).sum(1).tolist())
        torch.testing.assert_close(shares.sum(1), torch.ones(len(shares)))
        return gradient(activations, shares)

    monkeypatch.setattr(method, "entropy_gradient", noticed)
    images = torch.from_numpy(make_task(["a", "b"], 2)[0]).permute(0, 3, 1, 2)
    believed = method.beliefs(method.protector.below(images), 7)
    assert asked == [[7] * 4, [4] * 4, [2] * 4]
    assert believed.amax(1).tolist() == [3.0] * 4


@pytest.mark.parametrize("search", ["one-shot", "binary"])
def test_the_answer_is_the_best_class_of_the_task_that_was_found(tiny_trunk, search: str) -> None:
    learner = taught(tiny_trunk, search=search)
    method, names = learner.method, [label for labels in TASKS for label in labels]
    images = make_task(names, 3, seed=1)[0]
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    activations = method.protector.below(pixels)
    found = method.beliefs(activations, 3).argmax(1).tolist()
    expected = []
    with torch.no_grad():
        for row, task in enumerate(found):
            logits = method.output(method.protector(activations[row : row + 1], task), task)[0, : len(TASKS[task])]
            expected.append(TASKS[task][int(logits.argmax())])
    assert learner.predict(images).tolist() == expected
    encoded = method.encode(pixels, method.feature_sets(3))
    assert method.task_scores(encoded).argmax(1).tolist() == found
    assert len(set(found)) > 1


def test_more_tasks_than_a_row_of_features_has_room_for(tiny_trunk) -> None:
    method = Learner("supsup", trunk=tiny_trunk, **OPTIONS).method
    dim = tiny_trunk.dim
    assert [len(method.feature_sets(tasks)) - tasks for tasks in (0, 1, dim, dim + 1)] == [0, 1, 1, 2]
    method.classes_per_task = [1] * (dim + 1)
    encoded = torch.zeros(2, dim + 3, dim)
    encoded[0, dim + 2, 0] = encoded[1, dim + 1, 5] = 1.0  # the last task; the sixth
    assert method.task_scores(encoded).argmax(1).tolist() == [dim, 5]


def test_a_task_with_more_classes_adds_outputs_that_earlier_tasks_never_evaluate(tiny_trunk, tmp_path) -> None:
    learner = taught(tiny_trunk, [["a", "b"]], outputs=2)
    images = make_task(["a"], 5, seed=1)[0]
    promise = learner.history_[0].promise
    learner.learn(*make_task(["c", "d", "e", "f"])).learn(*make_task(["g"]))
    output = learner.method.output
    assert [len(block.constants) for block in output.blocks] == [2, 2] and output.begun_with == [1, 2, 2]
    assert not output.blocks[1].masks[0].any()
    assert promise.answers["logits"].shape[1] == 2 and promise.check(learner.method, 0).changed == []
    learner.save(tmp_path / "model.oar")
    assert np.array_equal(load(tmp_path / "model.oar").predict_proba(images), learner.predict_proba(images))


def test_only_masks_and_norms_are_trained(tiny_trunk) -> None:
    learner = taught(tiny_trunk, TASKS[:1])
    constants = {name: value.clone() for name, value in learner.method.state_dict().items() if "constants" in name}
    learner.learn(*make_task(TASKS[1]))
    now = learner.method.state_dict()
    assert len(constants) == 2 * len(learner.method.protector.layers) + 1
    assert all(torch.equal(value, now[name]) for name, value in constants.items())
    assert all(not parameter.requires_grad or not parameter.numel() for parameter in learner.method.parameters())


def test_no_other_protector_has_a_superposition(tiny_trunk) -> None:
    with pytest.raises(OarlockError, match="only the protector 'supsup'"):
        Learner("supsup", trunk=tiny_trunk, protector="hat")


def test_accelerated_it_answers_the_same(tiny_trunk) -> None:
    learner = taught(tiny_trunk)
    images = make_task(["a", "d"], 4, seed=1)[0]
    before = learner.predict_proba(images)
    assert np.array_equal(learner.accelerate().predict_proba(images), before)
