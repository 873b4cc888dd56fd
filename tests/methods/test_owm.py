"""OWM: projectors in closed form and by rank-one steps, and what projected updates leave alone."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import make_task
from oarlock import Learner
from oarlock.methods.owm import Projector
from oarlock.training import Step, TaskData, generator

OPTIONS = {"epochs": 2, "width": 32, "batch": 8, "lr": 0.1}
FIRST, SECOND = make_task(["a", "b"], 10), make_task(["c", "d"], 10)


def pixels(task) -> torch.Tensor:
    return torch.from_numpy(task[0]).permute(0, 3, 1, 2)


def learner_of(tiny_trunk, **options) -> Learner:
    return Learner("owm", trunk=tiny_trunk, calibration=0.0, **(OPTIONS | options))


def task_data(task, index: int) -> TaskData:
    labels = torch.tensor([sorted(set(task[1])).index(label) for label in task[1]])
    return TaskData(index, pixels(task), labels, len(set(task[1])), seed=0)


def joined(layer) -> torch.Tensor:
    return torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double()


def inputs_of(method, images: torch.Tensor) -> list[torch.Tensor]:
    """What every layer receives, its formula written out: [images, positions, D + 1] each."""
    adapters, found = method.network.adapters, []
    trunk, x = adapters.trunk, adapters.below(images)
    branches = [branch for stage in trunk.stages[adapters.frozen_stages :] for branch in stage]
    for index, (norm, body) in enumerate(branches):
        u = body(norm(x))
        if index == len(branches) - 2:  # only the class token is needed from here on
            x, u = x[:, :1], u[:, :1]
        bottleneck = adapters.layers[index]
        hidden = F.relu(u @ bottleneck.fc1.weight.T + bottleneck.fc1.bias)
        x = x + u + hidden @ bottleneck.fc2.weight.T + bottleneck.fc2.bias
        found += [u, hidden]
    found.append(trunk.last_norm(x[:, :1]))
    return [torch.cat([part, torch.ones_like(part[..., :1])], 2).detach().double() for part in found]


def test_blocks_equal_the_batch_formula_and_one_vector_at_a_time():
    alpha, rng = 0.1, np.random.default_rng(0)
    blocks = [rng.normal(size=(count, 6)) for count in (1, 5, 3, 40, 2)]
    projector = Projector(6)
    for block in blocks:
        projector.add(torch.from_numpy(block), alpha)
    rows = np.concatenate(blocks)
    rows = np.concatenate([rows, np.ones((len(rows), 1))], 1)
    closed = alpha * np.linalg.inv(rows.T @ rows + alpha * np.eye(7))
    one_by_one = np.eye(7)
    for x in rows:
        k = one_by_one @ x
        one_by_one -= np.outer(k, k) / (alpha + x @ k)
    np.testing.assert_allclose(projector.matrix, closed, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(projector.matrix, one_by_one, rtol=1e-5, atol=1e-7)


def test_a_projected_update_is_the_part_of_it_across_old_inputs():
    random = torch.Generator().manual_seed(0)
    old = torch.randn(5, 12, generator=random)
    layer, projector = torch.nn.Linear(12, 4), Projector(12)
    projector.add(old, 1e-9)
    layer.weight.grad, layer.bias.grad = torch.randn(4, 12, generator=random), torch.randn(4, generator=random)
    raw = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1).double()
    projector.project(layer)
    projected = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1).double()
    rows = torch.cat([old, torch.ones(5, 1)], 1).double()
    torch.testing.assert_close(projected, raw - raw @ torch.linalg.pinv(rows) @ rows, rtol=0, atol=1e-5)
    assert (projected @ rows.T).norm() < 1e-5 * (raw @ rows.T).norm()
    assert projected.norm() > 0.5 * raw.norm()


def test_after_a_task_projectors_hold_the_mean_inputs_of_its_batches_by_position(tiny_trunk):
    learner = learner_of(tiny_trunk, alpha=0.3)
    learner.learn(*FIRST)
    inputs = inputs_of(learner.method, pixels(FIRST))
    batches = torch.randperm(20, generator=generator(0, 0, "projectors")).split(8)
    assert [part.shape[1] for part in inputs] == [5] * 4 + [1] * 5  # activations, then the class token
    for x, projector in zip(inputs, learner.method.projectors, strict=True):
        rows = torch.cat([x[batch].mean(0) for batch in batches])
        closed = 0.3 * torch.linalg.inv(rows.T @ rows + 0.3 * torch.eye(rows.shape[1], dtype=rows.dtype))
        torch.testing.assert_close(projector.matrix.double(), closed, rtol=1e-3, atol=1e-5)
    assert not any(module._forward_pre_hooks for module in learner.method.modules())


def test_the_gradient_of_a_step_is_the_plain_one_times_the_projector(tiny_trunk):
    method = learner_of(tiny_trunk).learn(*FIRST).method
    task = task_data(SECOND, 1)
    method.begin(task)
    phase = method.phases(task)[0]
    phase.prepare()
    rows = torch.arange(7, 13)
    method.zero_grad()
    phase.gradients(Step((rows,), 0.0, torch.Generator()))
    loss = F.cross_entropy(method.network(method.network.adapters.below(task.images[rows])), task.labels[rows] + 2)
    for layer, projector in zip(method.layers, method.projectors, strict=True):
        weight, bias = torch.autograd.grad(loss, [layer.weight, layer.bias], retain_graph=True)
        expected = torch.cat([weight, bias[:, None]], 1).double() @ projector.matrix.double()
        torch.testing.assert_close(layer.weight.grad.double(), expected[:, :-1], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(layer.bias.grad.double(), expected[:, -1], rtol=1e-4, atol=1e-6)
    trained = {parameter for layer in method.layers for parameter in layer.parameters()}
    assert trained == set(method.parameters())


def test_training_equals_a_loop_with_projected_gradients(tiny_trunk):
    learner = learner_of(tiny_trunk).learn(*FIRST)
    by_hand = copy.deepcopy(learner.method)
    learner.learn(*SECOND)
    by_hand.network.head.grow(2, generator(0, 1, "head"))
    network, labels = by_hand.network, torch.arange(2, 4).repeat_interleave(10)
    optimiser = torch.optim.SGD(network.parameters(), OPTIONS["lr"], momentum=0.9)
    for epoch in range(OPTIONS["epochs"]):
        for rows in torch.randperm(20, generator=generator(0, 1, "training", epoch)).split(OPTIONS["batch"]):
            optimiser.zero_grad()
            F.cross_entropy(network(network.adapters.below(pixels(SECOND)[rows])), labels[rows]).backward()
            for layer, projector in zip(by_hand.layers, by_hand.projectors, strict=True):
                d, p = layer.weight.shape[1], projector.matrix.float()
                weight, bias = layer.weight.grad.clone(), layer.bias.grad.clone()
                layer.weight.grad = weight @ p[:d, :d] + bias[:, None] * p[d, :d]
                layer.bias.grad = weight @ p[:d, d] + bias * p[d, d]
            optimiser.step()
    for layer, expected in zip(learner.method.layers, by_hand.layers, strict=True):
        torch.testing.assert_close(joined(layer), joined(expected), rtol=1e-3, atol=1e-5)


def test_a_second_task_leaves_what_layers_answer_to_old_inputs_alone(tiny_trunk):
    """Four images of five activations: few enough for something to be left to learn with."""
    first = make_task(["a", "b"], 2)
    learner = learner_of(tiny_trunk, batch=1, alpha=1e-6, lr=0.02).learn(*first)
    old_inputs = inputs_of(learner.method, pixels(first))
    before = [joined(layer) for layer in learner.method.layers]
    before[-1] = F.pad(before[-1], (0, 0, 0, 2))
    before[-1][2:, :-1] = new_rows(learner)
    unprotected = copy.deepcopy(learner)
    for projector in unprotected.method.projectors:
        projector.matrix.copy_(torch.eye(len(projector.matrix)))
    for one in (learner, unprotected):
        one.learn(*SECOND)
    for number, x in enumerate(old_inputs):
        moved, freely = (joined(one.method.layers[number]) - before[number] for one in (learner, unprotected))
        assert (moved @ x.flatten(0, 1).T).norm() < 1e-3 * (freely @ x.flatten(0, 1).T).norm()
        assert moved.norm() > 1e-2 * freely.norm()


def new_rows(learner: Learner) -> torch.Tensor:
    """The head's rows of the second task before it is trained."""
    head = copy.deepcopy(learner.method.network.head)
    head.grow(2, generator(0, 1, "head"))
    return head.weight[2:].detach().double()


@pytest.mark.parametrize("alpha", [0.1, 1e-6])
def test_the_first_task_is_learned_as_without_projectors(tiny_trunk, alpha):
    owm = learner_of(tiny_trunk, alpha=alpha).learn(*FIRST)
    plain = Learner("finetune", trunk=tiny_trunk, calibration=0.0, **OPTIONS).learn(*FIRST)
    for name, value in plain.method.network.state_dict().items():
        assert torch.equal(owm.method.network.state_dict()[name], value)
