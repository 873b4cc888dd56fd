"""The scores that tell unknown inputs, each by hand on a method of two tasks in two dimensions."""

import math

import pytest
import torch

from conftest import make_task
from contract.conftest import small_options
from oarlock import Learner
from oarlock.data.images import prepare
from oarlock.detectors import detectors
from oarlock.detectors.scores import gen

TASKS = [make_task([0, 1]), make_task([2, 3])]


def softmax(values: list[float], tau: float) -> list[float]:
    powers = [math.exp(value / tau) for value in values]
    return [power / sum(powers) for power in powers]


@pytest.fixture
def by_hand(tiny_trunk):
    """Heads that answer constants, plain metrics; the input lies 3 and 1.5 from the nearest means of the tasks."""
    learner = Learner("more", trunk=tiny_trunk, memory=8, **small_options("more"), tau=2.0, gamma=3.0)
    for task in TASKS:
        learner.learn(*task)
    more = learner.method
    with torch.no_grad():
        for head, logits in zip(more.ood_heads, ([2.0, 1.0, 4.0], [0.0, 3.0, 1.0]), strict=True):
            head.weight.zero_()
            head.bias.copy_(torch.tensor(logits))
        for gaussians in more.gaussians:
            gaussians.means.zero_()
            gaussians.means[1, 1] = 50.0
            gaussians.whitening = torch.eye(more.trunk.dim)
        more.memory.encoded.fill_(9.0)
        own = more.tasks_of(more.memory.labels)
        more.memory.encoded[own == 0, 0] = 0.0
        more.memory.encoded[own == 1, 1] = 0.0
        more.memory.encoded[torch.nonzero(own == 1)[0], 1, 0] = 1.0
    encoded = torch.zeros(1, 2, more.trunk.dim)
    encoded[0, 0, 0], encoded[0, 1, 0] = 3.0, 1.5
    more.memory.encoded[torch.nonzero(own == 0)[0], 1] = encoded[0, 1]  # as near as can be, but of the other task
    return more, encoded


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("own", max(max(softmax([2, 1, 4], 2)[:2]) / 3**3, max(softmax([0, 3, 1], 2)[:2]) / 1.5**3)),
        ("softmax", max(softmax([0, 3, 1], 2)[:2])),
        ("not-foreign", 1 - softmax([0, 3, 1], 2)[2]),
        ("energy", math.exp(2) + math.exp(1) if math.exp(2) + math.exp(1) > 1 + math.exp(3) else 1 + math.exp(3)),
        ("distance", 1 / 1.5),
        ("memory", math.exp(-0.5)),  # from 1.5 to the image that lies at 1, under the second task
    ],
)
def test_a_score_is_what_it_is_by_hand(name, expected, by_hand) -> None:
    more, encoded = by_hand
    with torch.no_grad():
        assert detectors.find(name).scores(more, encoded).amax(1).exp().item() == pytest.approx(expected, rel=1e-5)


def test_generalised_entropy_is_what_it_is_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    spread = [-sum((q * (1 - q)) ** 0.1 for q in row if 0 < q < 1) for row in p.tolist()]
    assert gen(p).tolist() == pytest.approx(spread, rel=1e-5)
    many = torch.rand(2, 300, generator=torch.Generator().manual_seed(0)).softmax(1)
    assert torch.allclose(gen(many), gen(many.sort(descending=True).values[:, :100]))


def test_the_score_is_an_option(tiny_trunk) -> None:
    seen = {}
    for name in detectors.all():
        learner = Learner("oar", trunk=tiny_trunk, memory=8, seed=1, detector=name, **small_options("oar"))
        for task in TASKS:
            learner.learn(*task)
        images = make_task([0, 2, 7], 4, seed=1)[0]
        oar, pixels = learner.method, prepare(images, tiny_trunk.card.preprocessing)
        with torch.no_grad():
            by_score = detectors.find(name).scores(oar, oar.encode(pixels, oar.feature_sets(2))).amax(1)
        assert learner.in_distribution(images).tolist() == by_score.tolist()
        assert learner.predict(images, accept=0.9).shape == (12,)
        seen[name] = tuple(by_score.tolist())
    assert len(set(seen.values())) == len(detectors.all())
