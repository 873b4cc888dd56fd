"""Masks over fixed constants: which weights they keep, what gradient scores get, what a superposition computes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import make_tiny_convnet, make_tiny_trunk
from nets.protectors.conftest import images, learn, make_protector
from oarlock.nets.protectors.supsup import MaskedLinear, SupSup, largest


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def masked(inputs: int = 6, outputs: int = 4, share: float = 0.5, tasks: int = 1) -> MaskedLinear:
    layer = MaskedLinear(inputs, outputs, share)
    for task in range(tasks):
        if task:
            layer.finish(closed=False)
        layer.add(learning=True)
        layer.reset(seeded(task))
    return layer


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 1.0])
def test_a_mask_keeps_the_largest_share_of_absolute_scores(share: float) -> None:
    layer = masked(6, 4, share)
    scores = torch.randn(4, 6, generator=seeded(3))
    layer.scores.data.copy_(scores)
    ranked = sorted(range(24), key=lambda at: abs(scores.flatten()[at].item()))
    kept = set(ranked[int((1 - share) * 24) :])
    expected = [(1.0 if at in kept else 0.0) * value for at, value in enumerate(layer.constants.flatten().tolist())]
    assert layer.weight(0).flatten().tolist() == pytest.approx(expected, abs=0)
    assert len(kept) == 24 - int((1 - share) * 24)


def test_constants_have_one_size_and_both_signs() -> None:
    layer = masked(50, 40)
    assert torch.allclose(layer.constants.abs(), torch.tensor((2 / 50) ** 0.5))
    assert abs(layer.constants.sign().mean().item()) < 0.1
    bound = 50**-0.5
    assert layer.scores.min() >= 0 and bound * 0.98 < layer.scores.max() <= bound


def test_scores_get_the_gradient_of_the_mask_as_it_is() -> None:
    """dL/ds = dL/dm · sign(s), with the m of every weight, kept or not, at its constant."""
    layer = masked()
    layer.scores.data.copy_(torch.randn(4, 6, generator=seeded(3)))
    x, target = torch.randn(5, 6, generator=seeded(4)), torch.randn(5, 4, generator=seeded(5))
    F.mse_loss(F.linear(x, layer.weight(0)), target).backward()
    mask = largest(layer.scores.detach().abs(), 0.5).requires_grad_()
    F.mse_loss(F.linear(x, layer.constants * mask), target).backward()
    assert mask.grad is not None and layer.scores.grad is not None
    torch.testing.assert_close(layer.scores.grad, mask.grad * layer.scores.detach().sign())
    assert (layer.scores.grad[mask == 0] != 0).all()  # what is left out can come in
    assert layer.constants.requires_grad is False


def test_training_changes_masks_and_no_constant(tiny_trunk, optimiser: str) -> None:
    supsup = make_protector("supsup", tiny_trunk)
    learn(supsup, 0, optimiser)
    untrained = make_protector("supsup", tiny_trunk)
    untrained.begin_task(seeded(0))
    for trained, begun in zip(supsup.matrices, untrained.matrices, strict=True):
        assert torch.equal(trained.constants, begun.constants)
        assert not torch.equal(trained.masks[0].float(), largest(begun.scores.detach().abs(), 0.5))
    constants = [matrix.constants.clone() for matrix in supsup.matrices]
    learn(supsup, 1, optimiser)
    assert all(torch.equal(a, matrix.constants) for a, matrix in zip(constants, supsup.matrices, strict=True))


def test_a_finished_task_keeps_bits_and_no_scores(tiny_trunk) -> None:
    supsup = make_protector("supsup", tiny_trunk)
    learn(supsup, 0)
    learn(supsup, 1)
    for matrix in supsup.matrices:
        assert matrix.masks.dtype == torch.bool and matrix.scores.numel() == 0
        assert torch.equal(matrix.masks.flatten(1).sum(1), torch.tensor([matrix.constants.numel() // 2] * 2))
        assert not torch.equal(*matrix.masks)


# Superpositions


@pytest.fixture(scope="module", params=[make_tiny_trunk, make_tiny_convnet], ids=["vit", "convnet"])
def supsup(request: pytest.FixtureRequest) -> SupSup:
    made = make_protector("supsup", request.param(), scale=1.0)
    for task in range(3):
        learn(made, task)
    return made


def test_all_of_one_task_is_that_task(supsup: SupSup) -> None:
    activations = supsup.below(images())
    for task in range(3):
        shares = torch.zeros(12, 3)
        shares[:, task] = 1
        with torch.no_grad():
            mixed, own = supsup.superposed(activations, shares), supsup(activations, task)
        torch.testing.assert_close(mixed, own, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_every_image_has_its_own_superposition(supsup: SupSup) -> None:
    """Against the whole network with one matrix Σ α M ⊙ W, one image at a time."""
    activations = supsup.below(images(count=4))
    shares = torch.rand(4, 3, generator=seeded(7)).softmax(1)
    mixed = supsup.superposed(activations, shares)
    for row, alpha in enumerate(shares):
        matrices = [
            [(fc.masks.float() * alpha[:, None, None]).sum(0) * fc.constants for fc in (layer.fc1, layer.fc2)]
            for layer in supsup.layers
        ]
        own = list(zip(alpha, supsup.norms, strict=True))
        places = range(len(supsup.norms[0].weight))
        weights = [sum(a * norms.weight[place] for a, norms in own) for place in places]
        biases = [sum(a * norms.bias[place] for a, norms in own) for place in places]

        def adapt(site: int, u: torch.Tensor, matrices=matrices) -> torch.Tensor:
            return u + torch.relu(u @ matrices[site][0].T) @ matrices[site][1].T

        def norm(index: int, x: torch.Tensor, weights=weights, biases=biases) -> torch.Tensor:
            return supsup.norms[0].normalise(x) * weights[index] + biases[index]

        alone = supsup.adapted(activations[row : row + 1], adapt, norm)
        np.testing.assert_allclose(mixed[row].numpy(), alone[0].numpy(), rtol=1e-4, atol=1e-5)
