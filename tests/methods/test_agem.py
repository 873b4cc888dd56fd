"""A-GEM: its projection against the closed form and a general solver, and that training uses it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from conftest import make_task
from oarlock import Learner
from oarlock.methods.agem import TrainProjected, project
from oarlock.training import Step, TaskData

# Rounded: the square of a reference of 1e-200 is 0.
numbers = st.floats(-10, 10).map(lambda x: round(x, 6))
vectors = st.lists(numbers, min_size=4, max_size=4).map(lambda x: torch.tensor(x, dtype=torch.float64))


@given(vectors, vectors)
def test_the_projection_never_points_against_the_reference(gradient, reference):
    projected = project(gradient, reference)
    assert projected @ reference >= -1e-9 * (1 + reference.norm() * gradient.norm())
    if gradient @ reference >= 0:
        assert torch.equal(projected, gradient)
    else:  # the closed form, as a matrix: away with the component along the reference
        unit = reference / reference.norm()
        expected = (torch.eye(4, dtype=torch.float64) - torch.outer(unit, unit)) @ gradient
        torch.testing.assert_close(projected, expected, atol=1e-6, rtol=1e-6)


def test_a_reference_that_is_next_to_nothing_changes_next_to_nothing():
    gradient = torch.tensor([-1.0, 2.0], dtype=torch.float64)
    assert torch.equal(project(gradient, torch.tensor([1e-170, 0.0], dtype=torch.float64)), gradient)


@pytest.mark.parametrize("seed", range(5))
def test_the_projection_solves_its_quadratic_program(seed):
    """The nearest vector to g under z·g_ref ≥ 0, found by a general solver."""
    rng = np.random.default_rng(seed)
    gradient, reference = rng.normal(size=5), rng.normal(size=5)
    if gradient @ reference > 0:
        reference = -reference
    found = minimize(
        lambda z: 0.5 * np.sum((z - gradient) ** 2),
        np.zeros(5),
        jac=lambda z: z - gradient,
        constraints={"type": "ineq", "fun": lambda z: z @ reference, "jac": lambda z: reference},
    )
    ours = project(torch.from_numpy(gradient), torch.from_numpy(reference)).numpy()
    np.testing.assert_allclose(ours, found.x, atol=1e-5)


def test_gradients_in_training_are_projected_on_the_memory(tiny_trunk):
    learner = Learner("agem", trunk=tiny_trunk, memory=8, calibration=0.0, epochs=4, width=8, batch=10)
    learner.learn(*make_task([0, 1], 10))
    images, labels = make_task([2, 3], 10)
    task = TaskData(1, torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels) - 2, 2, seed=0)
    learner.method.begin(task)
    phase = TrainProjected(learner.method, task)
    phase.prepare()
    network = learner.method.network
    parameters = list(network.parameters())

    def flat(loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    bent = 0
    for current, replay in phase.batches(task.generator("test")):
        plain = flat(F.cross_entropy(network(phase.activations[current]), phase.labels[current]))
        memory = learner.method.memory
        activations = network.adapters.below(memory.images[replay])
        reference = flat(F.cross_entropy(network(activations), memory.labels[replay]))
        for parameter in parameters:
            parameter.grad = None
        phase.gradients(Step((current, replay), 1.0, task.generator("step")))
        used = torch.cat([parameter.grad.flatten() for parameter in parameters])
        expected = plain - min(0.0, float(plain @ reference)) / (reference @ reference) * reference
        torch.testing.assert_close(used, expected, rtol=1e-3, atol=1e-5)
        bent += bool(plain @ reference < 0)
    assert bent  # otherwise nothing was checked
