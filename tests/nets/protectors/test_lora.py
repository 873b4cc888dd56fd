"""A low-rank change for each task, against the product of matrices that it stands for."""

import torch

from nets.protectors.conftest import images, learn, make_protector


def test_a_task_begins_as_the_bare_trunk_and_moves_at_once(tiny_trunk) -> None:
    lora = make_protector("lora", tiny_trunk, rank=3)
    lora.begin_task(torch.Generator().manual_seed(0))
    activations = lora.below(images())
    torch.testing.assert_close(lora(activations, 0), tiny_trunk(images()), rtol=1e-5, atol=1e-5)
    lora(activations, 0).square().sum().backward()
    assert all(layer.up.weight.grad.abs().max() > 0 for layer in lora.layers[0])


def test_it_is_a_change_of_the_frozen_matrix_of_low_rank(tiny_trunk) -> None:
    """With u = W·z + b of a branch's last product, u + u·A·B = (I + BᵀAᵀ)·W·z + (I + BᵀAᵀ)·b."""
    lora, dim = make_protector("lora", tiny_trunk, rank=3), tiny_trunk.dim
    learn(lora, 0)
    layer, frozen = lora.layers[0][0], torch.nn.Linear(7, dim)
    change = (layer.up.weight @ layer.down.weight).detach()
    assert change.shape == (dim, dim) and torch.linalg.matrix_rank(change.double(), rtol=1e-6) == 3
    z = torch.randn(5, 7)
    with torch.no_grad():
        adapted = frozen(z) + layer(frozen(z))
        changed = z @ (frozen.weight + change @ frozen.weight).T + frozen.bias + change @ frozen.bias
    torch.testing.assert_close(adapted, changed, rtol=1e-5, atol=1e-5)


def test_as_a_bottleneck_it_is_the_same_linear_map(tiny_trunk) -> None:
    lora = make_protector("lora", tiny_trunk, rank=3)
    learn(lora, 0)
    layer, u = lora.layers[0][0], torch.randn(50, tiny_trunk.dim)
    fc1, bias1, fc2, bias2 = layer.site_weights()
    assert fc1.shape == (tiny_trunk.dim, 6) and not bias1.any() and not bias2.any()
    torch.testing.assert_close(torch.relu(u @ fc1) @ fc2, layer(u), rtol=1e-5, atol=1e-6)


def test_what_other_tasks_have_is_not_touched(tiny_trunk, optimiser: str) -> None:
    lora = make_protector("lora", tiny_trunk, rank=3)
    learn(lora, 0, optimiser)
    before = {name: value.clone() for name, value in lora.state_dict().items()}
    learn(lora, 1, optimiser)
    assert all(torch.equal(value, lora.state_dict()[name]) for name, value in before.items())


def test_a_task_adds_two_thin_matrices_a_site(tiny_trunk) -> None:
    lora = make_protector("lora", tiny_trunk, rank=3)
    lora.begin_task(torch.Generator().manual_seed(0))
    norms = sum(parameter.numel() for parameter in lora.norms[0].parameters())
    assert sum(value.numel() for value in lora.state_dict().values()) == norms + sum(6 * d for d in lora.sites())
