"""PASS: radius, prototypes and noise against numpy; the loss by hand; rotations that are real ones."""

import numpy as np
import pytest
import torch

from conftest import make_task
from oarlock import Learner
from oarlock.methods.pass_ import TrainWithPrototypes, rotated
from oarlock.training import Step, TaskData, generator

OPTIONS = {"epochs": 2, "width": 8, "batch": 8}
FIRST, SECOND = make_task(["a", "b", "c"], 9), make_task(["d", "e"], 7)


def pixels(images) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def new_learner(trunk, **options) -> Learner:
    return Learner("pass", trunk=trunk, calibration=0.0, **(OPTIONS | options))


@pytest.fixture(scope="module")
def taught_once(tiny_trunk) -> Learner:
    return new_learner(tiny_trunk).learn(*FIRST)


@pytest.fixture(scope="module")
def second_task(tiny_trunk) -> TrainWithPrototypes:
    """The training of the second task, ready for its first batch; the network has moved since the task began."""
    method = new_learner(tiny_trunk).learn(*FIRST).method
    task = TaskData(1, pixels(SECOND[0]), torch.arange(2).repeat_interleave(7), 2, seed=0)
    method.begin(task)
    training = TrainWithPrototypes(method, task)
    training.start()
    with torch.no_grad():
        for parameter in method.network.adapters.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator("moved"))
    training.prepare()
    return training


def test_radius_and_prototypes_are_those_of_numpy(taught_once):
    features = taught_once.method.encode(pixels(FIRST[0]), [0])[:, 0].double().numpy().reshape(3, 9, -1)
    covariances = [np.cov(own.T) for own in features]
    radius = np.sqrt(np.mean([np.trace(covariance) / features.shape[2] for covariance in covariances]))
    assert radius > 0.01
    np.testing.assert_allclose(taught_once.method.radius.item(), radius, rtol=1e-5)
    np.testing.assert_allclose(taught_once.method.prototypes, features.mean(1), rtol=1e-4, atol=1e-6)


def test_later_tasks_add_prototypes_and_change_neither_the_old_ones_nor_the_radius(taught_once, tiny_trunk):
    learner = new_learner(tiny_trunk).learn(*FIRST).learn(*SECOND)
    method = learner.method
    assert torch.equal(method.prototypes[:3], taught_once.method.prototypes)
    assert torch.equal(method.radius, taught_once.method.radius)
    new = method.encode(pixels(SECOND[0]), [0])[:, 0].reshape(2, 7, -1)  # under the network as it is now
    torch.testing.assert_close(method.prototypes[3:], new.mean(1))
    assert not torch.allclose(method.encode(pixels(FIRST[0]), [0])[:9, 0].mean(0), method.prototypes[0], atol=1e-5)
    assert not method.copies  # the earlier network is kept no longer than it is needed


@pytest.mark.filterwarnings("ignore:class .* has a single image")
def test_one_image_per_class_has_no_radius(tiny_trunk):
    learner = new_learner(tiny_trunk).learn(*make_task(["a", "b"], 1)).learn(*make_task(["c"], 1))
    assert learner.method.radius == 0
    assert np.isfinite(learner.predict_proba(FIRST[0])).all()


def test_noisy_prototypes_scatter_around_old_classes_only_with_the_radius(second_task):
    noisy, classes = second_task.noisy_prototypes(30_000, generator("draws"))
    method = second_task.method
    assert torch.bincount(classes).tolist() == pytest.approx([10_000] * 3, rel=0.05)
    for label in range(3):
        own = noisy[classes == label]
        torch.testing.assert_close(own.mean(0), method.prototypes[label], rtol=0, atol=0.05 * method.radius.item())
        torch.testing.assert_close(own.std(0), method.radius.expand(24), rtol=0.05, atol=0)


