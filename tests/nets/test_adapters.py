"""Plain adapters, which one network for all tasks has: formulas written out by hand, and what lies below them."""

import pytest
import torch
from torch import nn

from oarlock.nets.adapters import CHUNK, AdapterConfig, Adapters, Bottleneck, CachedActivations

WIDTH = 6


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_images(count: int = 5, size: int = 16) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=seeded(9)).to(torch.uint8)


def make_adapters(trunk, adapt_last: int | None = None) -> Adapters:
    adapters = Adapters(trunk, AdapterConfig(width=WIDTH, adapt_last=adapt_last))
    adapters.reset(seeded())
    return adapters


def scramble(module: nn.Module, seed: int = 1, std: float = 0.5) -> None:
    """Values of ordinary size everywhere, so that nothing holds only because it is near zero."""
    random = seeded(seed)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=random) * std)


# -- one adapter ---------------------------------------------------------------------------------------------


def by_hand(bottleneck: Bottleneck, u: torch.Tensor) -> list[float]:
    """fc2(relu(fc1(u))) of one vector, unit by unit."""
    fc1, fc2 = bottleneck.fc1, bottleneck.fc2
    hidden = [
        max(0.0, sum(w * x for w, x in zip(row, u.tolist(), strict=True)) + b)
        for row, b in zip(fc1.weight.tolist(), fc1.bias.tolist(), strict=True)
    ]
    return [
        sum(w * h for w, h in zip(row, hidden, strict=True)) + b
        for row, b in zip(fc2.weight.tolist(), fc2.bias.tolist(), strict=True)
    ]


def test_a_bottleneck_is_fc2_of_relu_of_fc1():
    bottleneck, u = Bottleneck(4, 3), torch.randn(7, 4, generator=seeded())
    scramble(bottleneck)
    expected = torch.tensor([by_hand(bottleneck, row) for row in u])
    torch.testing.assert_close(bottleneck(u), expected, rtol=1e-5, atol=1e-6)


def test_adapters_start_as_truncated_normals_of_deviation_a_fiftieth_without_bias():
    bottleneck = Bottleneck(200, 100)
    bottleneck.reset(seeded())
    for linear in (bottleneck.fc1, bottleneck.fc2):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.03)
        assert abs(linear.weight.mean().item()) < 1e-3
        assert not linear.bias.any()
    assert not torch.equal(bottleneck.fc1.weight, bottleneck.fc2.weight.T)


# -- the whole network ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("adapt_last", "frozen"), [(None, 0), (1, 2), (2, 1), (99, 0)])
def test_features_are_the_houlsby_formula_with_the_trunks_own_norms(tiny_trunk, adapt_last, frozen):
    """Written out on timm's own modules (class token, no pre-norm)."""
    adapters, images, model = make_adapters(tiny_trunk, adapt_last), make_images(), tiny_trunk.model
    scramble(adapters, std=0.3)
    assert adapters.frozen_stages == frozen and len(adapters.layers) == 6 - 2 * frozen

    def adapt(index, u):
        layer = adapters.layers[index]
        hidden = (u @ layer.fc1.weight.T + layer.fc1.bias).clamp_min(0)
        return u + hidden @ layer.fc2.weight.T + layer.fc2.bias

    x = model.patch_embed((images / 255 - tiny_trunk.mean) / tiny_trunk.std)
    x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1) + model.pos_embed
    for block in model.blocks[:frozen]:
        x = block(x)
    activations = adapters.below(images)
    torch.testing.assert_close(activations, x, rtol=1e-5, atol=1e-5)
    for index, block in enumerate(model.blocks[frozen:]):
        x = x + adapt(2 * index, block.attn(block.norm1(x)))
        x = x + adapt(2 * index + 1, block.mlp(block.norm2(x)))
    expected = model.norm(x)[:, 0]
    torch.testing.assert_close(adapters(activations), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, tiny_trunk(images), atol=0.1)


@pytest.mark.parametrize("adapt_last", [None, 1, 2])
def test_adapters_that_change_nothing_give_the_bare_trunks_features(tiny_trunk, adapt_last):
    adapters = make_adapters(tiny_trunk, adapt_last)
    for layer in adapters.layers:
        nn.init.zeros_(layer.fc2.weight)
    images = make_images()
    torch.testing.assert_close(adapters(adapters.below(images)), tiny_trunk(images), rtol=1e-5, atol=1e-6)


def test_all_adapters_get_a_gradient_and_neither_the_trunk_nor_what_lies_below_them(tiny_trunk):
    adapters = make_adapters(tiny_trunk, adapt_last=1)
    scramble(adapters)
    activations = adapters.below(make_images())
    assert not activations.requires_grad
    adapters(activations).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in adapters.parameters())
    assert all(parameter.grad is None for parameter in tiny_trunk.parameters())


def test_the_trunk_is_not_among_the_tensors(tiny_trunk):
    adapters = make_adapters(tiny_trunk)
    own = {tensor.data_ptr() for tensor in adapters.state_dict().values()}
    assert own.isdisjoint(tensor.data_ptr() for tensor in tiny_trunk.model.state_dict().values())
    assert {name.split(".")[0] for name in adapters.state_dict()} == {"layers"}


# -- what lies below -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("adapt_last", [None, 1])
def test_cached_activations_are_those_below_and_are_kept_where_whole_stages_lie_there(tiny_trunk, adapt_last, bare):
    adapters, images = make_adapters(tiny_trunk, adapt_last), make_images(CHUNK + 3)
    cached, rows = CachedActivations(adapters, images, bare), torch.tensor([CHUNK + 1, 0, 7, 0])
    expected = torch.cat([adapters.below(chunk) for chunk in images.split(CHUNK)])
    assert (cached.kept is not None) == (adapt_last is not None)
    torch.testing.assert_close(cached[rows], expected[rows], rtol=1e-5, atol=1e-6)
    if cached.kept is not None:
        assert torch.equal(cached.kept, expected)
    if cached.kept is not None and bare:
        torch.testing.assert_close(cached.bare, adapters.below_and_bare(images)[1], rtol=1e-5, atol=1e-5)
    else:
        assert cached.bare is None


def test_cached_activations_ask_a_network_about_all_images_or_some(tiny_trunk):
    adapters, images = make_adapters(tiny_trunk, 1), make_images(CHUNK + 3)
    scramble(adapters, std=0.3)
    cached, rows = CachedActivations(adapters, images), torch.tensor([5, CHUNK + 2, 5])
    answers = cached.through(adapters)
    with torch.no_grad():
        expected = torch.cat([adapters(adapters.below(chunk)) for chunk in images.split(CHUNK)])
        assert torch.equal(answers, expected)
        torch.testing.assert_close(cached.through(adapters, rows), expected[rows], rtol=1e-5, atol=1e-5)
    assert not answers.requires_grad
