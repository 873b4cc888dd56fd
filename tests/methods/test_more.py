"""MORE: the score by hand, and which heads back-updating touches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import make_task
from oarlock import Learner
from oarlock.training import NoCallback

OPTIONS = {"epochs": 2, "ood_epochs": 2, "width": 8, "batch": 8, "head_batch": 8}


@pytest.fixture(scope="module")
def learner(tiny_trunk) -> Learner:
    learner = Learner("more", trunk=tiny_trunk, memory=18, **OPTIONS)
    for labels in (["a", "b"], ["c"], ["d", "e", "f"]):
        learner.learn(*make_task(labels))
    return learner


@pytest.mark.parametrize(("tau", "gamma"), [(1.0, 1.0), (1.0, 3.0), (2.0, 1.0)])  # the last is the released code's
def test_the_probability_is_the_heads_softmax_with_its_ood_output_times_the_inverse_distance(
    tau, gamma, learner, monkeypatch
):
    monkeypatch.setattr(learner.method, "config", replace(learner.method.config, tau=tau, gamma=gamma))
    images, _ = make_task(["a", "c", "f"], 3, seed=1)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    encoded = learner.method.encode(pixels, range(3)).double()
    by_hand = []
    for task, (head, gaussians) in enumerate(zip(learner.method.ood_heads, learner.method.gaussians, strict=True)):
        z = encoded[:, task] @ head.weight.double().T + head.bias.double()
        p = ((z / tau).exp() / (z / tau).exp().sum(1, keepdim=True))[:, :-1]
        whitened = gaussians.whiten(torch.eye(encoded.shape[2])).double()
        inverse = whitened @ whitened.T  # of the shrunk covariance
        offsets = encoded[:, task, None] - gaussians.means.double()
        distances = torch.einsum("bni,ij,bnj->bn", offsets, inverse, offsets).sqrt()
        by_hand.append(p * (1 / distances).max(1, keepdim=True).values ** gamma)
    by_hand = torch.cat(by_hand, 1).detach().numpy()
    expected = by_hand / by_hand.sum(1, keepdims=True)
    np.testing.assert_allclose(learner.predict_proba(images), expected, rtol=1e-4)


class Look(NoCallback):
    """What the heads are when back-updating begins."""

    def __init__(self) -> None:
        self.heads: list[torch.Tensor] = []

    def on_phase(self, task, phase):
        if phase.name == "back-update":
            self.heads = [head.weight.clone() for head in phase.method.ood_heads]


def test_back_updating_tunes_the_earlier_heads_and_leaves_the_newest(tiny_trunk):
    learner, look = Learner("more", trunk=tiny_trunk, memory=18, **OPTIONS).learn(*make_task(["a", "b"])), Look()
    learner.learn(*make_task(["c", "d"]), callback=look)
    now = [head.weight for head in learner.method.ood_heads]
    assert not torch.equal(now[0], look.heads[0])
    assert torch.equal(now[1], look.heads[1])


def test_a_single_task_has_nothing_to_update(tiny_trunk):
    learner, look = Learner("more", trunk=tiny_trunk, memory=18, **OPTIONS), Look()
    learner.learn(*make_task(["a", "b"]), callback=look)
    assert torch.equal(learner.method.ood_heads[0].weight, look.heads[0])
    assert len(learner.method.memory) == 18
