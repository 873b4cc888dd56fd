"""Updates across what old tasks put in: the basis against numpy's singular vectors, the step in closed form, and what
moves of old answers, with and without the projection."""

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import make_tiny_convnet, make_tiny_trunk
from nets.protectors.conftest import images, learn, make_protector
from oarlock.nets.protectors.project import Project, ProjectedLinear
from oarlock.nets.trunks import Trunk

pytestmark = pytest.mark.filterwarnings("ignore:finished tasks look almost everywhere")  # thirty directions are few


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(count: int, dim: int, seed: int, rank: int | None = None) -> Tensor:
    """Vectors with a constant 1 behind them, whose directions matter less and less."""
    x = torch.randn(count, dim, generator=seeded(seed), dtype=torch.double) * 0.6 ** torch.arange(dim)
    if rank is not None:
        x[:, rank:] = 0
    x = x @ torch.linalg.qr(torch.randn(dim, dim, generator=seeded(1), dtype=torch.double)).Q
    return torch.cat([x, torch.ones(count, 1, dtype=torch.double)], 1)


@pytest.mark.parametrize("energy", [0.5, 0.9, 0.99])
def test_the_basis_is_the_published_one_by_singular_vectors(energy: float) -> None:
    """GPM: of a second task's inputs only what the first one's basis does not hold is decomposed."""
    layer, basis = ProjectedLinear(8, 3), np.zeros((9, 0))
    for task, x in enumerate((inputs(50, 8, seed=2, rank=4), inputs(50, 8, seed=3))):
        layer.protect(x.T @ x, energy)
        columns = x.numpy().T
        across = columns - basis @ basis.T @ columns
        vectors, values, _ = np.linalg.svd(across, full_matrices=False)
        held = np.square(basis.T @ columns).sum()
        count = next(n for n in range(10) if held + np.square(values[:n]).sum() >= energy * np.square(columns).sum())
        basis = np.concatenate([basis, vectors[:, :count]], 1)
        assert layer.basis.shape == basis.shape, task
        ours = layer.basis.double().numpy()
        np.testing.assert_allclose(ours @ ours.T, basis @ basis.T, atol=1e-5)
    assert 0 < basis.shape[1] < 9


def test_a_step_keeps_answers_inside_the_basis_and_is_whole_across_it() -> None:
    layer, x = ProjectedLinear(8, 3), inputs(20, 8, seed=2, rank=3)
    layer.protect(x.T @ x, 1 - 1e-12)
    assert layer.basis.shape == (9, 4)
    before = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().clone()
    step = torch.randn(3, 9, generator=seeded(5))
    with torch.no_grad():
        old = layer(x[:, :-1].float())
        layer.guard()
        layer.weight += step[:, :-1]
        layer.bias += step[:, -1]
        assert (layer(x[:, :-1].float()) - old).abs().max() > 0.5
        layer.project()
        torch.testing.assert_close(layer(x[:, :-1].float()), old, rtol=1e-4, atol=1e-5)
    now = torch.cat([layer.weight, layer.bias[:, None]], 1)
    across = torch.eye(9) - layer.basis @ torch.linalg.pinv(layer.basis)
    torch.testing.assert_close(now - before, step @ across, rtol=1e-4, atol=1e-5)


def test_the_first_task_moves_freely() -> None:
    layer = ProjectedLinear(4, 2)
    layer.guard()
    with torch.no_grad():
        layer.weight += 1
        moved = layer.weight.clone()
        layer.project()
    assert torch.equal(layer.weight, moved)


ENERGY = {make_tiny_trunk: 0.999, make_tiny_convnet: 0.99}  # with which something is left to learn with


@torch.no_grad()
def answers(project: Project, task: int) -> Tensor:
    return project(project.below(images(task)), task)


@pytest.mark.parametrize("new_trunk", [make_tiny_trunk, make_tiny_convnet], ids=["vit", "convnet"])
def test_old_answers_move_far_less_than_without_projection(new_trunk, optimiser: str) -> None:
    def moved(trunk: Trunk, projected: bool) -> tuple[float, float]:
        project = make_protector("project", trunk, energy=ENERGY[new_trunk])
        learn(project, 0, optimiser)
        if not projected:
            for matrix in project.matrices:
                matrix.basis = matrix.basis[:, :0]
        before, begun = answers(project, 0), matrix_values(project)
        learn(project, 1, optimiser)
        share = (answers(project, 0) - before).abs().max() / before.abs().max()
        return share.item(), (matrix_values(project) - begun).abs().max().item()

    with_it, trained = moved(new_trunk(), projected=True)
    without, _ = moved(new_trunk(), projected=False)
    assert with_it < min(without / 10, Project.tolerance)
    assert trained > 1e-3, "nothing moved, which keeps any promise"


def matrix_values(project: Project) -> Tensor:
    return torch.cat([value.detach().flatten() for matrix in project.matrices for value in matrix.parameters()])


def test_all_of_the_energy_leaves_rounding(tiny_trunk, optimiser: str) -> None:
    project = make_protector("project", tiny_trunk, energy=1.0)
    learn(project, 0, optimiser)
    before = answers(project, 0)
    learn(project, 1, optimiser)
    torch.testing.assert_close(answers(project, 0), before, rtol=1e-4, atol=1e-5)


def test_room_is_the_share_of_directions_that_are_left_and_it_warns(tiny_trunk) -> None:
    project = make_protector("project", tiny_trunk, energy=0.9)
    learn(project, 0)
    ranks = project.describe()["ranks"]
    expected = [1 - rank / (matrix.in_features + 1) for rank, matrix in zip(ranks, project.matrices, strict=True)]
    assert project.capacity().free == pytest.approx(expected) and min(expected) > 0
    full = make_protector("project", tiny_trunk, energy=1.0)
    with pytest.warns(UserWarning, match="look almost everywhere"):
        learn(full, 0)


def test_there_is_one_set_of_adapters_for_all_tasks(tiny_trunk) -> None:
    project = make_protector("project", tiny_trunk)
    learn(project, 0)
    learn(project, 1)
    one, other = project.task_weights(0), project.task_weights(1)
    assert all(
        torch.equal(a, b) for site, again in zip(one, other, strict=True) for a, b in zip(site, again, strict=True)
    )