def test_rotations_are_real_ones_with_their_labels():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 16, 16), dtype=np.uint8))
    labels = torch.tensor([0, 3, 1, 0, 2])
    turned, numbers = rotated(images, labels)
    assert turned.dtype == torch.uint8 and len(turned) == 20
    for image, number in zip(turned, numbers.tolist(), strict=True):
        candidates = images[labels == number // 4].numpy()
        upright = np.rot90(image.numpy(), -(number % 4), axes=(1, 2))
        assert any(np.array_equal(upright, candidate) for candidate in candidates)
    assert sorted(numbers.tolist()) == sorted(4 * label + k for label in labels.tolist() for k in range(4))


def test_every_epoch_has_batches_of_all_images_each_in_its_four_rotations(second_task):
    batches = [rows for (rows,) in second_task.batches(generator("epoch"))]
    assert [len(rows) for rows in batches] == [32, 24]
    assert sorted(torch.cat(batches).tolist()) == list(range(56))
    for rows in batches:
        images, turns = rows % 14, second_task.labels[rows] % 4
        assert len(set(zip(images.tolist(), turns.tolist(), strict=True))) == len(rows) == 4 * len(images.unique())


def test_the_loss_by_hand(second_task):
    method, rows = second_task.method, torch.tensor([0, 14, 28, 42, 9, 23, 37, 51])  # images 0 and 9 in all rotations
    weight, bias = (tensor.detach().double().numpy() for tensor in method.network.head.parameters())
    images = np.concatenate([np.rot90(SECOND[0][i], k, axes=(0, 1))[None] for i in (0, 9) for k in range(4)])

    def features(adapters) -> np.ndarray:
        with torch.no_grad():
            return adapters(adapters.below(pixels(images.copy()))).double().numpy()

    def cross_entropy(inputs: np.ndarray, labels: list[int]) -> float:
        logits = (inputs @ weight.T + bias) / 0.1
        return np.mean([np.log(np.exp(z - z[y]).sum()) for z, y in zip(logits, labels, strict=True)])

    now, before = features(method.network.adapters), features(method.copies["before"].adapters)
    noisy, classes = second_task.noisy_prototypes(2, generator("a step"))
    terms = [
        cross_entropy(now, [12, 13, 14, 15, 16, 17, 18, 19]),  # classes 3 and 4
        10 * cross_entropy(noisy.double().numpy(), [4 * label for label in classes.tolist()]),
        10 * np.sqrt(((now - before) ** 2).sum()),
    ]
    assert min(terms) > 0.1
    loss = second_task.loss(Step((rows,), 0.0, generator("a step")))
    np.testing.assert_allclose(loss.value.item(), sum(terms), rtol=1e-4)


def test_a_first_task_is_learned_by_cross_entropy_alone(tiny_trunk):
    method = new_learner(tiny_trunk).learn(*FIRST).method
    training = TrainWithPrototypes(method, TaskData(0, pixels(FIRST[0]), torch.arange(3).repeat_interleave(9), 3, 0))
    training.prepare()
    rows = torch.tensor([0, 30, 80])
    logits = method.network(training.activations[rows]).detach() / 0.1
    expected = -logits.log_softmax(1)[torch.arange(3), training.labels[rows]].mean()
    torch.testing.assert_close(training.loss(Step((rows,), 0.0, generator("a step"))).value.detach(), expected)


def test_the_prediction_is_that_of_the_upright_outputs(taught_once):
    images, _ = make_task(["a", "b", "c"], 6, seed=1)
    method = taught_once.method
    head = method.network.head
    logits = (method.encode(pixels(images), [0])[:, 0] @ head.weight.T + head.bias).detach().double().numpy()
    assert logits.shape[1] == 12
    upright = np.exp(np.stack([logits[:, 0], logits[:, 4], logits[:, 8]], 1) / 0.1)
    np.testing.assert_allclose(taught_once.predict_proba(images), upright / upright.sum(1, keepdims=True), atol=1e-4)
