"""HAL: the total gradient by finite differences, both trainings written out, and what anchors are worth."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from conftest import make_task, make_tiny_trunk
from oarlock import Learner
from oarlock.training import NoCallback, Position, Step, TaskData, cycled, generator, run_phases

OPTIONS = {"epochs": 2, "width": 8, "batch": 8, "lr": 0.1, "anchor_epochs": 20}
FIRST, SECOND = make_task(["a", "b"], 10), make_task(["c", "d", "e"], 8)


def pixels(task) -> torch.Tensor:
    return torch.from_numpy(task[0]).permute(0, 3, 1, 2)


def learner_of(tiny_trunk, **options) -> Learner:
    return Learner("hal", trunk=tiny_trunk, memory=10, calibration=0.0, **(OPTIONS | options))


def second_task(learner: Learner) -> TaskData:
    """The second task, begun."""
    task = TaskData(1, pixels(SECOND), torch.arange(3).repeat_interleave(8), 3, seed=0)
    learner.method.begin(task)
    return task


def logits_of(network, images: torch.Tensor) -> torch.Tensor:
    return network(network.adapters.below(images))


@pytest.fixture(scope="module")
def taught_once(tiny_trunk) -> Learner:
    return learner_of(tiny_trunk).learn(*FIRST)


@pytest.fixture
def learner(taught_once) -> Learner:
    return copy.deepcopy(taught_once)


# Training


def test_the_gradient_of_a_step_is_that_of_the_loss_with_the_penalty_by_finite_differences():
    learner = Learner("hal", trunk=make_tiny_trunk().double(), memory=10, calibration=0.0, **OPTIONS, lamb=30.0)
    learner.method.double()
    task, method = second_task(learner.learn(*FIRST)), learner.method
    rows, replay = torch.arange(5, 13), torch.arange(0, 8)
    network, anchors = method.network.double(), method.anchors[:2]
    images = torch.cat([task.images[rows], method.memory.images[replay]])
    labels = torch.cat([task.labels[rows] + 2, method.memory.labels[replay]])

    def loss_and_total(moved: list[torch.Tensor]) -> tuple[float, float]:
        """At θ + moved, by a step really taken."""
        net = copy.deepcopy(network)
        with torch.no_grad():
            for parameter, change in zip(net.parameters(), moved, strict=True):
                parameter += change
        loss = F.cross_entropy(logits_of(net, images), labels)
        gradient = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            before = logits_of(net, anchors)
            for parameter, slope in zip(net.parameters(), gradient, strict=True):
                parameter -= OPTIONS["lr"] * slope
            change = logits_of(net, anchors) - before
        assert change.shape == (2, 5)
        return loss.item(), (loss + 30 * change.square().sum() / 2).item()  # a mean over the two anchors only

    phase = method.phases(task)[0]
    phase.prepare()
    before = copy.deepcopy(network.state_dict())
    method.zero_grad()
    reported = phase.gradients(Step((rows, replay), 0.0, torch.Generator()))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    at_rest = loss_and_total([torch.zeros_like(p) for p in network.parameters()])
    assert reported.value.item() == pytest.approx(at_rest[1])

    random, eps = torch.Generator().manual_seed(0), 1e-8  # so small that no relu switches
    for _ in range(5):
        direction = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in network.parameters()]
        ahead, behind = (loss_and_total([sign * eps * v for v in direction]) for sign in (1, -1))
        plain, total = ((a - b) / (2 * eps) for a, b in zip(ahead, behind, strict=True))
        ours = sum((p.grad * v).sum().item() for p, v in zip(network.parameters(), direction, strict=True))
        assert ours == pytest.approx(total, rel=1e-4, abs=1e-5)
        assert abs(total - plain) > 0.05 * abs(plain)


def test_the_penalty_of_a_step_whose_answers_are_known(learner):
    task, method = second_task(learner), learner.method
    network, rows, replay = method.network, torch.arange(5, 13), torch.arange(0, 8)
    with torch.no_grad():  # all answers are 0, and the step moves the head alone
        network.head.weight.zero_()
        network.head.bias.zero_()
    phase = method.phases(task)[0]
    phase.prepare()
    reported = phase.gradients(Step((rows, replay), 0.0, torch.Generator())).value.item()
    labels = torch.cat([task.labels[rows] + 2, method.memory.labels[replay]])
    slopes = 1 / 5 - F.one_hot(labels, 5).double()  # of the cross-entropy at uniform answers
    below = network.adapters.below
    with torch.no_grad():
        features = network.adapters(below(torch.cat([task.images[rows], method.memory.images[replay]]))).double()
        anchors = network.adapters(below(method.anchors[:2])).double()
    answers = -OPTIONS["lr"] * (anchors @ features.T + 1) @ slopes / 16  # after the step: weights, and biases
    penalty = sum(answer**2 for answer in answers.flatten().tolist()) / 2
    assert reported - math.log(5) == pytest.approx(0.1 * penalty, rel=1e-3)


def test_without_a_penalty_training_is_plain_replay(tiny_trunk):
    learner = learner_of(tiny_trunk, lamb=0.0).learn(*FIRST)
    task = second_task(learner)
    network, memory = copy.deepcopy(learner.method.network), learner.method.memory
    run_phases(learner.method.phases(task)[:1], task, NoCallback(), Position(1, 0, 0))
    optimiser = torch.optim.SGD(network.parameters(), OPTIONS["lr"], momentum=0.9)
    activations, replay = network.adapters.below(task.images), network.adapters.below(memory.images)
    for epoch in range(OPTIONS["epochs"]):
        random = generator(0, 1, "training", epoch)
        current = torch.randperm(24, generator=random).split(8)
        for rows, old in zip(current, cycled(10, [8, 8, 8], random), strict=True):
            optimiser.zero_grad()
            with sdpa_kernel(SDPBackend.MATH):
                logits = network(torch.cat([activations[rows], replay[old]]))
                F.cross_entropy(logits, torch.cat([task.labels[rows] + 2, memory.labels[old]])).backward()
            optimiser.step()
    for name, value in network.state_dict().items():
        assert torch.equal(learner.method.network.state_dict()[name], value)


def test_mean_features_run_with_decay_beta_by_class(tiny_trunk):
    learner = learner_of(tiny_trunk, lr=0.0, beta=0.7, epochs=3, batch=100).learn(*FIRST)
    features = learner.method.encode(pixels(FIRST), [0])[:, 0]
    expected = (1 - 0.7**3) * torch.stack([features[:10].mean(0), features[10:].mean(0)])
    torch.testing.assert_close(learner.method.mean_features, expected, rtol=1e-4, atol=1e-5)


# Anchors


def test_hindsight_is_plain_sgd_on_the_memory_of_earlier_tasks(learner):
    task, method = second_task(learner), learner.method
    assert method.memory.labels.unique().tolist() == [0, 1]
    network = copy.deepcopy(method.network)
    run_phases(method.phases(task)[1:2], task, NoCallback(), Position(1, 0, 0))
    optimiser = torch.optim.SGD(network.parameters(), OPTIONS["lr"])
    for rows in torch.randperm(10, generator=generator(0, 1, "hindsight", 0)).split(8):
        optimiser.zero_grad()
        F.cross_entropy(logits_of(network, method.memory.images[rows]), method.memory.labels[rows]).backward()
        optimiser.step()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(method.copies["hindsight"].state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert not torch.equal(method.copies["hindsight"].head.weight, method.network.head.weight)


class Search:
    """The search for the second task's anchors: what it starts from and what it finds."""

    def __init__(self, learner: Learner, **options) -> None:
        self.method, task = learner.method, second_task(learner)
        self.method.config = type(self.method.config)(**(OPTIONS | {"anchor_lr": 0.02} | options))
        train, tune, find, remember = self.method.phases(task)
        run_phases([train, tune], task, NoCallback(), Position(1, 0, 0))
        self.hindsight, self.held = self.method.copies["hindsight"], copy.deepcopy(self.method.state_dict())
        find.start()
        self.start = self.method.anchors[2:].clone()
        run_phases([find, remember], task, NoCallback(), Position(1, 0, 0))
        self.found = self.method.anchors[2:]

    @torch.no_grad()
    def forgetting(self, images: torch.Tensor) -> torch.Tensor:
        later, now = (logits_of(network, images).log_softmax(1) for network in (self.hindsight, self.method.network))
        return (now - later)[torch.arange(3), torch.arange(2, 5)]

    @torch.no_grad()
    def distance(self, images: torch.Tensor) -> torch.Tensor:
        adapters = self.method.network.adapters
        return (adapters(adapters.below(images)) - self.method.mean_features).square().sum(1)


