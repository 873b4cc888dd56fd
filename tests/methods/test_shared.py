"""finetune and joint: ordinary training, checked against a training loop written out by hand; and herded memories."""

import copy

import pytest
import torch
import torch.nn.functional as F

from conftest import make_task
from oarlock import Learner
from oarlock.training import generator

OPTIONS = {"epochs": 3, "width": 8, "batch": 8, "lr": 0.1}
FIRST, SECOND = make_task(["a", "b"], 10), make_task(["c", "d"], 10)


def ordinary_training(method, images, labels, task: int) -> None:
    """Plain SGD with momentum on the given images, batches in the order the library draws them."""
    parameters = [*method.network.adapters.parameters(), *method.network.head.parameters()]
    optimiser = torch.optim.SGD(parameters, OPTIONS["lr"], momentum=0.9)
    activations = method.network.adapters.below(images)
    for epoch in range(OPTIONS["epochs"]):
        order = torch.randperm(len(images), generator=generator(0, task, "training", epoch))
        for rows in order.split(OPTIONS["batch"]):
            optimiser.zero_grad()
            F.cross_entropy(method.network.head(method.network.adapters(activations[rows])), labels[rows]).backward()
            optimiser.step()


def pixels(*tasks) -> torch.Tensor:
    return torch.cat([torch.from_numpy(images).permute(0, 3, 1, 2) for images, _ in tasks])


def assert_close(one, other) -> None:
    for name, value in one.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)


def test_joint_equals_ordinary_training_on_the_union(tiny_trunk):
    learner = Learner("joint", trunk=tiny_trunk, calibration=0.0, **OPTIONS).learn(*FIRST).learn(*SECOND)
    by_hand = copy.deepcopy(learner.method)
    random = generator(0, 1, "anew")
    by_hand.network.adapters.reset(random)
    by_hand.network.head.reset(random)
    ordinary_training(by_hand, pixels(FIRST, SECOND), torch.arange(4).repeat_interleave(10), task=1)
    assert_close(learner.method, by_hand)


def test_finetune_goes_on_from_where_it_was_with_the_new_images_only(tiny_trunk):
    learner = Learner("finetune", trunk=tiny_trunk, calibration=0.0, **OPTIONS).learn(*FIRST)
    by_hand = copy.deepcopy(learner.method)
    learner.learn(*SECOND)
    by_hand.network.head.grow(2, generator(0, 1, "head"))
    ordinary_training(by_hand, pixels(SECOND), torch.arange(2, 4).repeat_interleave(10), task=1)
    assert_close(learner.method, by_hand)


@pytest.mark.parametrize("name", ["icarl", "eeil"])
def test_exemplars_are_herded_and_old_ones_cut_from_the_end(name, tiny_trunk):
    """Herding by brute force, on the network's features when the task is learned."""
    learner = Learner(name, trunk=tiny_trunk, memory=8, calibration=0.0, epochs=2, width=8, batch=8, lr=0.1)
    learner.learn(*make_task([0, 1]))
    images = torch.from_numpy(make_task([0, 1])[0]).permute(0, 3, 1, 2)
    method = learner.method
    unit = torch.nn.functional.normalize(method.encode(images, [0])[:, 0].double(), dim=1)
    for label, rows in ((0, range(10)), (1, range(10, 20))):
        goal, chosen = unit[list(rows)].mean(0), []
        for _ in range(4):  # a budget of 8 for two classes
            left = [row for row in rows if row not in chosen]
            chosen.append(min(left, key=lambda row: float((unit[[*chosen, row]].mean(0) - goal).norm())))
        assert torch.equal(method.memory.images[method.memory.labels == label], images[chosen])
    before = {label: method.memory.images[method.memory.labels == label] for label in (0, 1)}
    learner.learn(*make_task([2, 3]))
    memory = learner.method.memory
    assert all(torch.equal(memory.images[memory.labels == label], before[label][:2]) for label in (0, 1))
