"""HAT: heads of their own classes only, no replay, argmax over all logits side by side."""

import numpy as np
import pytest
import torch

from conftest import make_task
from oarlock import Learner

OPTIONS = {"epochs": 2, "width": 8, "batch": 8}


@pytest.mark.parametrize("method", ["hat", "more", "row", "tpl"])
def test_gates_keep_a_rate_of_their_own_whatever_the_learning_rate_is(tiny_trunk, method):
    learner = Learner(method, trunk=tiny_trunk, lr=0.09, **OPTIONS)
    task = learner.prepare_task(*make_task(["a", "b"])).task
    learner.method.begin(task)
    weights, gates = learner.method.phases(task)[0].optimiser().param_groups
    assert (learner.method.config.gate_lr, weights["lr"], gates["lr"]) == (0.03, 0.09, 0.03)
    assert {id(p) for p in gates["params"]} == {id(p) for p in learner.method.protector.gates[-1].parameters()}


def test_the_answer_is_the_largest_of_all_logits_side_by_side(tiny_trunk):
    learner = Learner("hat", trunk=tiny_trunk, **OPTIONS)
    for labels in (["a", "b"], ["c"], ["d", "e", "f"]):
        learner.learn(*make_task(labels))
    images, _ = make_task(["a", "c", "e"], 4, seed=1)
    activations = torch.from_numpy(images).permute(0, 3, 1, 2)
    logits = []
    for task, head in enumerate(learner.method.heads):
        features = learner.method.protector(learner.method.protector.below(activations), task)
        logits += [features @ head.weight[row] + head.bias[row] for row in range(len(head.bias))]
    best = torch.stack(logits, 1).argmax(1)
    assert learner.predict(images).tolist() == [["a", "b", "c", "d", "e", "f"][index] for index in best]


def test_a_head_has_its_tasks_classes_and_nothing_is_replayed(tiny_trunk):
    learner = Learner("hat", trunk=tiny_trunk, memory=1, **OPTIONS)  # a budget it has no use for
    learner.learn(*make_task(["a", "b", "c"])).learn(*make_task(["d"]))
    assert [head.out_features for head in learner.method.heads] == [3, 1]
    assert len(learner.method.memory) == 0


def test_probabilities_are_the_softmax_of_these_logits(tiny_trunk):
    learner = Learner("hat", trunk=tiny_trunk, **OPTIONS).learn(*make_task(["a", "b"]))
    images, _ = make_task(["a", "b"], 3, seed=1)
    encoded = learner.method.encode(torch.from_numpy(images).permute(0, 3, 1, 2), [0])[:, 0].detach().numpy()
    weight, bias = (p.detach().numpy() for p in learner.method.heads[0].parameters())
    z = np.exp((encoded @ weight.T + bias).astype(float))
    np.testing.assert_allclose(learner.predict_proba(images), z / z.sum(1, keepdims=True), rtol=1e-5)