def test_anchors_raise_the_forgetting_loss_of_a_network_that_is_held(learner):
    search = Search(learner, gamma=0.0)
    assert (search.forgetting(search.found) > search.forgetting(search.start) + 0.05).all()
    now = search.method.state_dict()
    for name, value in search.held.items():
        if name.startswith("network."):
            assert torch.equal(now[name], value)
    assert torch.equal(now["anchors"][:2], search.held["anchors"][:2])
    assert not list(search.method.copies)


def test_anchors_are_drawn_to_the_mean_features_of_their_class(learner):
    search = Search(learner, gamma=10.0)
    assert (search.distance(search.found) < 0.9 * search.distance(search.start)).all()


def test_anchors_begin_at_the_mean_image_and_stay_images(learner):
    search = Search(learner, anchor_lr=3.0)
    expected = pixels(SECOND).float().view(3, 8, 3, 16, 16).mean(1)
    torch.testing.assert_close(search.start, expected)
    assert search.found.min() == 0 and search.found.max() == 255
    assert not torch.equal(search.found[0], search.found[1])


def test_one_step_of_a_search_by_hand(learner):
    search = Search(learner, anchor_epochs=1, gamma=0.3)
    images = search.start.clone().requires_grad_()
    adapters, labels = search.method.network.adapters, torch.arange(2, 5)
    later, now = (logits_of(network, images) for network in (search.hindsight, search.method.network))
    gain = F.cross_entropy(later, labels, reduction="none") - F.cross_entropy(now, labels, reduction="none")
    gain = gain - 0.3 * (adapters(adapters.below(images)) - search.method.mean_features).square().sum(1)
    (gradient,) = torch.autograd.grad(gain.sum(), images)
    expected = search.start + 255 * 0.02 * gradient.sign()  # Adam's first step has the length of its rate
    clear = gradient.abs() > 1e-4
    assert clear.float().mean() > 0.5
    torch.testing.assert_close(search.found[clear], expected.clamp(0, 255)[clear], rtol=0, atol=0.01)
